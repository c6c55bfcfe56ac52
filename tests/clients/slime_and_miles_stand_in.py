"""Parts of the stand-ins of slime and Miles: the sample, the caller of a generate function, and batches of groups.

Miles is a fork of slime. Written in our own words after ``slime/utils/types.py`` (``Sample``) and
``slime/rollout/sglang_rollout.py`` of THUDM/slime, and the same of radixark/miles: ``miles/utils/types.py`` and
``miles/rollout/inference_rollout``. ``Trainer`` holds what differs.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import logging
import sys
import types
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["BaseSample", "DynamicFilterOutput", "Trainer", "call_generate", "install_modules", "load_function"]

_log = logging.getLogger(__name__)


@dataclass
class BaseSample:
    """The fields that ``Sample`` has in both trainers."""

    group_index: int | None = None
    index: int | None = None
    prompt: str | list[dict[str, Any]] = ""
    tokens: list[int] = field(default_factory=list[int])
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list[str])
    rollout_log_probs: list[float] | None = None
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
    session_id: str | None = None
    non_generation_time: float = 0.0

    def get_reward_value(self, args: Any) -> float:
        """Return the reward, or the one that ``--reward-key`` names."""
        return self.reward[args.reward_key] if getattr(args, "reward_key", None) else self.reward  # type: ignore[index, return-value]

    def _finish(self, meta_info: dict[str, Any]) -> None:
        """Read what the engine says of a generation's end."""
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        finished = {"length": "TRUNCATED", "abort": "ABORTED", "stop": "COMPLETED"}
        self.status = self.Status[finished[meta_info["finish_reason"]["type"]]]


@dataclass
class DynamicFilterOutput:
    """``rollout.filter_hub.base_types.DynamicFilterOutput``; Miles has no ``keep_when_insufficient``."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def install_modules(monkeypatch: Any, modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Make modules with these contents importable during a test, with the packages that they are in."""
    parents = {name.rsplit(".", depth)[0] for name in modules for depth in range(1, name.count(".") + 1)}
    for name in sorted({*modules, *parents}):
        module = types.ModuleType(name)
        vars(module).update(modules.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)


def load_function(path: str) -> Callable[..., Any]:
    """Load a function by its path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


async def call_generate(
    function: Callable[..., Any], args: Any, sample: BaseSample, sampling_params: dict[str, Any], evaluation: bool
) -> Any:
    """Call a generate function of slime's form, which may take ``evaluation``."""
    more = {"evaluation": evaluation} if "evaluation" in inspect.signature(function).parameters else {}
    return await function(args, sample, sampling_params, **more)


@dataclass(frozen=True)
class Trainer:
    """One of the trainers, in what differs from the other. A state of it has ``aborted``."""

    #: Calls the generate function with arguments, state, sample, sampling parameters, and whether it is an evaluation.
    generate: Callable[[Any, Any, Any, dict[str, Any], bool], Awaitable[Any]]
    #: Whether a group's exception is logged and another group drawn.
    logs_errors: bool
    #: Whether a reward of a group is refused where the sample has one.
    rewards_once: bool
    #: Whether each sample of a group gets a ``session_id``.
    names_sessions: bool

    async def generate_and_rm(
        self, args: Any, state: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
    ) -> Any:
        """Run one sample through the custom functions; a sample, or several of one rollout."""
        status = sample.Status
        if sample.status in (status.COMPLETED, status.TRUNCATED):
            assert args.group_rm or sample.reward is not None
            return sample
        if state.aborted:
            sample.status = status.ABORTED
            return sample
        played = await self.generate(args, state, sample, dict(sampling_params), evaluation)
        if args.group_rm:
            return played
        samples: list[Any] = [played] if isinstance(played, BaseSample) else played
        if not any(one.status == status.ABORTED for one in samples):
            for one in samples:
                if one.reward is None:
                    path = getattr(one, "custom_rm_path", None) or args.custom_rm_path
                    one.reward = await load_function(path)(args, one)
        return played

    async def generate_group(
        self, args: Any, state: Any, group: Sequence[Any], sampling_params: dict[str, Any]
    ) -> list[Any]:
        """Run the samples of one prompt at the same time."""
        for sample in group if self.names_sessions else ():
            sample.session_id = sample.session_id or str(uuid.uuid4())
        tasks = [asyncio.create_task(self.generate_and_rm(args, state, one, sampling_params)) for one in group]
        try:
            played = list(await asyncio.gather(*tasks))
        except BaseException:  # cancellation included: no task outlives its group
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        if args.group_rm and not state.aborted:
            for sample, reward in zip(played, await load_function(args.custom_rm_path)(args, played), strict=True):
                assert not self.rewards_once or sample.reward is None, "Overriding sample.reward"
                sample.reward = reward
        return played

    async def generate_rollout(
        self, args: Any, state: Any, prompts: Sequence[Any], sampling_params: dict[str, Any], seconds: float = 40.0
    ) -> tuple[list[list[Any]], list[list[Any]], dict[str, int]]:
        """Draw a batch of ``rollout_batch_size`` groups in rounds, filter them, and abort the rest of the last round.

        Return the groups, the groups to continue later (``partial_rollout``), and the number of dropped groups by
        reason. Raises ``TimeoutError`` where a trainer would go on without end.
        """
        keep_group = load_function(args.dynamic_sampling_filter_path) if args.dynamic_sampling_filter_path else None
        pending: set[asyncio.Task[list[Any]]] = set()
        data: list[list[Any]] = []
        dropped: Counter[str] = Counter()
        drawn = 0
        async with asyncio.timeout(seconds):
            while len(data) < args.rollout_batch_size:
                while len(pending) + len(data) < args.rollout_batch_size:
                    for _ in range(args.over_sampling_batch_size):
                        prompt = prompts[drawn % len(prompts)]
                        group = [copy.deepcopy(prompt) for _ in range(args.n_samples_per_prompt)]
                        for place, sample in enumerate(group):  # as the trainers' data source numbers them
                            sample.group_index, sample.index = drawn, drawn * len(group) + place
                        drawn += 1
                        pending.add(asyncio.create_task(self.generate_group(args, state, group, sampling_params)))
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if self.logs_errors and isinstance(error, Exception):
                        _log.error("[rollout] Task raised exception", exc_info=error)
                        continue
                    output = True if keep_group is None else keep_group(args, task.result())
                    if isinstance(output, bool):
                        output = DynamicFilterOutput(output)
                    if not output.keep:
                        dropped[f"rollout/dynamic_filter/drop_{output.reason}"] += 1
                    elif len(data) < args.rollout_batch_size:
                        data.append(task.result())
            state.aborted = True
            await asyncio.wait(pending) if pending else None  # nothing is cancelled: each ends by itself
        aborted = [task.result() for task in pending] if args.partial_rollout else []
        for sample in (sample for group in aborted for sample in group):
            if sample.response:
                sample.metadata.setdefault("start_rollout_id", 0)
        state.aborted = False
        return data, aborted, dict(dropped)
