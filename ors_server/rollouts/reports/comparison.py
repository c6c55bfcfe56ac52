"""A comparison of two runs, paired by task, so that hard and easy tasks cancel out.

``ors-server eval --compare`` and the page of two runs have their figures from here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ors_server.rollouts.reports.estimators import SIGNIFICANT, difference_interval, permutation_p
from ors_server.rollouts.reports.task_scores import TaskScore

__all__ = ["compare_scores", "differing_settings"]


def compare_scores(pairs: Sequence[tuple[TaskScore, TaskScore]]) -> dict[str, Any]:
    """Return how the first of each pair of scores differs from the second, over the tasks with samples in both."""
    paired = [(score, their) for score, their in pairs if score.samples and their.samples]
    pass_at_1 = _difference(paired, lambda score: score.rate, largest=1.0)
    if all(score.mean == score.rate for pair in paired for score in pair):
        reward = pass_at_1  # rewards of 0 and 1
    else:
        reward = _difference(paired, lambda score: score.mean)
    return {
        "tasks": len(paired),
        "left_out": len(pairs) - len(paired),
        "fewer_samples": sum(bool(score.missing or their.missing) for score, their in pairs),
        "pass_at_1": pass_at_1,
        "reward": reward,
    }


def _difference(
    pairs: Sequence[tuple[TaskScore, TaskScore]], value: Callable[[TaskScore], float], *, largest: float = math.inf
) -> dict[str, Any] | None:
    if not pairs:
        return None
    own, their = [value(score) for score, _ in pairs], [value(score) for _, score in pairs]
    differences = [mine - others for mine, others in zip(own, their, strict=True)]
    p = permutation_p(differences)
    interval = difference_interval(differences, p)
    return {
        "run": math.fsum(own) / len(own),
        "other": math.fsum(their) / len(their),
        "difference": math.fsum(differences) / len(differences),
        "interval": None if interval is None else [max(interval.low, -largest), min(interval.high, largest)],
        "better": sum(difference > 0 for difference in differences),
        "worse": sum(difference < 0 for difference in differences),
        "p": p,
        "significant": p < SIGNIFICANT,
    }


def differing_settings(own: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting in which ``others`` differs, as ``name: this → that``."""
    names = dict.fromkeys((*own, *others))
    return [
        f"{name}: {_shown(own.get(name))} → {_shown(others.get(name))}"
        for name in names
        if own.get(name) != others.get(name)
    ]


def _shown(value: Any) -> str:
    return "(not set)" if value is None else json.dumps(value, ensure_ascii=False)
