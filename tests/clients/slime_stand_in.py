"""A stand-in for slime, which is not on PyPI: the callers of a custom generate function and the readers of its samples.

Written in our own words after THUDM/slime: ``slime/utils/types.py`` (``Sample`` and its rules), ``slime/utils/data.py``
(rows to samples), ``slime/rollout/sglang_rollout.py`` (the caller of ``generate``, aborting, over-sampling,
evaluation), ``slime/rollout/fully_async_rollout.py``, ``slime/rollout/filter_hub/base_types.py``,
``slime/ray/rollout.py`` (samples to a training batch) and ``slime/observability/rollout_metrics.py`` (an evaluation's
score). ``install`` makes it importable under slime's own names. This stand-in fails on every sample on which slime
would fail. What Miles has as well is in ``slime_and_miles_stand_in``.

``tests/long/trainers/check_slime.py`` plays the same with slime's own modules.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.slime_and_miles_stand_in import (
    BaseSample,
    DynamicFilterOutput,
    Trainer,
    call_generate,
    install_modules,
    load_function,
)

__all__ = [
    "GenerateState",
    "Sample",
    "convert_samples",
    "evaluate",
    "generate_and_rm",
    "generate_rollout",
    "generate_rollout_fully_async",
    "install",
    "read_rows",
]

_log = logging.getLogger(__name__)


@dataclass
class Sample(BaseSample):
    """``slime.utils.types.Sample``."""

    rollout_id: int | None = None
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: list[Any] | None = None
    teacher_log_probs: list[float] | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None

    @dataclass
    class PrefixCacheInfo:
        cached_tokens: int = 0
        total_prompt_tokens: int = 0

    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    @dataclass
    class SpecInfo:
        spec_verify_ct: int = 0

    spec_info: SpecInfo = field(default_factory=SpecInfo)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Sequence[int] | None = None,
        log_probs: Sequence[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append to every list that has an entry for each response token; refuse entries that would misalign them."""
        new = list(tokens or [])
        if trainable and new and log_probs is None:
            raise ValueError("tokens that are trained on need their log-probabilities")
        if not trainable and log_probs is not None:
            raise ValueError("tokens that are not trained on have no log-probabilities")
        probabilities = [0.0] * len(new) if log_probs is None else list(log_probs)
        if len(probabilities) != len(new):
            raise ValueError("not one log-probability a token")
        self.response += text or ""
        before = self.response_length
        self.tokens = [*self.tokens, *new]
        self.response_length += len(new)
        self.loss_mask = [*(self.loss_mask or [1] * before), *([int(trainable)] * len(new))]
        self.rollout_log_probs = [*(self.rollout_log_probs or [0.0] * before), *probabilities]
        self._replay(new, meta_info or {}, trainable)
        if meta_info is not None and update_terminal_info and "finish_reason" in meta_info:
            self.prefix_cache_info.cached_tokens += meta_info.get("cached_tokens", 0)
            self.prefix_cache_info.total_prompt_tokens += meta_info.get("prompt_tokens", 0)
            self._finish(meta_info)
        assert len(self.loss_mask) == len(self.rollout_log_probs) == self.response_length
        if self.rollout_top_p_token_offsets is not None:
            assert len(self.rollout_top_p_token_offsets) == self.response_length + 1

    def _replay(self, new: list[int], meta_info: dict[str, Any], trainable: bool) -> None:
        """Return the sets that top-p sampling kept: one span for each token, empty for tokens of the environment."""
        kept: list[list[int]] | None = meta_info.get("top_p_token_ids")
        if kept is None and self.rollout_top_p_token_offsets is None:
            return
        empty: list[list[int]] = [[] for _ in new]
        spans = kept if kept is not None and trainable else empty
        assert len(spans) == len(new), "one span a token"
        ids = self.rollout_top_p_token_ids or []
        offsets = self.rollout_top_p_token_offsets or [0] * (self.response_length - len(new) + 1)
        for span in spans:
            ids = [*ids, *span]
            offsets = [*offsets, len(ids)]
        self.rollout_top_p_token_ids, self.rollout_top_p_token_offsets = ids, offsets


class GenerateState:
    """The process-wide state of ``sglang_rollout``: made once, whatever arguments come later."""

    _made: GenerateState | None = None
    tokenizer: Any
    processor: Any
    aborted: bool

    def __new__(cls, args: Any) -> GenerateState:
        if cls._made is None:
            cls._made = state = super().__new__(cls)
            # slime loads it from args.hf_checkpoint; its contract tests replace the state by one without a tokenizer.
            state.tokenizer = getattr(args, "tokenizer", None)
            state.processor = getattr(args, "processor", None)
            state.aborted = False
        return cls._made


def install(monkeypatch: Any) -> None:
    """Make this module importable as slime during a test."""
    modules = {
        "slime.utils.types": {"Sample": Sample},
        "slime.rollout.sglang_rollout": {"GenerateState": GenerateState},
        "slime.rollout.filter_hub.base_types": {"DynamicFilterOutput": DynamicFilterOutput},
    }
    install_modules(monkeypatch, modules)
    monkeypatch.setattr(GenerateState, "_made", None)


def read_rows(
    path: Path,
    *,
    input_key: str,
    label_key: str,
    metadata_key: str,
    processor: Any = None,
    apply_chat_template: bool = False,
) -> list[Sample]:
    """Read JSONL like ``slime.utils.data.Dataset``. With a vision model's ``processor``, a prompt is a conversation."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        if isinstance(row[input_key], str) and apply_chat_template:
            row[input_key] = [{"role": "user", "content": row[input_key]}]
        assert processor is None or isinstance(row[input_key], list), "a prompt must be a list with a processor"
    return [
        Sample(prompt=row[input_key], label=row[label_key], metadata=row.get(metadata_key) or {}, index=index)
        for index, row in enumerate(rows)
    ]


async def _generate(args: Any, state: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool) -> Any:
    function = load_function(sample.generate_function_path or args.custom_generate_function_path)
    return await call_generate(function, args, sample, sampling_params, evaluation)


_SLIME = Trainer(_generate, logs_errors=False, rewards_once=False, names_sessions=True)


async def generate_and_rm(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Run one sample through the custom functions, as slime calls them."""
    return await _SLIME.generate_and_rm(args, GenerateState(args), sample, sampling_params, evaluation)


async def generate_rollout(
    args: Any, prompts: Sequence[Sample], sampling_params: dict[str, Any]
) -> tuple[list[list[Sample]], list[list[Sample]], dict[str, int]]:
    """Draw a batch; also return the groups to continue later, and the number of dropped groups by reason."""
    return await _SLIME.generate_rollout(args, GenerateState(args), prompts, sampling_params)


async def generate_rollout_fully_async(
    args: Any, buffer: list[list[Sample]], sampling_params: dict[str, Any], *, seconds: float = 40.0
) -> list[list[Sample]]:
    """Draw a batch from ``buffer``, one group at a time; ``TimeoutError`` where slime would wait without end.

    No filter is called. Groups with an aborted sample return to the buffer, and a group's exception is logged.
    """
    collected: list[list[Sample]] = []
    async with asyncio.timeout(seconds):
        while len(collected) < args.rollout_batch_size:
            if not buffer:
                await asyncio.sleep(0.05)
                continue
            try:
                group = await _SLIME.generate_group(args, GenerateState(args), buffer.pop(0), sampling_params)
            except Exception:  # noqa: BLE001 - as slime does
                _log.exception("fully-async: process task raised")
                continue
            if any(sample.status == Sample.Status.ABORTED for sample in group):
                buffer.append(group)
            else:
                collected.append(group)
    return collected


async def evaluate(
    args: Any, prompts: Sequence[Sample], sampling_params: dict[str, Any], name: str = "e"
) -> dict[str, float]:
    """Return the logged score of an evaluation with one sample a prompt: the mean of all its rewards, lost or not."""
    samples = await asyncio.gather(*(generate_and_rm(args, prompt, sampling_params, True) for prompt in prompts))
    rewards = [sample.reward for sample in samples]
    truncated = [sample.status == Sample.Status.TRUNCATED for sample in samples]
    data: dict[str, Any] = {name: {"rewards": rewards, "truncated": truncated, "samples": samples}}
    if args.custom_eval_rollout_log_function_path is not None:
        log = load_function(args.custom_eval_rollout_log_function_path)
        if log(0, args, data, None):
            return {}
    return {f"eval/{key}": sum(results["rewards"]) / len(results["rewards"]) for key, results in data.items()}


def normalized_rewards(args: Any, samples: Sequence[Sample]) -> list[float]:
    """Return the rewards relative to those of their groups, lost ones included (GRPO)."""
    rewards: list[float] = []
    for first in range(0, len(samples), args.n_samples_per_prompt):
        raw = [float(sample.reward) for sample in samples[first : first + args.n_samples_per_prompt]]  # type: ignore[arg-type]
        mean = statistics.fmean(raw)
        deviation = statistics.stdev(raw) if len(raw) > 1 else 0.0  # torch's: of a sample
        rewards += [(reward - mean) / (deviation + 1e-6) for reward in raw]
    return rewards


def convert_samples(args: Any, samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Return a training batch, with rewards normalized in their groups (GRPO)."""
    path = getattr(args, "custom_reward_post_process_path", None)
    rewards = normalized_rewards(args, samples) if path is None else load_function(path)(args, samples)[1]
    batch: dict[str, list[Any]] = {"rewards": rewards, "tokens": [], "loss_masks": [], "log_probs": [], "truncated": []}
    for sample in samples:
        assert isinstance(sample.tokens, list) and isinstance(sample.metadata, dict)
        assert 0 < sample.response_length < len(sample.tokens)
        mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
        assert len(mask) == sample.response_length
        if getattr(args, "rollout_top_p", 1.0) != 1.0:
            assert sample.rollout_top_p_token_ids is not None and sample.rollout_top_p_token_offsets is not None
            assert len(sample.rollout_top_p_token_offsets) == sample.response_length + 1
            assert sample.rollout_top_p_token_offsets[-1] == len(sample.rollout_top_p_token_ids)
        batch["tokens"].append(sample.tokens)
        batch["loss_masks"].append([0] * sample.response_length if sample.remove_sample else mask)
        batch["log_probs"].append(sample.rollout_log_probs)
        batch["truncated"].append(int(sample.status == Sample.Status.TRUNCATED))
    return batch
