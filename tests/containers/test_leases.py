"""Leases: nothing is left behind, however a server ends."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ors_containers import BubblewrapRuntime, Limits
from ors_containers.linux.leases import Owner, make_state, sweep
from ors_containers.linux.limits.cgroups import ControlGroups
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.support.processes import processes
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def _processes_of(state: Path) -> set[int]:
    """Return processes whose mounts come from this state directory, and its launchers."""
    return {
        process for lease in _leases(state) for process, _ in lease["processes"] if Path(f"/proc/{process}").exists()
    }


def _leases(state: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text().splitlines()[-1]) for path in state.glob("owners/*/*.lease")]


def _namespaces(of: Iterable[int | str]) -> set[int]:
    """Return the network namespaces of these processes, as far as they exist."""
    found: set[int] = set()
    for process in of:
        try:
            found.add(Path(f"/proc/{process}/ns/net").stat().st_ino)
        except OSError:
            continue
    return found


def _sleepers(seconds: str) -> int:
    return len(processes(lambda arguments: arguments.endswith(f"sleep\0{seconds}\0".encode())))


@pytest.mark.parametrize(
    ("count", "also_launcher_stopped"),
    [pytest.param(200, False, marks=pytest.mark.long), (30, True)],
    ids=["200", "30 and a launcher that is stopped"],
)
async def test_a_killed_server_leaves_nothing_after_a_restart(
    runtime: NamespaceRuntime, state: Path, count: int, also_launcher_stopped: bool
) -> None:
    seconds = f"1000.{secrets.randbelow(10**9)}"  # unique, so that these processes can be recognised
    mounts = Path("/proc/self/mountinfo").read_text()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    server = subprocess.Popen(  # noqa: ASYNC220 - a process to be killed; nothing else runs on this loop
        [sys.executable, str(Path(__file__).with_name("crowd.py")), str(state), str(count), seconds],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert server.stdout is not None
    launcher = 0
    try:
        up = json.loads(await asyncio.to_thread(server.stdout.readline))
        assert [text.endswith("up\n") for text in up] == [True] * count
        await until(lambda: _sleepers(seconds) == count + 1, within=30)  # one in an examination
        leases = _leases(state)
        assert len(leases) == count
        groups = [Path(group) for lease in leases for group in lease["groups"]]
        namespaces = _namespaces(process for lease in leases for process, _ in lease["processes"]) - _namespaces(
            ["self"]
        )
        assert len(namespaces) == count
        existing = sum(group.is_dir() for group in groups)
        # each lease names a group for its examination; one of these exists
        assert existing * 2 == len(groups) * (count + 1) / count
        owners = {path.parent for path in state.glob("owners/*/*.lease")}
        assert len(owners) == 1
        described = json.loads((owners.pop() / "owner.json").read_text())
        ((launcher, _),) = described["processes"]
        # The kernel may give the same numbers again to namespaces of later processes, so only these are compared.
        everybody = processes(lambda _: True)
        if also_launcher_stopped:  # so that it cannot notice its server's end
            os.kill(launcher, signal.SIGSTOP)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()

    # The restart: a runtime that starts in the same state directory.
    async with BubblewrapRuntime(state):
        await until(lambda: _sleepers(seconds) == 0 and not Path(f"/proc/{launcher}").exists(), within=30)
        assert _processes_of(state) == set()
        assert [group for group in groups if group.exists()] == []
        assert len(list((state / "owners").iterdir())) == 2  # the fixture's and this runtime's
        assert list((state / "stage").iterdir()) == []
    assert {group.parent for group in groups if group.parent.exists()} == set()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert _namespaces(everybody) & namespaces == set()


async def test_a_living_servers_sandboxes_are_left_alone(runtime: NamespaceRuntime, state: Path) -> None:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        assert await sweep(state) == []
        assert (await sandbox.run("echo here", timeout=5)).output == b"here\n"


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process, and end it if the test has not."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


async def test_only_the_process_that_was_meant_is_ended(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    make_state(tmp_path)
    for number, change in enumerate(({"processes": [[bystander.pid, 1]]}, {"boot": "another"})):
        owner = Owner(tmp_path)
        owner.lease(f"old{number}", [bystander.pid], [])
        (path,) = tmp_path.glob(f"owners/{owner.id}/*.lease")
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        owner.close()
        assert await sweep(tmp_path) == [f"old{number}"]
        assert bystander.poll() is None
    owner = Owner(tmp_path)
    owner.lease("meant", [bystander.pid], [])
    owner.close()
    assert await sweep(tmp_path) == ["meant"]
    assert bystander.wait(5) == -signal.SIGKILL
    assert list((tmp_path / "owners").iterdir()) == []


async def test_a_group_whose_server_died_is_emptied_and_removed(tmp_path: Path) -> None:
    make_state(tmp_path)
    owner = Owner(tmp_path)
    groups = ControlGroups(owner.id)
    if not groups.enforced:
        owner.close()
        pytest.skip("no control group can be made here")
    owner.describe([], groups.parents)
    owner.lease("left", [], groups.directories("left"))
    files = groups.create("left", Limits())
    # A process without a record.
    stray = subprocess.Popen(["sleep", "1000"])  # noqa: ASYNC220 - starts at once  # noqa: ASYNC220 - the same
    for file in files:
        Path(file).write_text(str(stray.pid))
    ending = asyncio.create_task(asyncio.to_thread(stray.wait, 10))
    owner.close()
    assert await sweep(tmp_path) == ["left"]
    assert await ending == -signal.SIGKILL
    assert [path for path in groups.parents if Path(path).exists()] == []
    assert list((tmp_path / "owners").iterdir()) == []


async def test_the_last_whole_line_of_a_lease_counts(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    make_state(tmp_path)
    owner = Owner(tmp_path)
    owner.lease("torn", [], [])
    owner.lease("torn", [bystander.pid], [])
    (path,) = tmp_path.glob(f"owners/{owner.id}/*.lease")
    with path.open("a") as lease:
        lease.write('{"boot": "x", "proc')
    owner.close()
    assert await sweep(tmp_path) == ["torn"]
    assert bystander.wait(20) == -signal.SIGKILL


async def test_truncated_and_broken_leases_do_no_harm(tmp_path: Path) -> None:
    make_state(tmp_path)
    young, old = tmp_path / "owners/young", tmp_path / "owners/old"
    young.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    owner = Owner(tmp_path)
    owner.lease("broken", [], [])
    (path,) = tmp_path.glob(f"owners/{owner.id}/*.lease")
    path.write_text("{")
    owner.close()
    assert await sweep(tmp_path) == ["broken"]
    assert list((tmp_path / "owners").iterdir()) == [young]
