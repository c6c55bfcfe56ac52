"""A Llama of some ten thousand weights, and its tokenizer, made of the demonstrations alone.

A piece of text that several demonstrations share is one token: a sentence of the prompt, a command. What differs
between them, the values, is spelled in pairs of letters and in digits, so that a value which no demonstration has is
spelled like the others. Any other text is spelled in bytes. So a prompt has some ten tokens, and an answer as many.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ors_clients.learning.plan import WORD, rare_words
from ors_clients.training.optional_imports import import_trainer_module

__all__ = ["END_OF_TURN", "INSTALL_TRL", "make_model", "make_tokenizer"]

INSTALL_TRL = "Use a Python with TRL, as that of scripts/trl-venv."
END_OF_TURN = "<|im_end|>"
_PADDING = "<|endoftext|>"
_MARKS = ("<|im_start|>", END_OF_TURN, _PADDING)
#: ChatML, with the tools and their calls as the Hermes models have them.
_TEMPLATE = """\
{%- if tools %}{{- "<|im_start|>system\\n# Tools\\n<tools>\\n" }}
{%- for tool in tools %}{{- (tool | tojson) + "\\n" }}{% endfor %}
{{- "</tools>\\nA call is\\n<tool_call>\\n{\\"name\\": \\"tool\\", \\"arguments\\": {}}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
{{- "<|im_start|>" + ("user" if message.role == "tool" else message.role) + "\\n" }}
{%- if message.role == "tool" %}{{- "<tool_response>\\n" + message.content + "\\n</tool_response>" }}
{%- else %}{{- message.content or "" }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- "<tool_call>\\n{\\"name\\": \\"" + call.function.name + "\\", \\"arguments\\": " }}
{{- (call.function.arguments | tojson) + "}\\n</tool_call>" }}
{%- endfor %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\\n" }}{% endif %}"""
#: Texts that share a piece, and pairs of letters of values, at least: others are spelled.
_SHARED = 3
_PARTS = re.compile(rf"{WORD.pattern}|[^A-Za-z0-9]+")
#: The end of a sentence or a line; a longer piece would be one of few demonstrations.
_END_OF_PIECE = re.compile(r"(?<=\.)(?=\s)|(?<=\n)(?!\n)")


def make_tokenizer(texts: Sequence[str]) -> Any:
    """Return a tokenizer for texts like these; of none, one of bytes."""
    tokenizers = import_trainer_module("tokenizers", INSTALL_TRL)
    transformers = import_trainer_module("transformers", INSTALL_TRL)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(list(_MARKS))
    made.add_tokens([tokenizers.AddedToken(piece, special=False, normalized=False) for piece in _pieces(texts)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END_OF_TURN,
        pad_token=_PADDING,
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _pieces(texts: Sequence[str]) -> list[str]:
    """Return the pieces that texts share, and the pairs of letters of their values."""
    values = rare_words(texts)
    runs = [run for text in texts for run in _runs(text, values)]
    pairs = Counter(
        word[at : at + 2]
        for text in texts
        for word in WORD.findall(text)
        if word in values and word.isalpha()
        for at in range(0, len(word) - 1, 2)
    )
    common = [*Counter(piece for run in _joined(runs) for piece in run).items(), *pairs.items()]
    # The bytes of other letters would be read as letters themselves.
    return sorted(piece for piece, count in common if count >= _SHARED and len(piece) > 1 and piece.isascii())


def _runs(text: str, values: set[str]) -> Iterator[list[str]]:
    """Yield what is between the values of a text, cut at ends of sentences and lines."""
    for part in re.split("|".join(map(re.escape, _MARKS)), text):
        run = ""
        for word in [*_PARTS.findall(part), ""]:
            if word in values or not word:
                yield [piece for piece in _END_OF_PIECE.split(run) if piece]
                run = ""
            else:
                run += word


def _joined(runs: list[list[str]]) -> list[list[str]]:
    """Join pieces that never occur without each other: a model would only read the same thing twice."""
    while True:
        single = Counter(piece for run in runs for piece in run)
        pairs = Counter(pair for run in runs for pair in itertools.pairwise(run))
        always = {(a, b) for (a, b), count in pairs.items() if a != b and count == single[a] == single[b]}
        if not always:
            return runs
        for run in runs:
            at = 0
            while at < len(run) - 1:
                if (run[at], run[at + 1]) in always:
                    run[at : at + 2] = [run[at] + run[at + 1]]
                at += 1


def make_model(tokenizer: Any, *, hidden: int, layers: int, seed: int) -> Any:
    """Return a model with random weights, the same for the same seed.

    Attention starts as a copy of what it attends to, so that copying a value into the answer is learnt earlier than the
    demonstrations' values by heart; its positions are those of short texts.
    """
    torch = import_trainer_module("torch", INSTALL_TRL)
    transformers = import_trainer_module("transformers", INSTALL_TRL)
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=(len(tokenizer) + 15) // 16 * 16,
            hidden_size=hidden,
            intermediate_size=hidden // 2,  # a larger one learns the demonstrations by heart
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            initializer_range=hidden**-0.5,  # of the usual 0.02, so narrow a model would not attend to the prompt
            rope_parameters={"rope_type": "default", "rope_theta": 100.0},
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.v_proj.weight.copy_(torch.eye(hidden))
            layer.self_attn.o_proj.weight.copy_(torch.eye(hidden) / 2)
    return model
