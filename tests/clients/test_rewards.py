"""Rewards: each reduction, the non-terminal reward, the clamp, and the Universal Reward Bridge."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.rollouts.rewards import FormatMarker, Reduction, RewardBridge, RewardRule, shape_reward


@pytest.mark.parametrize(
    ("reduction", "terminal", "expected"),
    [
        ("sum", True, 2.5),
        ("mean", True, 2.5 / 3),
        ("max", True, 2.0),
        ("min", True, -0.5),
        ("last", True, -0.5),
        ("terminal", True, -0.5),
        ("sum", False, 2.5),
        ("last", False, -0.5),
        ("terminal", False, 0.0),
    ],
)
def test_reductions_leave_out_steps_without_a_reward(reduction: Reduction, terminal: bool, expected: float) -> None:
    assert RewardRule(reduction).total([1.0, None, 2.0, -0.5], terminal=terminal) == pytest.approx(expected)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "last", "terminal"])
def test_an_episode_that_does_not_end_gets_the_nonterminal_reward(reduction: Reduction) -> None:
    rule = RewardRule(reduction, nonterminal_reward=-1.0)
    assert rule.total([], terminal=False) == -1.0
    assert rule.total([], terminal=True) == 0.0
    assert rule.total([None], terminal=True) == 0.0
    expected = {"sum": 0.0, "mean": 0.0, "max": 1.0, "min": -1.0, "last": -1.0, "terminal": -1.0}
    assert rule.total([1.0], terminal=False) == expected[reduction]


def test_terminal_is_the_reward_of_the_step_that_ended_the_episode() -> None:
    rule = RewardRule("terminal")
    assert rule.total([5.0, 1.0], terminal=True) == 1.0
    assert rule.total([5.0, None], terminal=True) == 0.0


def test_an_episode_without_rewards_is_clamped_too() -> None:
    assert RewardRule(min_reward=0.5).total([], terminal=True) == 0.5
    assert RewardRule(max_reward=-1.0).total([], terminal=False) == -1.0


@pytest.mark.parametrize(
    "settings",
    [
        {"reduction": "median"},
        {"min_reward": 1.0, "max_reward": 0.0},
        {"nonterminal_reward": math.nan},
        {"max_reward": math.inf},
    ],
)
def test_an_invalid_rule_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        RewardRule(**settings)  # type: ignore[arg-type]


_REWARDS = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=8)
_BOUNDS = st.floats(-10, 10)


@given(
    rewards=_REWARDS,
    terminal=st.booleans(),
    reduction=st.sampled_from(["sum", "mean", "max", "min", "last", "terminal"]),
    nonterminal=st.none() | st.floats(-10, 10),
    bounds=st.tuples(_BOUNDS, _BOUNDS),
)
def test_every_reward_is_finite_and_in_its_bounds(
    rewards: list[float | None],
    terminal: bool,
    reduction: Reduction,
    nonterminal: float | None,
    bounds: tuple[float, float],
) -> None:
    low, high = sorted(bounds)
    total = RewardRule(reduction, nonterminal, low, high).total(rewards, terminal=terminal)
    assert isinstance(total, float)
    assert low <= total <= high
    given_rewards = [reward for reward in rewards if reward is not None]
    unbounded = RewardRule(reduction, nonterminal).total(rewards, terminal=terminal)
    if terminal and given_rewards and reduction in ("max", "min", "last"):
        assert unbounded in given_rewards


@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "last", "terminal"])
@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge")])
def test_a_reward_that_is_not_a_number_is_refused(reduction: Reduction, reward: float) -> None:
    rule = RewardRule(reduction, min_reward=0.0, max_reward=1.0)
    with pytest.raises(InfrastructureFailure, match="not a finite number"):
        rule.total([1.0, -reward, reward], terminal=True)


def test_sums_that_no_number_can_hold() -> None:
    largest = sys.float_info.max
    assert RewardRule("sum").total([largest, largest], terminal=True) == largest
    assert RewardRule("sum").total([-largest, -largest], terminal=True) == -largest
    assert RewardRule("sum").total([largest, largest, -largest], terminal=True) == largest
    assert RewardRule("mean").total([largest, largest], terminal=True) == largest


def test_the_bridge_keeps_what_an_answer_earned() -> None:
    assert shape_reward(0.25, "<think> \\boxed{", RewardBridge()) == 0.25


@pytest.mark.parametrize(
    ("base", "text", "expected"),
    [
        (0.0, "", -1.0),
        (-3.0, "", -1.0),
        (0.0, "<think>", -1.0 + 0.2 + 0.007),
        (0.0, "\\boxed{1} <think>", -1.0 + 0.5 + 0.017),
        (0.0, "a" * 100, -0.9),
        (0.0, "a" * 1000, -0.8),
        (0.0, "<think>" * 1000, -1.0 + 0.2 + 0.2),
    ],
)
def test_the_bridge_pays_a_failed_answer_for_form_and_length(base: float, text: str, expected: float) -> None:
    assert shape_reward(base, text, RewardBridge()) == pytest.approx(expected)


def test_the_bridge_takes_other_markers() -> None:
    bridge = RewardBridge((FormatMarker("####", 0.4),), length_bounty_max=0.0)
    assert shape_reward(0.0, "#### 5 <think>", bridge) == pytest.approx(-0.6)
