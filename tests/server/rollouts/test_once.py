"""An episode that a server recorded and that its client uploaded is counted once; both records stay."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ors_server import Server, Settings
from ors_server.keys.exposure import add_key
from ors_server.rollouts.queries.conversations import find_rollout
from ors_server.rollouts.queries.difficulty import Selection, task_difficulty
from ors_server.rollouts.queries.listed import RolloutFilter, count_rollouts, find_summary, group_of, list_rollouts
from ors_server.rollouts.queries.reports import scores_of
from ors_server.rollouts.queries.runs import count_runs, find_run, list_runs
from ors_server.rollouts.queries.tasks import list_tasks
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.database import open_to_write
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.clients.chat_stand_in import ChatStandIn, call
from tests.clients.evaluation.environments import Exam
from tests.clients.scripted_engine import serve_application
from tests.server.rollouts.support import at, body, message, record, rollout, rows, stored, update
from tests.support.paths import ROOT
from tests.support.servers import running_workers
from tests.support.waiting import until

Command = Callable[..., Any]


def sources(folder: Path) -> Counter[str]:
    """Count the rollouts that have ended, whether or not they are shown."""
    open_to_write(at(folder)).close()  # makes the tables
    return Counter(source for (source,) in rows(folder, "SELECT source FROM rollouts WHERE outcome IS NOT NULL"))


def numbers(folder: Path, owner: str | None = None) -> dict[str, int]:
    """Count the rollouts in each view of a store."""
    with RolloutStore(at(folder)).reading() as connection:
        assert connection is not None
        wanted = RolloutFilter(owner=owner)
        runs = list_runs(connection, owner=owner).rows
        assert [find_run(connection, each.id, owner=owner) for each in runs] == runs
        tasks = [each for run in runs for each in list_tasks(connection, run, owner=owner).rows]
        scores = [scores_of(connection, run, owner=owner) or {} for run in runs]
        hard = task_difficulty(connection, "", lambda name: True, Selection(owner=owner))
        return {
            "list": len(list_rollouts(connection, wanted).rows),
            "total": count_rollouts(connection, wanted),
            "runs": sum(each.num_rollouts for each in runs),
            "tasks": sum(each.num_rollouts for each in tasks),
            "passed": sum(each.num_passed for each in tasks),
            "scores": sum(each.samples for found in scores for each in found.values()),
            "difficulty": sum(each["num_rollouts"] for each in hard),
            "export": len(stored(folder)),
            "number of runs": len(runs),
            "total of runs": count_runs(connection, owner=owner),
        }


def every(count: int, *, passed: int, runs: int = 1) -> dict[str, int]:
    """Return what ``numbers`` says of so many rollouts."""
    views = dict.fromkeys(("list", "total", "runs", "tasks", "scores", "difficulty", "export"), count)
    return {**views, "passed": passed, "number of runs": runs, "total of runs": runs}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer the first question right, the others wrong."""
    return call("answer", {"text": "right" if "Question 0" in request["messages"][0]["content"] else "wrong"})


@contextmanager
def evaluating(command: Command, folder: Path) -> Generator[Command]:
    """Yield a function that evaluates three tasks twice, and that goes on with that run where it is called again."""
    Exam.reset()
    with ChatStandIn(policy=answer).serve() as base_url:
        fresh = ["--model", "scripted", "--base-url", base_url, "--split", "train", "--limit", "3", "--samples", "2"]

        def run(url: str, upload: str) -> None:
            chosen = ["--resume", "one"] if (folder / "evals").exists() else [url, *fresh, "--run", "one"]
            done = command("eval", *chosen, "--data-dir", folder, "--upload", upload)
            assert done.code == 0, done.err

        yield run


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(("first", "key"), [("session", None), ("upload", None), ("upload", "anna")])
def test_an_evaluation_is_counted_once(
    command: Command, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, key: str | None
) -> None:
    monkeypatch.setattr("ors_server.rollouts.recorder.INTERVAL", 0.02 if first == "session" else 3600)
    settings = Settings(data_dir=data_dir, record=True)
    if key is not None:
        monkeypatch.setenv("ORS_API_KEY", add_key(settings, key))
    app = Server([Exam], settings=settings).app
    with evaluating(command, tmp_path / "runs") as evaluate, serve_application(app) as url:
        if first == "session":
            evaluate(url, "none")
            asyncio.run(until(lambda: sources(data_dir) == {"session": 6}))
            # An evaluation opens sessions by their tasks, without the index that difficulty needs.
            assert numbers(data_dir) == {**every(6, passed=2), "difficulty": 0}
        evaluate(url, url)
        assert sources(data_dir) == ({"session": 6, "upload": 6} if first == "session" else {"upload": 6})
    assert app.recorder is not None
    app.recorder.close()
    asyncio.run(app.rollouts.close())
    assert sources(data_dir) == {"session": 6, "upload": 6}
    assert numbers(data_dir) == numbers(data_dir, key) == every(6, passed=2)
    assert {(each["source"], each["owner"]) for each in stored(data_dir)} == {("upload", key)}
    assert not any(each["counterpart"]["differs"] for each in stored(data_dir))


@pytest.mark.long
@pytest.mark.usefixtures("database")
def test_behind_gateways_too(command: Command, data_dir: Path, tmp_path: Path) -> None:
    """A session there has the id that its client sees."""
    settings: Any = {"ORS_RECORD": "1", "ORS_DATA_DIR": str(data_dir)}
    if (url := at(data_dir).url) is not None:
        settings["ORS_ROLLOUTS"] = url
    target = ROOT / "tests" / "clients" / "evaluation" / "environments.py"
    with (
        evaluating(command, tmp_path / "runs") as evaluate,
        running_workers(tmp_path / "server", target, **settings) as server,
    ):
        evaluate(server.url, server.url)
        asyncio.run(until(lambda: sources(data_dir) == {"session": 6, "upload": 6}))
    assert numbers(data_dir) == every(6, passed=2)


# --- whose session it is, and what it earned ------------------------------------------------------


async def upload(
    folder: Path,
    session: object = "s",
    *,
    name: str = "up",
    owner: str | None = None,
    rewards: Sequence[float] = (1.0,),
    outcome: str = "finished",
    **others: Any,
) -> str:
    """Store an upload that names a session."""
    head = rollout(name, environment="me/it", split="train", task_spec={"id": "one"}, step=1, **others)
    head["metadata"] = {"session": session}
    said = [message(name, index, reward=reward) for index, reward in enumerate(rewards)]
    writer = RolloutWriter(at(folder))
    await writer.store(body(*said, update(name, task_index=0, outcome=outcome), head), owner)
    await writer.close()
    return name


def find(folder: Path, name: str, owner: str | None = None) -> dict[str, Any]:
    """Return a rollout by its id, listed or not."""
    with RolloutStore(at(folder)).reading() as connection:
        assert connection is not None
        return find_rollout(connection, name, owner=owner)


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("owner", "claimed_by", "hidden"),
    [
        (None, None, True),
        ("anna", "anna", True),
        ("anna", "ben", False),
        ("anna", None, False),
        (None, "ben", False),
    ],
)
async def test_a_claim_hides_the_sessions_of_its_own_key_only(
    data_dir: Path, owner: str | None, claimed_by: str | None, hidden: bool
) -> None:
    recorded = await record(data_dir, owner=owner, rewards=(1.0,))
    await upload(data_dir, owner=claimed_by)
    shown = {"up"} if hidden else {"up", recorded}
    assert {each["id"] for each in stored(data_dir)} == shown
    assert numbers(data_dir)["runs"] == len(shown)
    if owner is not None and not hidden:
        assert numbers(data_dir, owner) | {"export": 1} == every(1, passed=1)
    found = find(data_dir, recorded, owner)
    assert (found["source"], found["outcome"], found["owner"]) == ("session", "finished", owner)
    counterpart = {"id": "up", "reward": 1.0, "differs": False} if hidden else None
    assert found["counterpart"] == counterpart
    assert find(data_dir, "up")["counterpart"] == (counterpart and {**counterpart, "id": recorded})


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("session", [None, "", 7, ["s"], {"s": "s"}, "other", "s" * 5000])
async def test_what_names_no_session_hides_none(data_dir: Path, session: object) -> None:
    await record(data_dir, rewards=(1.0,))
    await upload(data_dir, session)
    assert numbers(data_dir) == every(2, passed=2, runs=2)


@pytest.mark.usefixtures("database")
async def test_a_session_without_an_upload_is_counted(data_dir: Path) -> None:
    recorded = await record(data_dir, "one", rewards=(1.0,))
    await record(data_dir, "two", rewards=(0.0,))
    await upload(data_dir, "two", rewards=(0.0,))
    assert numbers(data_dir) == every(2, passed=1, runs=2)
    assert {each["id"] for each in stored(data_dir)} == {"up", recorded}


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("recorded", "uploaded", "differs"),
    [
        ({"rewards": (0.25, 1.0)}, {"rewards": (0.25, 1.0)}, False),
        ({"rewards": (0.1, 0.2)}, {"rewards": (0.3,)}, False),
        ({"rewards": (0.0,)}, {"rewards": (1.0,)}, True),
        ({"rewards": (1.0,)}, {"rewards": (0.5, 1.0)}, True),
        # By the rule of the upload's run.
        ({"rewards": (0.5, 1.0)}, {"rewards": (1.0,), "run_info": {"reward": "max"}}, False),
        ({"rewards": (0.5, 1.0)}, {"rewards": (0.75, 0.75), "run_info": {"reward": "max"}}, True),
        # A failed episode that its client calls lost is in no mean.
        ({"rewards": (0.0,)}, {"rewards": (), "outcome": "lost"}, True),
        ({"rewards": (1.0,), "outcome": "lost"}, {"rewards": (1.0,)}, True),
        ({"rewards": (1.0,), "outcome": "lost"}, {"rewards": (), "outcome": "lost"}, False),
        # An evaluation says 0 of an episode that no call rewarded.
        ({"rewards": (), "outcome": "deleted"}, {"rewards": (0.0,)}, False),
        ({"rewards": (), "outcome": "deleted"}, {"rewards": (0.5,)}, True),
        # It goes on, and its reward is not known yet.
        ({"rewards": (), "outcome": None}, {"rewards": (1.0,)}, False),
    ],
)
async def test_a_reward_other_than_the_recorded_one_is_shown(
    data_dir: Path, recorded: dict[str, Any], uploaded: dict[str, Any], differs: bool
) -> None:
    kept = await record(data_dir, **recorded)
    await upload(data_dir, **uploaded)
    [row] = stored(data_dir)
    assert row["counterpart"]["id"] == kept
    assert row["counterpart"]["differs"] is differs
    assert find(data_dir, kept)["counterpart"]["differs"] is differs
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        [listed] = list_rollouts(connection, RolloutFilter()).rows
    assert listed.as_json()["counterpart"] == row["counterpart"]


@pytest.mark.usefixtures("database")
async def test_a_session_that_was_played_twice_under_one_id_shows_the_reward_that_differs(data_dir: Path) -> None:
    failed = await record(data_dir, rewards=(0.0,))
    await record(data_dir, rewards=(1.0,))
    await upload(data_dir)
    [row] = stored(data_dir)
    assert row["counterpart"] == {"id": failed, "reward": 0.0, "differs": True}


async def test_a_group_of_a_recorded_session_has_it_and_what_is_counted(data_dir: Path) -> None:
    hidden = await record(data_dir, "one", rewards=(1.0,))
    other = await record(data_dir, "two", rewards=(0.0,))
    await record(data_dir, "three", rewards=(0.0,))
    await upload(data_dir, "one", name="up-1")
    await upload(data_dir, "three", name="up-3", rewards=(0.0,))
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        [chosen] = [each for each in list_rollouts(connection, RolloutFilter()).rows if each.id == other]
        assert {each.id for each in group_of(connection, chosen)} == {other}
        [up] = [each for each in list_rollouts(connection, RolloutFilter()).rows if each.id == "up-1"]
        assert {each.id for each in group_of(connection, up)} == {"up-1", "up-3"}
        assert {each.id for each in group_of(connection, find_summary(connection, hidden))} == {hidden, other}


def test_the_commands_name_the_other_record(command: Command, data_dir: Path, tmp_path: Path) -> None:
    async def fill() -> str:
        kept = await record(data_dir, "one", rewards=(0.0,))
        await upload(data_dir, "one", name="wrong")
        await record(data_dir, "two", rewards=(1.0,))
        await upload(data_dir, "two", name="right")
        return kept

    kept = asyncio.run(fill())
    listed = command("rollouts", "list").out
    assert "1–2 of 2 rollouts" in listed
    assert [line.split()[0] for line in listed.splitlines() if "≠" in line] == ["wrong", "≠"]
    assert "≠ 1 of these rollouts: the server recorded another reward for the same session." in listed
    shown = command("rollouts", "show", "wrong").out
    assert f"{kept}, reward 0: another reward than this" in shown
    assert "another reward" not in command("rollouts", "show", "right").out
    shown = command("rollouts", "show", kept).out
    assert "wrong, reward 1: another reward than this; it is counted instead of this session" in shown
    assert command("rollouts", "export", "-o", tmp_path / "rows.jsonl").code == 0
    exported = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {row["id"]: row["counterpart"]["differs"] for row in exported} == {"wrong": True, "right": False}


def test_a_table_has_the_other_record(command: Command, data_dir: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

    async def fill() -> str:
        kept = await record(data_dir, rewards=(0.0,))
        await upload(data_dir)
        await upload(data_dir, None, name="alone")
        return kept

    kept = asyncio.run(fill())
    assert command("rollouts", "export", "-o", tmp_path / "rows.parquet").code == 0
    found = {row["id"]: row["counterpart"] for row in parquet.read_table(tmp_path / "rows.parquet").to_pylist()}
    assert found == {"up": {"id": kept, "reward": 0.0, "differs": True}, "alone": None}
