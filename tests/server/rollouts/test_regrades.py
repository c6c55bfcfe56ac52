"""Verdicts of episodes that were graded again: beside the former ones, never in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.location import FILE_NAME
from ors_server.rollouts.queries.conversations import find_rollout
from ors_server.rollouts.queries.listed import RolloutFilter, list_rollouts
from ors_server.rollouts.queries.runs import list_runs
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.regrade_rows import NewVerdict, add_verdict
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import NOON, at, body, message, record, rollout, rows
from tests.server.rollouts.test_commands import Command


def verdict(session: str, reward: float, *, tests: str = "new", later: int = 0) -> NewVerdict:
    found = json.dumps({"summary": f"by {tests}, {later} \x00"})
    return NewVerdict(session, f"state-{session}", tests, reward, 0.0, None, NOON + later, found)


def shown(folder: Path, owner: str | None = None) -> dict[str, float | None]:
    """Return the new rewards of the listed rollouts, by their ids; the same as in conversations."""
    with RolloutStore(at(folder)).reading() as connection:
        assert connection is not None
        listed = list_rollouts(connection, RolloutFilter(owner=owner)).rows
        for each in listed:
            whole = find_rollout(connection, each.id, owner=owner)["regrade"]
            if whole is not None:
                assert whole.pop("verdict")["summary"].startswith(f"by {whole['tests']}")
            assert whole == (None if each.regrade is None else each.regrade.as_json())
        return {each.id: None if each.regrade is None else each.regrade.reward for each in listed}


@pytest.mark.usefixtures("database")
async def test_the_newest_verdict_is_beside_the_former(data_dir: Path) -> None:
    first, other = await record(data_dir, "a", rewards=[0.0]), await record(data_dir, "b", rewards=[1.0])
    for each in (verdict("a", 0.5, tests="older"), verdict("a", 0.0, later=1), verdict("a", 1.0, later=2)):
        assert add_verdict(at(data_dir), each)
    assert shown(data_dir) == {first: 1.0, other: None}
    assert rows(data_dir, "SELECT tests, reward FROM regrades ORDER BY tests") == [("new", 1.0), ("older", 0.5)]
    assert rows(data_dir, "SELECT total_reward FROM rollouts ORDER BY session") == [(0.0,), (1.0,)]
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        assert [run.mean_reward for run in list_runs(connection).rows] == [0.5]


@pytest.mark.usefixtures("database")
async def test_a_verdict_that_is_written_again_has_what_the_grader_found_then(data_dir: Path) -> None:
    rollout_id = await record(data_dir, "a", rewards=[0.0])
    without = NewVerdict("a", "state-a", "new", 1.0, 0.0, None, NOON)  # as an earlier version wrote it
    for each, expected in (
        (without, None),
        (verdict("a", 1.0), "by new, 0 \x00"),
        (verdict("a", 1.0, later=5), "by new, 5 \x00"),
    ):
        assert add_verdict(at(data_dir), each)
        with RolloutStore(at(data_dir)).reading() as connection:
            assert connection is not None
            found = find_rollout(connection, rollout_id)["regrade"]["verdict"]
            assert (found and found["summary"]) == expected


@pytest.mark.usefixtures("database")
async def test_an_upload_shows_the_verdict_of_its_own_keys_session(data_dir: Path) -> None:
    writer = RolloutWriter(at(data_dir))
    for owner in ("anna", "ben"):
        await writer.store(body(rollout(f"upload of {owner}", metadata={"session": "a"})), owner)
    await writer.close()
    add_verdict(at(data_dir), verdict("a", 1.0))
    assert shown(data_dir) == {"upload of anna": 1.0, "upload of ben": 1.0}
    await record(data_dir, "a", owner="anna")
    assert shown(data_dir) == {"upload of anna": 1.0, "upload of ben": None}
    assert shown(data_dir, "ben") == {"upload of ben": None}


async def test_the_commands_show_both_verdicts(command: Command, data_dir: Path) -> None:
    writer = RolloutWriter(at(data_dir))
    events = rollout("aaaa", metadata={"session": "a"}), message("aaaa", 0, reward=0.0, isFinished=True)
    await writer.store(body(*events, rollout("bbbb")))
    await writer.close()
    assert add_verdict(at(data_dir), verdict("a", 1.0))
    out = command("rollouts", "list").out
    assert "0 →1" in out
    assert "→ 1 of these rollouts were graded again" in out
    assert "reward 1, before 0; 2023-11-14 22:13 UTC, tests new" in command("rollouts", "show", "aaaa").out
    file = data_dir / "out.jsonl"
    assert command("rollouts", "export", "-o", str(file)).code == 0
    exported = {row["id"]: row for row in map(json.loads, file.read_text().splitlines())}["aaaa"]
    expected: dict[str, object] = {"reward": 1.0, "previous_reward": 0.0, "verdict_mark": None, "tests": "new"}
    expected["verdict"] = json.dumps({"summary": "by new, 0 \x00"})
    assert exported["regrade"] == {**expected, "graded_at": "2023-11-14T22:13:20.000+00:00"}
    assert exported["reward"] == 0.0


def test_without_rollouts_nothing_is_made(tmp_path: Path) -> None:
    assert not add_verdict(at(tmp_path), verdict("a", 1.0))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / FILE_NAME).write_text("words that are not a database, and enough of them to be read as its header")
    with pytest.raises(StoreUnavailable, match="damaged"):
        add_verdict(at(tmp_path), verdict("a", 1.0))
