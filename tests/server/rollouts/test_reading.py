"""Reading rollouts on each database: a reader sees one state of it from its first query to its last."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ors_server.rollouts.export import row_of
from ors_server.rollouts.queries.conversations import every_rollout
from ors_server.rollouts.queries.listed import RolloutFilter, count_rollouts, list_rollouts
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import NOON, at, body, message, rollout, stored

pytestmark = pytest.mark.usefixtures("database")


async def _store(folder: Path, *names: str) -> None:
    writer = RolloutWriter(at(folder))
    for number, name in enumerate(names):
        await writer.store(body(rollout(name, at=NOON + number), *(message(name, index) for index in range(3))))
    await writer.close()


@pytest.fixture
async def filled(data_dir: Path) -> Path:
    """Store more rollouts than an export reads at a time."""
    await _store(data_dir, *(f"r{number:03}" for number in range(120)))
    return data_dir


def test_each_command_reads_each_database(command: Callable[..., Any], filled: Path, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    listed = command("rollouts", "list", "--run", "run", "--json")
    shown = command("rollouts", "show", "r007", "--json")
    exported = command("rollouts", "export", "--run", "run", "--output", output)
    assert [outcome.code for outcome in (listed, shown, exported)] == [0, 0, 0], exported.err
    assert json.loads(listed.out)["total"] == 120
    assert [said["index"] for said in json.loads(shown.out)["messages"]] == [0, 1, 2]
    lines = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert lines == [row_of(each) for each in stored(filled)]
    assert [line["id"] for line in lines] == [f"r{number:03}" for number in range(120)]


async def test_a_reader_sees_one_state(filled: Path) -> None:
    """Rollouts that come while one reads are in none of its queries: a listing and its total agree."""
    with RolloutStore(at(filled)).reading() as connection:
        assert connection is not None
        assert count_rollouts(connection, RolloutFilter()) == 120
        await _store(filled, "later")
        assert len(list_rollouts(connection, RolloutFilter(), limit=500).rows) == 120
        assert count_rollouts(connection, RolloutFilter()) == 120
        assert len(list(every_rollout(connection, None))) == 120
    assert len(stored(filled)) == 121
