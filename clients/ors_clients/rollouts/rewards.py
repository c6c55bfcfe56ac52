"""From the rewards of an episode's steps to the one number a trainer wants: pure functions, no state.

``RewardRule`` reduces step rewards as the configurations of the field say it (openreward-cookbook ``reward_reduction``,
``nonterminal_reward``, ``min_reward``, ``max_reward``; TRL's last reward; ROLL's terminal one). The result is always
clamped, also that of an episode without a single reward: two places that clamp differently disagree about it. It is a
finite number whatever the rewards: what is none is refused (``InfrastructureFailure``), not trained on.
``shape_reward`` is the Universal Reward Bridge of ROLL's Atropos integration (trainers.md, section 3).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from ors_clients.errors import ConfigurationError, InfrastructureFailure

__all__ = ["FormatMarker", "Reduction", "RewardBridge", "RewardRule", "check_reward", "shape_reward"]

Reduction = Literal["sum", "mean", "max", "min", "last", "terminal"]


@dataclass(frozen=True)
class RewardRule:
    """The rule that makes one reward of an episode's step rewards. Raises ``ConfigurationError`` for an empty rule.

    ``last`` is the last reward that was given; ``terminal`` only the one of the step that ended the episode.
    ``nonterminal_reward`` is one more reward at the end of an episode that did not reach its end by itself.
    """

    reduction: Reduction = "sum"
    nonterminal_reward: float | None = None
    min_reward: float | None = None
    max_reward: float | None = None

    def __post_init__(self) -> None:
        if self.reduction not in get_args(Reduction):
            known = ", ".join(get_args(Reduction))
            raise ConfigurationError(f"No reward reduction {self.reduction!r}", f"Use one of {known}")
        for name in ("nonterminal_reward", "min_reward", "max_reward"):
            value: float | None = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigurationError(f"{name} is {value}", "Give a finite number")
        if self.min_reward is not None and self.max_reward is not None and self.min_reward > self.max_reward:
            raise ConfigurationError(f"min_reward {self.min_reward} is over max_reward {self.max_reward}")

    def total(self, step_rewards: Sequence[float | None], *, terminal: bool) -> float:
        """Return the episode's reward. ``step_rewards``: one entry a tool call in order, None where none was given;
        ``terminal``: whether the last of them ended the episode. Raises ``InfrastructureFailure`` for one that is
        infinite or NaN."""
        rewards = [reward for reward in step_rewards if reward is not None]
        for reward in rewards:
            check_reward(reward)
        if self.reduction == "terminal":
            rewards = [reward for reward in step_rewards[-1:] if terminal and reward is not None]
        if not terminal and self.nonterminal_reward is not None:
            rewards.append(self.nonterminal_reward)
        return self._clamp(self._reduce(rewards))

    def _reduce(self, rewards: list[float]) -> float:
        if not rewards:
            return 0.0
        match self.reduction:
            case "sum":
                return _number(_sum(rewards))
            case "mean":
                return _number(_sum(rewards) / len(rewards))
            case "max":
                return float(max(rewards))
            case "min":
                return float(min(rewards))
            case "last" | "terminal":
                return float(rewards[-1])

    def _clamp(self, reward: float) -> float:
        if self.min_reward is not None:
            reward = max(reward, self.min_reward)
        if self.max_reward is not None:
            reward = min(reward, self.max_reward)
        return reward


def check_reward(reward: float) -> None:
    """Raise ``InfrastructureFailure`` for a reward that is not a finite number: the earned reward is unknown."""
    try:
        finite = math.isfinite(reward)
    except OverflowError:  # an int
        finite = False
    if not finite:
        raise InfrastructureFailure(
            f"A step's reward is {reward}, which is not a finite number", "Look at the environment."
        )


def _sum(rewards: list[float]) -> Fraction | float:
    try:
        return math.fsum(rewards)
    except OverflowError:
        return sum(map(Fraction, rewards), Fraction())  # exact, however large


def _number(value: Fraction | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


@dataclass(frozen=True)
class FormatMarker:
    """A text that a failed answer still earns something for."""

    marker: str
    reward: float


@dataclass(frozen=True)
class RewardBridge:
    """The reward of a failed answer: for each marker in it, and, up to ``length_bounty_max``, for its length."""

    format_markers: tuple[FormatMarker, ...] = (FormatMarker("<think>", 0.2), FormatMarker("\\boxed{", 0.3))
    length_bounty_max: float = 0.2


def shape_reward(base: float, text: str, bridge: RewardBridge) -> float:
    """Apply the Universal Reward Bridge: ``base`` where it is over 0; else -1, plus the reward of form and length.

    The length counts a thousandth a character. A correct answer that is worth exactly 0 counts as failed, and writing
    markers pays: it is a bridge over the first steps of a run, not a measure.
    """
    if base > 0:
        return base
    earned = math.fsum(marker.reward for marker in bridge.format_markers if marker.marker in text)
    return -1.0 + earned + min(len(text) / 1000, bridge.length_bounty_max)
