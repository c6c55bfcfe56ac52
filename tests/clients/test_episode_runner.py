"""Destinations of rollouts; runs that continue or end when their infrastructure loses rollouts."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.errors import InfrastructureFailure, SessionLost
from ors_clients.models import Task
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.training import process_state
from ors_clients.training.config import TrainingConfiguration
from ors_clients.training.dataset import TaskRow
from ors_clients.training.episode_runner import EpisodeRunner

from tests.clients.trainer_setup import write_configuration

ROW = TaskRow("a", Task(environment="a", split="train", index=0, spec={}))
LOST = SessionLost("The server was started again")


def runner(**options: Any) -> EpisodeRunner:
    return EpisodeRunner(TrainingConfiguration.parse({"environments": {"a": {}}, **options}))


def lose(runner: EpisodeRunner, count: int) -> None:
    """Begin ``count`` rollouts, and then lose all of them."""
    begun = [time.monotonic() for _ in range(count)]
    for each in begun:
        runner.count_failure(ROW, LOST, each)


def test_a_restart_of_the_server_under_the_shipped_settings_does_not_end_a_run() -> None:
    """run.sh has 32 prompts with 16 rollouts each in flight; as many again start while the server is still down."""
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


# --- uploads -------------------------------------------------------------------------------------


class Recorder:
    """Replaces ``RolloutsSink``: records the environments and destinations of rollouts."""

    def __init__(self, sent: list[tuple[str, str]], url: str) -> None:
        self.sent, self.url = sent, url

    def submit(self, trajectory: Trajectory, labels: Any) -> None:
        self.sent.append((self.url, labels.environment))

    async def close(self, seconds: float = 10.0) -> None:
        self.sent.append((self.url, "closed"))


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("upload", [False, True])
async def test_rollouts_are_uploaded_to_the_server_of_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upload: bool, elsewhere: bool
) -> None:
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(process_state, "RolloutsSink", lambda url="elsewhere": Recorder(sent, url))
    monkeypatch.delenv("OPENREWARD_API_URL", raising=False)
    if elsewhere:
        monkeypatch.setenv("OPENREWARD_API_URL", "http://elsewhere")
    environments = {"a": {}, "b": {"base_url": "http://bs-own/"}, "c": {}, "d": {"base_url": "http://bs-own"}}
    file = write_configuration(tmp_path, "http://of-the-run", environments, upload_rollouts=upload)
    runner = process_state.episode_runner(SimpleNamespace(train_config=str(file)))
    for name in environments:
        row = TaskRow(name, Task(environment=name, split="train", index=0, spec={}))
        runner.send(row, Trajectory("id", row), 1.0)
    await process_state.close_all()
    own = {"a": "http://of-the-run", "b": "http://bs-own", "c": "http://of-the-run", "d": "http://bs-own"}
    places = {name: "elsewhere" if elsewhere else url for name, url in own.items()}
    expected = [(url, name) for name, url in places.items()] if upload else []
    assert sent[: len(expected)] == expected
    # One sink for each server.
    assert sorted(sent[len(expected) :]) == sorted((url, "closed") for url in set(places.values()) if upload)
