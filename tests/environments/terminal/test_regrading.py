"""Final states of Harbor episodes: kept where the operator wants it, and graded again after a test was repaired."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ors_clients import Client
from ors_containers.errors import StoreFailed

from tests.server.rollouts.support import stored
from tests.support.waiting import until

from .conftest import Service
from .folders import run_tasks, tasks_command
from .harbor_folders import write_harbor_folder
from .parts import harbor_final_states, harbor_regrading
from .server import serving
from .test_harbor_prepared import ON_HOST, TESTS, played, prepared

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEEPING = {"keep_final_states": 1.0}
#: It also looks at the time of a file, which a kept layer has to have.
DATED = TESTS.replace("&& reward=1", "&& [ $(stat -c %Y /app/old) = 1000 ] && reward=1")
REPAIRED = DATED.replace("grep -qx 42", "grep -q 42")
SOLUTION = "#!/bin/sh\ntouch -d @1000 /app/old\necho 42 >/app/answer.txt\n"
NEARLY = ("touch -d @1000 /app/old", "echo '42 ' >/app/answer.txt")


@pytest.fixture(autouse=True)
def _containers(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    if service.runtime.name != "bubblewrap":
        pytest.skip("this runtime has no containers")
    monkeypatch.setenv("ORS_IMAGES", str(service.store.root))
    for hold in (service.store.root / "holds").glob("*"):
        hold.unlink()
    monkeypatch.setattr(harbor_final_states, "_counted", {})


def dated(parent: Path, name: str = "dated") -> Path:
    """Write a task of its own content: what was prepared of it in another test is not of use."""
    files = {**ON_HOST, "tests/test.sh": DATED, "solution/solve.sh": SOLUTION, "tests/own": str(parent)}
    return write_harbor_folder(parent, name, files)


async def regraded(service: Service, *folders: Path) -> list[Any]:
    """Grade all states again, by their own folders or by those that are given; oldest first."""
    found = [harbor_regrading.FoundFolder(folder) for folder in folders] or None
    tasks = harbor_regrading.PreparedTasks(found, {}, flag=False)
    states = [state for state in harbor_final_states.find_states(service.store) if tasks.concern(state)]
    work = harbor_regrading.regrade_states(service, states, tasks, jobs=2)
    return sorted([each async for each in work], key=lambda each: each.state.graded_at)


async def test_a_state_is_graded_again_after_a_test_was_repaired(service: Service, tmp_path: Path) -> None:
    folder = dated(tmp_path)
    ((record,), _) = await prepared(service, folder)
    assert record.ready, record.problem
    cheat = "mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.json"
    for commands in (NEARLY, (cheat,)):
        assert (await played(service, folder, *commands, **KEEPING)).reward == 0.0
    kept = harbor_final_states.find_states(service.store)
    assert [(state.task, state.key, state.reward) for state in kept] == [("dated", record.key, 0.0)] * 2
    assert not (service.store.layers.path(kept[0].layer) / "tmp" / ".shell-state").exists()
    assert kept[0].image == service.store.record(record.image).layers
    layers = [state.layer for state in kept]
    assert service.store.layers._leases.unmarked(layers) == layers

    (folder / "tests" / "test.sh").write_text(REPAIRED)
    assert all("is not prepared" in each.problem for each in await regraded(service))
    ((repaired,), _) = await prepared(service, folder)
    assert repaired.ready and repaired.image != record.image
    await service.store.prune(unused_days=0)
    honest, cheated = await regraded(service)
    assert (honest.problem, honest.verdict.reward, honest.changed, honest.key) == ("", 1.0, True, repaired.key)
    assert (cheated.problem, cheated.verdict.reward, cheated.changed) == ("", 0.0, False)


@pytest.mark.long
async def test_what_cannot_be_graded_again_is_named(service: Service, tmp_path: Path) -> None:
    folders = [dated(tmp_path, name) for name in ("moved", "rebuilt", "lost")]
    await prepared(service, *folders)
    for folder in folders:
        await played(service, folder, *NEARLY, f"touch /app/{folder.name}", **KEEPING)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.move(folders[0], moved)
    (folders[1] / "environment" / "Dockerfile").write_text("FROM host\nWORKDIR /app\nRUN echo new >/srv/new\n")
    await prepared(service, folders[1])
    shutil.rmtree(service.store.layers.path(harbor_final_states.find_states(service.store)[2].layer))
    service.store.layers.close()
    gone, rebuilt, lost = await regraded(service)
    assert gone.problem.startswith("The Harbor task 'moved' is no longer there")
    assert "has changed since" in rebuilt.problem
    assert "no longer in the store" in lost.problem
    # By its name it is found in another folder, and states of other tasks are left out.
    (found,) = await regraded(service, moved)
    assert (found.problem, found.verdict.reward) == ("", 0.0)


@pytest.mark.long
@pytest.mark.parametrize("limit", ["keep_final_states", "final_state_size", "final_states_size", "the disk"])
async def test_a_state_without_room_changes_no_verdict(
    service: Service, tmp_path: Path, limit: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dated(tmp_path)
    await prepared(service, folder)
    changes: dict[str, Any] = dict(KEEPING)
    if limit == "the disk":

        async def full(*_: object, **__: object) -> None:
            raise StoreFailed("the disk is full")

        monkeypatch.setattr(service.store, "keep", full)
    else:
        changes[limit] = 2 * (limit != "keep_final_states")
    assert (await played(service, folder, *SOLUTION.splitlines(), **changes)).reward == 1.0
    assert harbor_final_states.find_states(service.store) == []
    assert ("a final state is not kept" in caplog.text) is (limit != "keep_final_states")


def play(url: str, *commands: str) -> float | None:
    """Play the only task of a server with a client of its own, and return the last reward."""
    with Client(url) as client:
        environment = client.environment("terminalenvironment")
        (task,) = environment.tasks("train")
        with environment.session(task=task) as session:
            for command in commands:
                session.call("bash", {"command": command})
            return session.call("done").reward


@pytest.mark.long
async def test_from_a_recorded_episode_to_both_verdicts(service: Service, tmp_path: Path, isolated: None) -> None:
    folder = dated(tmp_path / "tasks")
    await prepared(service, folder)
    images, data = service.store.root, tmp_path / "data"
    nothing = run_tasks(images, "regrade")
    assert (nothing.returncode, "ORS_TERMINAL_KEEP_FINAL_STATES" in nothing.stderr) == (2, True)
    variables = {"ORS_TERMINAL_KEEP_FINAL_STATES": "1", "ORS_DATA_DIR": str(data)}
    with serving(tmp_path / "s", images, "terminal", "--record", "--tasks", tmp_path / "tasks", **variables) as url:
        assert await asyncio.to_thread(play, url, *NEARLY) == 0.0
        assert await asyncio.to_thread(play, url, *SOLUTION.splitlines()) == 1.0
        (folder / "tests" / "test.sh").write_text(REPAIRED)
        early = run_tasks(images, "regrade", "--data-dir", data)
        assert early.returncode == 1
        assert "2 not graded: The Harbor task 'dated'" in early.stdout
        assert "No new verdict is stored" in early.stdout
        await prepared(service, folder)
        # The server still runs, and has the database open.
        done = run_tasks(images, "regrade", tmp_path / "tasks", "--task", "dated", "--data-dir", data)
        assert done.returncode == 0, done.stderr
        assert "Graded again: 2 of 2 episodes. Rewards changed: 1, higher: 1." in done.stdout
        assert "New verdicts stored" in done.stdout
    # One that is killed as it grades leaves nothing that the next one minds.
    command, environment = tasks_command(images, "regrade", "--data-dir", data)
    killed = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL)
    await until(lambda: any((images / "tmp").iterdir()))
    killed.kill()
    await killed.wait()
    listed = run_tasks(images, "regrade", "--task", "dated", "--task", "other", "--data-dir", data, "--json")
    report = json.loads(listed.stdout)
    assert (listed.returncode, report["problems"]) == (1, ["no episode of 'other' is kept"])
    assert not any((images / "tmp").iterdir())
    assert [each["reward"] for each in report["episodes"]] == [{"before": 0.0, "now": 1.0}, {"before": 1.0, "now": 1.0}]
    again = {row["reward"]: row["regrade"] for row in stored(data)}
    assert {before: (each["previous_reward"], each["reward"]) for before, each in again.items()} == {
        0.0: (0.0, 1.0),
        1.0: (1.0, 1.0),
    }
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "rollouts.sqlite3").write_text("words " * 99)
    failed = run_tasks(images, "regrade", "--data-dir", damaged)
    assert failed.returncode == 1
    assert "Graded again: 2 of 2" in failed.stdout
    assert "New verdicts are not stored: The file of rollouts" in failed.stdout
