"""Tokenizers of transformers, made here: a byte-level BPE of a few hundred tokens, with the common kinds of templates.

The templates are written for these tests and do what the models' own do where it matters to a renderer: they drop the
thinking of earlier turns, put an empty one into the last (Qwen3), join tool results into one user message (Qwen), quote
tool results as JSON (Llama 3), refuse system messages (Gemma) or roles in the wrong order (Mistral).
"""

from functools import cache
from typing import Any

import pytest

__all__ = ["LLAMA3", "MISTRAL", "QWEN2", "QWEN3", "SCHOOL", "TEMPLATES", "VISION", "tiny_tokenizer"]

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. What is two plus three? It is five.",
    '{"name": "echo", "arguments": {"text": "hello", "count": 3, "flag": true}}',
    "system user assistant tool <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>",
    "Error: no such file or directory /usr/bin/python3 -m pytest 0123456789 def main(): return None",
] * 8
_TEXT_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|/header|>", "<|eot|>", "<|image|>"]

_TOOLS = """{%- if tools %}
{{- '<|im_start|>system\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}
{{- '# Tools\n<tools>' }}
{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}
{{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
"""
_TOOL_RESULT = """
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
"""

#: Drops the thinking of turns before the last user message; writes an empty one where thinking is off.
QWEN3 = (
    _TOOLS
    + """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
{%- set ns.last = loop.index0 %}
{%- endif %}
{%- endfor %}
{%- if ns.last < 0 %}{{- raise_exception('No user query found.') }}{%- endif %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'assistant' %}
{%- set visible = content.split('</think>')[-1].lstrip('\n') %}
{%- if loop.index0 > ns.last and loop.last %}
{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + visible + '<|im_end|>\n' }}
{%- else %}{{- '<|im_start|>assistant\n' + visible + '<|im_end|>\n' }}{%- endif %}
{%- elif message.role == 'tool' %}"""
    + _TOOL_RESULT
    + """
{%- elif message.role == 'user' or not loop.first %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
)

#: A default system message, and no thinking at all.
QWEN2 = (
    """{%- if messages[0].role != 'system' and not tools %}
{{- '<|im_start|>system\nBe helpful.<|im_end|>\n' }}
{%- endif %}"""
    + _TOOLS
    + """
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'tool' %}"""
    + _TOOL_RESULT
    + """
{%- elif not (message.role == 'system' and loop.first) %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
)

#: Like Qwen2's, but the prompt begins the thinking, as the templates of reasoning models do.
REASONING = QWEN2.replace(
    "'<|im_start|>assistant\n' }}{%- endif %}", "'<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)

#: Another end of turn than the tokenizer's end of text; contents trimmed; tool results quoted as JSON.
LLAMA3 = """{%- for message in messages %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|header|>' + role + '<|/header|>\n\n' }}
{%- if message.role == 'tool' %}{{- message.content | tojson }}{%- else %}{{- message.content | trim }}{%- endif %}
{{- '<|eot|>' }}
{%- if loop.first and tools %}{{- '<|header|>tools<|/header|>\n\n' + (tools | tojson) + '<|eot|>' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>\n\n' }}{%- endif %}"""

#: No tool role; user and assistant take turns, or the template raises; no system messages (Gemma, early Mistral).
MISTRAL = """{%- for message in messages %}
{%- if message.role not in ('user', 'assistant') %}{{- raise_exception('no role ' + message.role) }}{%- endif %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}
{%- if message.role == 'user' %}{{- '[INST] ' + message.content + ' [/INST]' }}
{%- else %}{{- ' ' + message.content + '<|endoftext|>' }}{%- endif %}
{%- endfor %}"""

#: A turn ends without a special token.
SCHOOL = """{%- for message in messages %}{{- '### ' + message.role + ':\n' + message.content + '\n\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '### assistant:\n' }}{%- endif %}"""

#: Contents may be lists of texts and images.
VISION = """{%- for message in messages %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\n' }}
{%- if message.content is string %}{{- message.content }}
{%- else %}{%- for part in message.content %}
{%- if part.type == 'image' %}{{- '<|image|>' }}{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}{%- endif %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

#: Contents must be lists (SmolVLM, LLaVA).
LISTS = VISION.replace("{%- if message.content is string %}{{- message.content }}\n{%- else %}", "").replace(
    "{%- endfor %}{%- endif %}\n", "{%- endfor %}\n"
)

#: Only the marker of the next speaker ends a turn (GLM).
NEXT_SPEAKER = """{%- for message in messages %}
{{- {'user': '<|header|>', 'tool': '<|/header|>', 'assistant': '<|eot|>', 'system': '<|image|>'}[message.role] }}
{{- message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|eot|>' }}{%- endif %}"""

#: Contents are trimmed (Qwen3.5).
TRIMMING = QWEN2.replace("set content = message.content %}", "set content = message.content | trim %}")

TEMPLATES = {
    "lists": LISTS,
    "next speaker": NEXT_SPEAKER,
    "trimming": TRIMMING,
    "qwen3": QWEN3,
    "qwen2": QWEN2,
    "reasoning": REASONING,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "school": SCHOOL,
    "vision": VISION,
    "none": None,
}


@cache
def tiny_tokenizer(template: str = "qwen3", eos: str = "<|im_end|>") -> Any:
    """Return a fast tokenizer of transformers with one of ``TEMPLATES``; skip the test without transformers."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=_SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    backend.add_tokens(_TEXT_TOKENS)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=eos,
        pad_token="<|endoftext|>",
        chat_template=TEMPLATES[template],
    )
