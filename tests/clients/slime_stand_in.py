"""A stand-in for slime, which is not on PyPI: the callers of a custom generate function and the readers of its samples.

Written in our own words after THUDM/slime: ``slime/utils/types.py`` (``Sample`` and its rules), ``slime/utils/data.py``
(rows to samples), ``slime/rollout/sglang_rollout.py`` (the caller of ``generate``, aborting, over-sampling,
evaluation), ``slime/rollout/fully_async_rollout.py``, ``slime/rollout/filter_hub/base_types.py``,
``slime/ray/rollout.py`` (samples to a training batch) and ``slime/observability/rollout_metrics.py`` (an evaluation's
score). ``install`` makes it importable under slime's own names. This stand-in fails on every sample on which slime
would fail.

``tests/long/trainers/check_slime.py`` plays the same with slime's own modules.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import json
import logging
import statistics
import sys
import types
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

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
class Sample:
    """``slime.utils.types.Sample``."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list[int])
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list[str])
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: list[Any] | None = None
    teacher_log_probs: list[float] | None = None
    remove_sample: bool = False

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0

    @dataclass
    class PrefixCacheInfo:
        cached_tokens: int = 0
        total_prompt_tokens: int = 0

    prefix_cache_info: PrefixCacheInfo = field(default_factory=PrefixCacheInfo)

    @dataclass
    class SpecInfo:
        spec_verify_ct: int = 0

    spec_info: SpecInfo = field(default_factory=SpecInfo)

    def get_reward_value(self, args: Any) -> float:
        """Return the reward, or the one that ``--reward-key`` names."""
        return self.reward[args.reward_key] if getattr(args, "reward_key", None) else self.reward  # type: ignore[index, return-value]

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
            if "weight_version" in meta_info:
                self.weight_versions.append(meta_info["weight_version"])
            finished = {"length": "TRUNCATED", "abort": "ABORTED", "stop": "COMPLETED"}
            self.status = self.Status[finished[meta_info["finish_reason"]["type"]]]
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


@dataclass
class DynamicFilterOutput:
    """``slime.rollout.filter_hub.base_types.DynamicFilterOutput``."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def install(monkeypatch: Any) -> None:
    """Make this module importable as slime during a test."""
    names = {
        "slime": {},
        "slime.utils": {},
        "slime.utils.types": {"Sample": Sample},
        "slime.rollout": {},
        "slime.rollout.sglang_rollout": {"GenerateState": GenerateState},
        "slime.rollout.filter_hub": {},
        "slime.rollout.filter_hub.base_types": {"DynamicFilterOutput": DynamicFilterOutput},
    }
    for name, contents in names.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(GenerateState, "_made", None)


def load_function(path: str) -> Callable[..., Any]:
    """Load a function like ``slime.utils.misc.load_function``."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


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


async def generate_and_rm(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Run one sample through the custom functions, as slime calls them."""
    if sample.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED):
        assert args.group_rm or sample.reward is not None
        return sample
    state = GenerateState(args)
    if state.aborted:
        sample.status = Sample.Status.ABORTED
        return sample
    generate = load_function(sample.generate_function_path or args.custom_generate_function_path)
    if "evaluation" in inspect.signature(generate).parameters:
        sample = await generate(args, sample, sampling_params, evaluation=evaluation)
    else:
        sample = await generate(args, sample, sampling_params)
    if args.group_rm or sample.status == Sample.Status.ABORTED:
        return sample
    if sample.reward is None:
        sample.reward = await load_function(sample.custom_rm_path or args.custom_rm_path)(args, sample)
    return sample


async def generate_and_rm_group(args: Any, group: list[Sample], sampling_params: dict[str, Any]) -> list[Sample]:
    """Run the samples of one prompt at the same time."""
    for sample in group:
        sample.session_id = sample.session_id or str(uuid.uuid4())
    tasks = [asyncio.create_task(generate_and_rm(args, sample, dict(sampling_params))) for sample in group]
    try:
        group = list(await asyncio.gather(*tasks))
    except BaseException:  # cancellation included: no task outlives its group
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    if args.group_rm and not GenerateState(args).aborted:
        rewards = await load_function(args.custom_rm_path)(args, group)
        for sample, reward in zip(group, rewards, strict=True):
            sample.reward = reward
    return group


async def generate_rollout(
    args: Any, prompts: Sequence[Sample], sampling_params: dict[str, Any]
) -> tuple[list[list[Sample]], list[list[Sample]], dict[str, int]]:
    """Draw a batch of ``rollout_batch_size`` groups in rounds, filter them, and abort the rest of the last round.

    Return the groups, the groups to continue later (``partial_rollout``), and the number of dropped groups by reason.
    """
    state = GenerateState(args)
    keep_group = load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
    pending: set[asyncio.Task[list[Sample]]] = set()
    data: list[list[Sample]] = []
    dropped: Counter[str] = Counter()
    drawn = 0
    while len(data) < args.rollout_batch_size:
        while len(pending) + len(data) < args.rollout_batch_size:
            for _ in range(args.over_sampling_batch_size):
                prompt = prompts[drawn % len(prompts)]
                group = [copy.deepcopy(prompt) for _ in range(args.n_samples_per_prompt)]
                for place, sample in enumerate(group):  # as slime's data source numbers them
                    sample.group_index, sample.index = drawn, drawn * len(group) + place
                drawn += 1
                pending.add(asyncio.create_task(generate_and_rm_group(args, group, sampling_params)))
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            group = task.result()
            output = DynamicFilterOutput(True) if keep_group is None else keep_group(args, group)
            if isinstance(output, bool):
                output = DynamicFilterOutput(output)
            if not output.keep:
                dropped[f"rollout/dynamic_filter/drop_{output.reason}"] += 1
            elif len(data) < args.rollout_batch_size:
                data.append(group)
    state.aborted = True
    aborted: list[list[Sample]] = []
    await asyncio.wait(pending) if pending else None  # nothing is cancelled: each ends by itself
    if args.partial_rollout:
        aborted = [task.result() for task in pending]
        for sample in (sample for group in aborted for sample in group):
            if sample.response:
                sample.metadata.setdefault("start_rollout_id", 0)
    state.aborted = False
    return data, aborted, dict(dropped)


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
                group = await generate_and_rm_group(args, buffer.pop(0), sampling_params)
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
