"""Models without a hub: Qwen3 shapes with random weights, a tokenizer trained on Python's standard library.

Throughput depends on a model's shape and not on what it has learnt, so a random model measures as well as a real one,
wherever no hub can be reached. The vocabulary covers every id the model can sample: what has no merge of its own is
filled up with words that no text encodes to, so that any sampled id decodes. The chat template is append-only: it never
rewrites an earlier message, and renders tools and calls in the Hermes form that Qwen3 was trained on.

    python -m ors_benchmarks.rollout.tiny_model FOLDER --shape tiny
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingImports=false
# torch and transformers are not dependencies of the project, and leave most of their types open.

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ors_server.errors import OrsError

__all__ = ["CHAT_TEMPLATE", "SHAPES", "ModelUnavailable", "Shape", "cached", "make", "make_tokenizer"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
#: Added but not special, as Qwen has them, so that decoding without special tokens keeps them.
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
#: Larger vocabularies would take minutes to train and say nothing more about throughput.
LARGEST_TRAINED = 16_384

_CORPUS_FILES = 120
_EXAMPLES = (
    '<tool_call>\n{"name": "echo", "arguments": {"text": "hello"}}\n</tool_call>',
    '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>',
    '{"type": "function", "function": {"name": "echo", "description": "Echo the text", "parameters": {"type": '
    '"object", "properties": {"text": {"type": "string", "description": "text"}}, "required": ["text"]}}}',
)

CHAT_TEMPLATE = """\
{%- macro text_of(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content -%}
        {%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set first_is_system = messages and messages[0].role == 'system' -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {%- if first_is_system -%}{{- text_of(messages[0].content) + '\\n\\n' -}}{%- endif -%}
    {{- 'The functions you can call, one JSON object a line:\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
    {{- '\\n</tools>\\nCall one by writing\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' -}}
    {{- '<|im_end|>\\n' -}}
{%- elif first_is_system -%}
    {{- '<|im_start|>system\\n' + text_of(messages[0].content) + '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
        {{- '\\n<tool_response>\\n' + text_of(message.content) + '\\n</tool_response>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' + text_of(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function or call -%}
            {%- if not loop.first or message.content -%}{{- '\\n' -}}{%- endif -%}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
            {{- function.arguments if function.arguments is string else function.arguments | tojson -}}
            {{- '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif not (loop.first and first_is_system) -%}
        {{- '<|im_start|>' + message.role + '\\n' + text_of(message.content) + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


class ModelUnavailable(OrsError):
    """A model cannot be made or found here."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen3; the defaults are those its family shares."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    key_value_heads: int = 8
    head_size: int = 128
    vocabulary: int = 151_936
    tied: bool = True
    bfloat16: bool = True


#: By the name that ``--model`` takes. All but ``tiny`` have the sizes of the model they are named after.
SHAPES: dict[str, Shape] = {
    "tiny": Shape(128, 4, 4, 384, key_value_heads=2, head_size=32, vocabulary=2048, bfloat16=False),
    "qwen3-0.6b-random": Shape(1024, 28, 16, 3072),
    "qwen3-1.7b-random": Shape(2048, 28, 16, 6144),
    "qwen3-4b-random": Shape(2560, 36, 32, 9728),
    "qwen3-8b-random": Shape(4096, 36, 32, 12288, tied=False),
}


def cached(name: str, *, weights: bool) -> Path:
    """Return the folder of a shape's model, made when it is first asked for.

    Without ``weights`` it holds a configuration and a tokenizer: engines can make random weights in place, which beats
    writing and reading gigabytes. It lies in ``${XDG_CACHE_HOME:-~/.cache}/ors-server/models``. Raises
    ``ModelUnavailable``.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ors-server" / "models"
    # Another template, corpus or writer makes another model.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{name}-{version}-{zlib.crc32(CHAT_TEMPLATE.encode()):x}{'' if weights else '-empty'}"
    if not (folder / "complete").exists():
        make(folder, name, weights=weights)
        (folder / "complete").touch()
    return folder


def make(folder: Path, shape: str = "tiny", *, chat_template: str = CHAT_TEMPLATE, weights: bool = True) -> None:
    """Write a model into ``folder``: configuration, tokenizer with this chat template and, unless told not to, weights.

    The weights are the same every time. Raises ``ModelUnavailable`` for an unknown shape, and where transformers or,
    for weights, torch is missing.
    """
    sizes = SHAPES.get(shape)
    if sizes is None:
        raise ModelUnavailable(f"There is no shape {shape!r}", f"There are {', '.join(SHAPES)}.")
    for needed in ("transformers", *(("torch",) if weights else ())):
        if importlib.util.find_spec(needed) is None:
            raise ModelUnavailable(
                f"Making a model needs {needed}, which is not installed here",
                "`scripts/vllm-venv` makes an environment that has it.",
            )
    from transformers import GenerationConfig, Qwen3Config
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(sizes.vocabulary, chat_template)
    config = Qwen3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.key_value_heads,
        head_dim=sizes.head_size,
        max_position_embeddings=32_768,
        tie_word_embeddings=sizes.tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="bfloat16" if sizes.bfloat16 else "float32",
        architectures=["Qwen3ForCausalLM"],
    )
    generation = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    if weights:
        import torch
        from transformers import Qwen3ForCausalLM

        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = Qwen3ForCausalLM(config).to(torch.bfloat16 if sizes.bfloat16 else torch.float32)
        model.generation_config = generation
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
        generation.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(vocabulary: int, chat_template: str = CHAT_TEMPLATE) -> Any:
    """Return a transformers tokenizer of exactly this many tokens, byte-level BPE trained on the standard library."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_CORPUS_FILES]
    corpus = [path.read_text(errors="ignore") for path in sources] + [*_EXAMPLES] * 50
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=min(vocabulary - len(MARKUP), LARGEST_TRAINED),
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    written = json.loads(bpe.to_str())
    words = written["model"]["vocab"]
    for number in range(len(words), vocabulary - len(MARKUP)):
        words[f"|unused{number}|"] = number
    bpe = Tokenizer.from_str(json.dumps(written))
    bpe.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    ends = {"eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **ends)
    tokenizer.chat_template = chat_template
    return tokenizer


def main() -> None:
    """Write a model where the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="tiny")
    parser.add_argument("--no-weights", action="store_true", help="configuration and tokenizer only")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.shape, weights=not arguments.no_weights)


if __name__ == "__main__":
    main()
