"""The reward of a Harbor task is a finite number that the verifier wrote, and nothing else is."""

from __future__ import annotations

import json

import pytest

from .harbor_rewards import REWARDS
from .parts import harbor_ctrf_report, harbor_reward


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_or_the_reason_why_there_is_none(name: str) -> None:
    files, expected = REWARDS[name]
    found = harbor_reward.read_reward(*files)
    if isinstance(expected, float):
        assert isinstance(found, harbor_reward.Reward)
        assert found.value == expected
    else:
        assert isinstance(found, harbor_reward.NoReward)
        assert found.cause == expected
        assert 10 < len(found.detail) < 300


def test_the_other_numbers_are_kept() -> None:
    found = harbor_reward.read_reward(b'{"reward": 1, "speed": 0.5}', None)
    assert found == harbor_reward.Reward(1.0, {"reward": 1.0, "speed": 0.5})


def test_a_key_that_the_caller_names_is_the_reward() -> None:
    content = b'{"reward": 1, "speed": 0.5}'
    assert harbor_reward.read_reward(content, None, key="speed") == harbor_reward.Reward(
        0.5, {"reward": 1, "speed": 0.5}
    )
    missing = harbor_reward.read_reward(content, None, key="size")
    assert missing == harbor_reward.NoReward(
        "ambiguous", "no number is called 'size': the verifier gives reward, speed"
    )


def test_a_report_of_tests_explains_and_never_fails() -> None:
    tests = [
        {"name": "test_a", "status": "failed", "message": "m", "trace": "t", "duration": 1},
        {"name": "test_b", "status": "pending"},
        {"name": 5, "status": ["x"], "trace": 5},
        "x",
    ]
    assert harbor_ctrf_report.reported_tests(json.dumps({"results": {"tests": tests}}).encode()) == [
        {"name": "test_a", "outcome": "failed", "output": "m\nt"},
        {"name": "test_b", "outcome": "skipped", "output": ""},
        {"name": 5, "outcome": None, "output": ""},
    ]
    for content in (b"", b"{", b"\xff", b"[]", b'{"results": 5}', b'{"results": {"tests": 5}}', b"[" * 100_000):
        assert harbor_ctrf_report.reported_tests(content) == []
