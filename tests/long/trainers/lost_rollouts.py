"""Lost rollouts in a batch, for the drivers of slime and Miles: who is lost, which filter runs, what is compared.

A trainer's own code makes the advantages of a batch with lost rollouts, and those of its survivors alone. Both have to
be equal, whatever filter the run has.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.training.groups import sample_withdrawn

from tests.clients.lost_rollout_table import Outcome
from tests.long.trainers.upstream import LOST, earn

__all__ = ["ESTIMATORS", "GROUPS", "ByTask", "advantage_arguments", "check_survivors", "keep_everything", "outcome_of"]

#: Outcomes of a group of four.
GROUPS: dict[str, list[str]] = {
    "one lost": [LOST, earn(0.9), earn(1.0), earn(0.9)],
    "all but one lost": [LOST, LOST, LOST, earn(0.9)],
    "all lost": [LOST, LOST, LOST, LOST],
}
#: A group of which nothing is lost.
WHOLE = [earn(0.0), earn(0.25), earn(1.0), earn(0.5)]
#: Arguments of the estimators.
ESTIMATORS: dict[str, dict[str, Any]] = {
    f"{name}{', normalized' if whitened else ''}": {"advantage_estimator": name, "normalize_advantages": whitened}
    for name in ("grpo", "gspo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
    for whitened in (False, True)
}


def keep_everything(args: Any, samples: Sequence[Any], **options: Any) -> bool:
    """Keep every group: a filter of a user's own, in the trainers' old form."""
    return True


class ByTask:
    """A policy that gives the episodes of each task their outcomes in order; tasks that are not named are whole."""

    def __init__(self, outcomes: Mapping[int, Sequence[str]]) -> None:
        self._left = {task: list(turns) for task, turns in outcomes.items()}
        self._lock = threading.Lock()

    def __call__(self, prompt: str) -> str:
        task = int(prompt.rpartition("Task ")[2].partition(".")[0])
        with self._lock:
            left = self._left.setdefault(task, [])
            left = self._left[task] = left or list(WHOLE)
            return left.pop(0)


def outcome_of(samples: Sequence[Any]) -> Outcome:
    """Return what became of the lost rollouts of a batch of which a group had some."""
    return "masked" if any(sample_withdrawn(sample) for sample in samples) else "redrawn"


def advantage_arguments(**more: Any) -> SimpleNamespace:
    """Return the arguments that the trainers' estimators read."""
    defaults: dict[str, Any] = {
        "use_rollout_logprobs": False,
        "kl_coef": 0.0,
        "gamma": 1.0,
        "lambd": 1.0,
        "custom_advantage_function_path": None,
        "use_opd": False,
        "qkv_format": "thd",
    }
    return SimpleNamespace(**{**defaults, **more})


def check_survivors(
    samples: Sequence[Any],
    rewards: Sequence[float],
    alone: Callable[[Sequence[Any]], Iterable[float]],
    advantages: Callable[[Sequence[Any], Sequence[float]], Sequence[Any]],
) -> None:
    """Compare the advantages of a batch's survivors with those of the same samples without the lost ones.

    ``rewards``: those that the batch is trained on; ``alone``: the trainer's own normalisation of one group;
    ``advantages``: its estimator, which returns a tensor for each sample.
    """
    kept = [place for place, sample in enumerate(samples) if not sample_withdrawn(sample)]
    expected: dict[int, float] = {}
    for index in {sample.group_index for sample in samples}:
        places = [place for place in kept if samples[place].group_index == index]
        values = list(alone([samples[place] for place in places])) if places else []
        # The deviation of one reward is not a number; it has nothing to be compared with.
        expected |= {place: 0.0 if math.isnan(value) else value for place, value in zip(places, values, strict=True)}
    found = advantages(samples, rewards)
    wanted = advantages([samples[place] for place in kept], [expected[place] for place in kept])
    for place, tensor in zip(kept, wanted, strict=True):
        mask = [bool(on) for on in samples[place].loss_mask]
        assert not any(map(math.isnan, found[place].tolist()))
        assert found[place][mask].tolist() == pytest.approx(tensor[mask].tolist(), abs=2e-4)
    assert not any(math.isnan(value) for tensor in found for value in tensor.tolist())
