"""The score of each task of a run, and the figures that are made of them: pass@k and the mean reward, with intervals.

``ors-server eval`` and the page of a run have these figures from here. Each task weighs the same, however many of its
samples are scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ors_server.rollouts.reports.estimators import Interval, mean_interval, pass_at_k, proportion_interval

__all__ = ["LARGEST_REWARD", "TaskScore", "default_ks", "pass_at", "reward_figures"]

#: The squares of larger rewards could not be added.
LARGEST_REWARD = 1e100


@dataclass(frozen=True)
class TaskScore:
    """The scored samples of one task."""

    task: Mapping[str, Any]
    rewards: Sequence[float]
    successes: int
    missing: int = 0
    #: Attempts that were lost after the model had taken a turn, or cut off, and samples that are missing without one.
    uncertain: int = 0
    #: Attempts that were lost at any time.
    lost: int = 0

    @property
    def samples(self) -> int:
        """Number of scored samples."""
        return len(self.rewards)

    @property
    def rate(self) -> float:
        """Share of successes."""
        return self.successes / self.samples

    @property
    def mean(self) -> float:
        """Mean reward."""
        return math.fsum(self.rewards) / self.samples


def default_ks(samples: int) -> list[int]:
    """Return the powers of two up to ``samples``, and ``samples``."""
    return sorted({*(2**power for power in range(samples.bit_length())), samples})


def pass_at(tasks: Sequence[TaskScore], k: int) -> dict[str, Any]:
    """Return pass@k over the tasks that have ``k`` scored samples, and how many of them there are."""
    enough = [task for task in tasks if task.samples >= k]
    values = [pass_at_k(task.samples, task.successes, k) for task in enough]
    trials = sum(task.samples // k for task in enough)
    return {
        "k": k,
        "value": math.fsum(values) / len(values) if values else None,
        "interval": _pair(proportion_interval(values, max(trials, len(values)))),
        "tasks": len(enough),
        "left_out": len(tasks) - len(enough),
    }


def reward_figures(tasks: Sequence[TaskScore]) -> dict[str, Any]:
    """Return the mean reward of tasks that have samples, with its interval, and the lowest and highest reward."""
    means = [task.mean for task in tasks]
    rewards = [reward for task in tasks for reward in task.rewards]
    if all(reward in (0, 1) for reward in rewards):
        interval = proportion_interval(means, len(rewards))
    else:
        interval = mean_interval(means if len(means) > 1 else rewards)
    return {
        "mean": math.fsum(means) / len(means) if means else None,
        "interval": _pair(interval),
        "lowest": min(rewards, default=None),
        "highest": max(rewards, default=None),
    }


def _pair(interval: Interval | None) -> list[float] | None:
    return None if interval is None else list(interval)
