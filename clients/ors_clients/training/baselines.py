"""Rewards of a batch relative to their groups: slime's and Miles' normalisation, with lost rollouts left out.

Both trainers make the baseline of a group of every sample's reward. A sample without a reward carries 0.0 there, for
they make a tensor of all of them. Its mask of zeros keeps its own tokens out of the loss, but not that 0.0 out of the
others' mean and deviation. Invariant: what a sample is trained on does not depend on how many of its siblings were
lost; a lost sample's own value is 0.0; no value is NaN.

Sources: slime ``slime/ray/rollout.py`` (``_post_process_rewards``); Miles
``miles/ray/rollout/train_data_conversion.py`` (``_normalize_rewards_by_rollout``).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

from ors_clients.training.groups import flatten, sample_withdrawn

__all__ = ["normalized_rewards"]

#: Estimators whose rewards the trainers make relative to the mean of the group, and those that divide them as well.
_CENTERED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")
_EPSILON = 1e-6


def normalized_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the rewards of a batch as they were earned, and as they are trained on: one of each for every sample.

    Lost samples have the mean of the others as what they earned, so that they are in no mean that the trainer logs.
    """
    batch = list(flatten(samples))
    kept = [place for place, sample in enumerate(batch) if not sample_withdrawn(sample)]
    earned = {place: float(batch[place].get_reward_value(args)) for place in kept}
    mean = statistics.fmean(earned.values()) if earned else 0.0
    raw = [earned.get(place, mean) for place in range(len(batch))]
    estimator = getattr(args, "advantage_estimator", None)
    if estimator not in _CENTERED or not getattr(args, "rewards_normalization", True):
        return raw, [earned.get(place, 0.0) for place in range(len(batch))]
    scaled = estimator in _SCALED and getattr(args, "grpo_std_normalization", True)
    trained = [0.0] * len(batch)
    for group in _groups(args, batch):
        rollouts: dict[Hashable, list[int]] = defaultdict(list)
        for place in group:
            if place in earned:
                rollouts[_rollout(batch[place], place)].append(place)
        # Samples of one rollout share its reward, which counts once.
        rewards = [earned[places[0]] for places in rollouts.values()]
        for places, value in zip(rollouts.values(), _relative(rewards, scaled=scaled), strict=True):
            for place in places:
                trained[place] = value
    return raw, trained


def _relative(rewards: Sequence[float], *, scaled: bool) -> list[float]:
    """Return the rewards less their mean, divided by their deviation where that is wanted and there is one."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    deviation = statistics.stdev(rewards, mean) if scaled else 0.0
    return [(reward - mean) / (deviation + _EPSILON) if deviation else reward - mean for reward in rewards]


def _groups(args: Any, batch: Sequence[Any]) -> list[list[int]]:
    """Return the places of each prompt's samples."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    indices = [getattr(sample, "group_index", None) for sample in batch]
    size = getattr(args, "n_samples_per_prompt", 0) or len(batch)
    whole = len(batch) == size * (getattr(args, "rollout_batch_size", 0) or 0)
    for place, sample in enumerate(batch):
        if None not in indices:
            # With several adapters each has prompts of its own.
            groups[getattr(getattr(sample, "adapter", None), "slot", None), indices[place]].append(place)
        else:
            groups[place // size if whole else 0].append(place)
    return list(groups.values())


def _rollout(sample: Any, place: int) -> Hashable:
    """Return the rollout that a sample is a part of; agents make several of one."""
    for name in ("rollout_id", "index"):
        if (number := getattr(sample, name, None)) is not None:
            return number
    return ("sample", place)
