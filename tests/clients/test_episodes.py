"""When a run whose infrastructure loses rollouts goes on, and when it ends."""

from __future__ import annotations

import time
from typing import Any

import pytest
from ors_clients.answers import Task
from ors_clients.configuration import TrainingConfiguration
from ors_clients.episodes import EpisodeRunner
from ors_clients.errors import InfrastructureFailure, SessionLost
from ors_clients.tasks import TaskRow

ROW = TaskRow("a", Task(environment="a", split="train", index=0, spec={}))
LOST = SessionLost("The server was started again")


def runner(**options: Any) -> EpisodeRunner:
    return EpisodeRunner(TrainingConfiguration.parse({"environments": {"a": {}}, **options}))


def lose(runner: EpisodeRunner, count: int) -> None:
    """So many rollouts begin, and then all of them are lost."""
    begun = [time.monotonic() for _ in range(count)]
    for each in begun:
        runner.count_failure(ROW, LOST, each)


def test_a_restart_of_the_server_under_the_shipped_settings_does_not_end_a_run() -> None:
    """run.sh has 32 prompts with 16 rollouts each in flight; and as many again that find the server still away."""
    run = runner()
    assert run.configuration.max_failures_in_row < 32 * 16
    for _ in range(4):
        lose(run, 32 * 16)


def test_a_server_that_stays_away_ends_the_run() -> None:
    run = runner(max_failures_in_row=3)
    lose(run, 10)
    lose(run, 10)
    with pytest.raises(InfrastructureFailure, match="lost 3 times in a row, the last one by this: The server was"):
        lose(run, 1)


def test_a_rollout_that_is_played_ends_the_row() -> None:
    run = runner(max_failures_in_row=2)
    for _ in range(5):
        lose(run, 3)
        run.count_failure(ROW, None, time.monotonic())
    lose(run, 1)
    with pytest.raises(InfrastructureFailure):
        lose(run, 1)
