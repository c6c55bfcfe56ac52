"""A Qwen3 of some hundred thousand weights that knows one thing: how to call the tools of the transcripts it was given.

Random weights never produce a well-formed tool call, and no model can be fetched where tests run. So the tokenizer is
trained on the transcripts alone, and the model is overfitted on them until sampling from it reproduces them: a share
of rollouts then calls the right tool with the right argument and a share with a wrong one, which is the spread of
rewards that GRPO learns from. Takes seconds on a CPU.
"""

from __future__ import annotations

import importlib.resources
import inspect
import time
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import get_json_schema
from trl.chat_template_utils import get_training_chat_template

END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
# Qwen keeps these out of the special tokens, so that decoding for a tool parser leaves them in the text.
MARKERS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

Message = dict[str, Any]
ToolSchema = dict[str, Any]


@dataclass
class Transcript:
    """A conversation, and the tools that its prompt shows: with others the model would meet a prompt it never saw."""

    messages: list[Message]
    tools: list[ToolSchema]


@dataclass
class TinyModel:
    """A model with the figures of its training."""

    model: Qwen3ForCausalLM
    tokenizer: PreTrainedTokenizerFast
    loss: float
    seconds: float

    @property
    def parameters(self) -> int:
        return sum(value.numel() for value in self.model.parameters())


def tool_schemas(environment: Any) -> list[ToolSchema]:
    """Return the tools of an environment as TRL finds and renders them: the public methods but `reset`, by name."""
    members = inspect.getmembers(type(environment), inspect.isfunction)
    names = [name for name, _ in members if not name.startswith("_") and name != "reset"]
    return [get_json_schema(getattr(environment, name)) for name in names]


def play(environment: Any, row: dict[str, Any], tool: str, arguments: dict[str, Any]) -> Transcript:
    """One call in a task, in the server's own words: the prompt, the call, the answer, and a last word."""
    prompt = environment.reset(**{name: value for name, value in row.items() if name != "environment"})
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    messages = [
        {"role": "user", "content": prompt},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": tool, "content": getattr(environment, tool)(**arguments)},
        {"role": "assistant", "content": "done"},
    ]
    return Transcript(messages, tool_schemas(environment))


def make_tokenizer(transcripts: list[Transcript]) -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer on the transcripts, with the chat template that TRL knows how to train on."""
    # TRL parses tool calls only for templates it recognises, by exact match, so the template is TRL's own copy.
    template = importlib.resources.files("trl").joinpath("chat_templates/qwen3_instruct_2507.jinja").read_text()

    def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token=END_OF_TURN,
            pad_token=PADDING,
            chat_template=template,
            clean_up_tokenization_spaces=False,
        )

    # Rendering needs no vocabulary, so an empty tokenizer renders what the real one is trained on.
    empty = wrap(Tokenizer(models.BPE()))
    corpus = [empty.apply_chat_template(one.messages, tools=one.tools or None, tokenize=False) for one in transcripts]

    tokenizer = Tokenizer(models.BPE())
    # Without the usual split into words, what is the same in all transcripts becomes a few long tokens.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=1024,
            special_tokens=[PADDING, "<|im_start|>", END_OF_TURN],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # any other text stays encodable, byte by byte
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return wrap(tokenizer)


def make_tiny_model(transcripts: list[Transcript], *, steps: int = 120, seed: int = 0) -> TinyModel:
    """Make tokenizer and model, and overfit the model on the assistant turns of `transcripts`."""
    started = time.monotonic()
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(transcripts)
    config = Qwen3Config(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        initializer_range=64**-0.5,  # the usual 0.02 is for wide models; this narrow one would not attend to the prompt
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id], pad_token_id=tokenizer.pad_token_id, do_sample=True
    )

    encoded = [
        tokenizer.apply_chat_template(
            one.messages,
            tools=one.tools or None,
            chat_template=get_training_chat_template(tokenizer),  # the one that marks assistant turns
            return_assistant_tokens_mask=True,
            return_dict=True,
        )
        for one in transcripts
    ]
    batch = tokenizer.pad(
        [{"input_ids": one["input_ids"]} for one in encoded], padding_side="right", return_tensors="pt"
    )
    labels = torch.full_like(batch["input_ids"], -100)
    for row, one in zip(labels, encoded, strict=True):
        trained = torch.tensor(one["assistant_masks"]).bool()
        row[: len(trained)][trained] = torch.tensor(one["input_ids"])[trained]
    # So high a rate would ruin a real model; this small one is then done in 120 steps instead of 500.
    rate = 1e-2
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    loss = torch.tensor(float("nan"))
    for _ in range(steps):
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return TinyModel(model, tokenizer, loss.item(), time.monotonic() - started)
