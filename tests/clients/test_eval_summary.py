"""The figures of ``ors-server eval``, of journals that are made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ors_clients.evaluation.attempts import Attempt, Loss
from ors_clients.evaluation.journal import RunRecord
from ors_clients.evaluation.report import markdown
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices, failed_by, summarize

_LOSS = Loss("environment", "SessionLost", "gone")


def record_of(tasks: int, *attempts: Attempt, samples: int = 1) -> RunRecord:
    """Return a run of so many tasks."""
    settings = EvaluationSettings(target="t", model="m", base_url="http://e", samples=samples)
    described = [{"split": "train", "index": index, "hash": str(index)} for index in range(tasks)]
    return RunRecord("run", settings, described, "2026-01-01", attempts=list(attempts))


def attempt_of(task: int, reward: float | None, *, number: int = 0, turns: int = 1, **fields: Any) -> Attempt:
    """Return an attempt; one without a reward was lost."""
    made: Mapping[str, Any] = {
        "sample": 0, "rollout_id": "r", "stop": "finished" if reward is not None else "failed", "tool_calls": 1,
        "mistakes": {}, "requests": turns, "retried": {}, "prompt_tokens": 100, "completion_tokens": 10,
        "cached_tokens": 0, "uncounted": 0, "seconds": 1.0, "generation_seconds": 0.5, "tool_seconds": 0.5,
    }  # fmt: skip
    lost = _LOSS if reward is None else None
    return Attempt(task=task, attempt=number, reward=reward, lost=lost, turns=turns, **{**made, **fields})


@pytest.mark.parametrize("early", [0, 30, 3000])
def test_losses_before_the_first_turn_hide_no_later_ones(early: int) -> None:
    late = [attempt_of(task, None) for task in range(2)]
    scored = [attempt_of(task, 1.0, number=1) for task in range(10)]
    # One that had no room for its prompt took no turn either.
    scored.append(attempt_of(10, 0.0, turns=0, stop="context_overflow"))
    lost = [attempt_of(5, None, number=2 + number, turns=0) for number in range(early)]
    run = record_of(11, *late, *scored, *lost)
    assert failed_by(run, 0.05) == [
        "2 of the 12 attempts in which the model had taken a turn were lost (16.7%)",
    ]
    assert failed_by(record_of(11, *scored, *lost), 0.0) == []


def test_a_share_that_equals_the_limit_is_not_over_it() -> None:
    for count in range(1, 101):
        limit = float(f"{count / 100:.2f}")
        attempts = [attempt_of(task, None) for task in range(count)]
        attempts += [attempt_of(task, 1.0, number=1) for task in range(100 - count)]
        assert failed_by(record_of(100 - count, *attempts), limit) == []
        run = record_of(100, *(attempt_of(task, 1.0) for task in range(100 - count)))
        assert failed_by(run, limit) == []
        assert failed_by(run, limit - 0.001) == [f"{count} of 100 samples are missing ({count}.0%)"]
