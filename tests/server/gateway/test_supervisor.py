"""A supervisor beside children that do not start, end at once, or hang; the processes are replaced by objects."""

import asyncio
import errno
import logging
import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ors_containers.linux.file_locks import create_lock, try_lock

from ors_server.cluster.errors import ControlError, NoWorkerLeft
from ors_server.cluster.gateway.members.workers import Member, Worker
from ors_server.cluster.supervisor import control, restart_pauses, socket_folders, supervisor
from ors_server.cluster.supervisor.children import GatewayChild, WorkerChild
from ors_server.cluster.supervisor.pools import Pool
from ors_server.cluster.supervisor.socket_folders import own_folder
from ors_server.cluster.supervisor.supervisor import Supervisor
from ors_server.settings import Settings
from ors_server.wire.version import HANDSHAKE, VERSION
from ors_server.worker import Announcement, read_announcement
from tests.support.waiting import PATIENCE, until


class Process:
    """A child that lives until the test, or the supervisor, ends it."""

    def __init__(self) -> None:
        self.pid = 0
        self.status = 0
        self.end = asyncio.Event()
        self.announced = asyncio.Event()
        self.killed = False
        #: Of its package and of its private protocol.
        self.versions: tuple[str, int] = (VERSION, HANDSHAKE)

    @property
    def ended(self) -> bool:
        return self.end.is_set()

    async def wait(self) -> int:
        await self.end.wait()
        return self.status

    async def stop(self, _: float) -> None:
        self.end.set()

    def kill(self) -> None:
        self.killed = True
        self.end.set()

    interrupt = kill

    async def announcement(self) -> Announcement:
        await self.announced.wait()
        return Announcement("unix:/nowhere", [], *self.versions)

    def send(self, _: object) -> None:
        pass

    def close(self) -> None:
        pass


class Children:
    """The children that a supervisor has started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workers: list[Process] = []
        #: Variables of each worker.
        self.variables: list[Mapping[str, str]] = []
        self.gateways: list[Process] = []
        self.errors: list[OSError] = []
        #: Whether a worker listens at once, and ends after that.
        self.announce, self.short_lived = True, False
        self.versions: tuple[str, int] = (VERSION, HANDSHAKE)
        monkeypatch.setattr(WorkerChild, "start", self._worker)
        monkeypatch.setattr(GatewayChild, "start", self._gateway)
        monkeypatch.setattr(supervisor, "_NO_ROOM", 0.01)
        monkeypatch.setattr(restart_pauses, "FIRST_PAUSE", 0.001)

    async def _worker(self, *_: Any, variables: Mapping[str, str], **__: Any) -> Process:
        self.variables.append(variables)
        return self._new(self.workers)

    async def _gateway(self, *_: Any, **__: Any) -> Process:
        return self._new(self.gateways)

    def _new(self, kind: list[Process]) -> Process:
        if self.errors:
            raise self.errors.pop()
        process = Process()
        process.versions = self.versions
        if self.announce:
            process.announced.set()
        if self.short_lived and kind is self.workers:
            asyncio.get_running_loop().call_later(0.01, process.end.set)
        kind.append(process)
        return process


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    return Children(monkeypatch)


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that report."""

    async def watch(worker: Worker, _: object) -> None:
        worker.report({"sessions": 0, "max_sessions": 1})
        await asyncio.Event().wait()

    monkeypatch.setattr(supervisor, "watch", watch)


def supervise(workers: int = 2) -> tuple[Supervisor, "asyncio.Task[None]"]:
    """Start a supervisor; return it and the end of its run."""
    server = Supervisor([Pool([], workers)], Settings(), gateways=1)
    with socket.socket() as unused:
        return server, asyncio.create_task(server.run(unused, lambda: None))


async def test_a_process_that_the_machine_has_no_room_for_is_started_later(children: Children) -> None:
    children.errors = [OSError(errno.EAGAIN, "Resource temporarily unavailable") for _ in range(6)]
    server, running = supervise()
    await until(lambda: len(children.workers) == 2 and len(children.gateways) == 1)
    children.errors = [OSError(errno.EMFILE, "Too many open files") for _ in range(3)]
    children.workers[0].end.set()
    children.gateways[0].end.set()
    await until(lambda: len(children.workers) == 3 and len(children.gateways) == 2)
    server.stop()
    await asyncio.wait_for(running, PATIENCE)


async def test_each_worker_gets_its_part_of_the_servers_limits(children: Children) -> None:
    settings = Settings(max_sessions=10, max_calls=2, sandbox_warm_total=6, sandbox_queue=9, heartbeat=7.0)
    server = Supervisor([Pool([], 3)], settings, gateways=1)
    with socket.socket() as unused:
        running = asyncio.create_task(server.run(unused, lambda: None))
    await until(lambda: len(children.workers) == 3)
    parts = {"MAX_SESSIONS": "4", "MAX_CALLS": "1", "SANDBOX_WARM_TOTAL": "2", "SANDBOX_QUEUE": "3", "HEARTBEAT": "7.0"}
    for variables in children.variables:
        assert {name: variables[f"ORS_{name}"] for name in parts} == parts
    server.stop()
    await asyncio.wait_for(running, PATIENCE)


async def test_a_server_whose_workers_all_end_too_often_ends(children: Children) -> None:
    children.short_lived = True
    _, running = supervise()
    with pytest.raises(NoWorkerLeft):
        await asyncio.wait_for(running, 20)
    assert len(children.workers) == 2 * (1 + restart_pauses.RESTARTS)
    assert all(gateway.ended for gateway in children.gateways)


@pytest.mark.usefixtures("reporting")
async def test_an_update_of_the_package_replaces_worker_after_worker(
    children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    """The new version is installed, and `ors-server drain --all` follows."""
    server, running = supervise()
    await until(lambda: [slot.state for slot in server.slots] == ["serving"] * 2)
    children.versions = ("9.9", HANDSHAKE)
    await asyncio.wait_for(server.drain_all([0, 1], 0), PATIENCE)
    assert [slot.given_up for slot in server.slots] == [None, None]
    assert len(children.workers) == 4
    [said] = [record for record in caplog.records if "another version" in record.message]
    assert vars(said)["version"] == "9.9"
    server.stop()
    await asyncio.wait_for(running, PATIENCE)


@pytest.mark.usefixtures("reporting")
async def test_a_version_with_another_private_protocol_takes_one_slot_and_not_all(children: Children) -> None:
    server, running = supervise()
    await until(lambda: [slot.state for slot in server.slots] == ["serving"] * 2)
    children.versions = ("9.9", HANDSHAKE + 1)
    await asyncio.wait_for(server.drain_all([0, 1], 0), PATIENCE)
    refused, kept = server.slots
    assert "9.9" in (refused.given_up or "")
    assert VERSION in (refused.given_up or "")
    assert (kept.given_up, kept.child) == (None, children.workers[1])
    server.stop()
    await asyncio.wait_for(running, PATIENCE)


@pytest.mark.parametrize("line", [b'{"version": "1"}', b'{"version": "2", "handshake": 2, "where": 3}', b"{}"])
def test_an_announcement_of_any_version_is_read(line: bytes) -> None:
    assert read_announcement(line).handshake != HANDSHAKE


async def test_a_worker_that_ends_while_its_pipe_stays_open_is_noticed(children: Children) -> None:
    """A process that an environment forked at its import holds the pipe."""
    server, running = supervise(1)
    await until(lambda: len(children.gateways) == 1)
    children.announce = False
    children.workers[0].end.set()
    await until(lambda: len(children.workers) == 2)
    children.announce = True
    children.workers[1].end.set()
    await until(lambda: len(children.workers) == 3)
    server.stop()
    await asyncio.wait_for(running, PATIENCE)


async def test_a_worker_that_is_never_ready_is_named_and_a_stop_ends_it(
    children: Children, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_REMINDER", 0.05)
    children.announce = False
    with caplog.at_level(logging.INFO, "ors_server"):
        server, running = supervise(2)
        await until(lambda: len(children.workers) == 2)
        children.workers[0].announced.set()

        def named() -> list[int]:
            return [vars(record)["slot"] for record in caplog.records if "still loading" in record.message]

        await until(lambda: named().count(1) > 1)
    assert not children.gateways
    assert server.slots[1].state == "starting"
    server.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert all(worker.ended for worker in children.workers)


async def test_a_process_that_starts_during_a_stop_is_ended(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, running = supervise(1)
    await until(lambda: len(children.gateways) == 1)
    late = Process()

    async def start(*_: Any, **__: Any) -> Process:
        server.stop()
        await asyncio.sleep(0.1)
        return late

    monkeypatch.setattr(WorkerChild, "start", start)
    children.workers[0].end.set()
    await asyncio.wait_for(running, PATIENCE)
    assert late.killed


async def test_a_gateway_that_does_not_read_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr("ors_server.cluster.supervisor.children._HANGS_AFTER", 0.1)
    killed: list[GatewayChild] = []

    def kill(gateway: GatewayChild) -> None:
        killed.append(gateway)

    monkeypatch.setattr(GatewayChild, "kill", kill)
    pipe, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, os.fdopen(writing, "wb", 0))
    gateway = GatewayChild(None, pipe)  # pyright: ignore[reportArgumentType] - there is no process
    # More than a pipe takes at once: a folder of many environments on many workers.
    names = [[f"environment-{number}", f"someone/environment-{number}"] for number in range(50)]
    members = [Member(slot, 0, f"unix:/run/worker-{slot}.sock", environments=names) for slot in range(100)]
    for _ in range(3):
        gateway.send(members)
    assert not killed
    await asyncio.sleep(0.2)
    gateway.send(members)
    assert killed
    os.close(reading)
    await until(pipe.is_closing)
    await asyncio.sleep(0.05)
    gateway.send(members)
    gateway.close()


def test_the_folder_of_a_killed_server_is_removed_once_its_workers_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with own_folder() as living:
        left = living.with_name("ors-server-run-left")
        left.mkdir()
        worker = create_lock(left / "worker-0-1.sock.lock")
        assert worker is not None
        with own_folder():
            assert living.is_dir()
            assert left.is_dir()
        os.close(worker)
        with own_folder():
            assert living.is_dir()
            assert not left.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_a_folder_that_another_server_removes_too_early_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[str] = []

    def mkdtemp(prefix: str) -> str:
        made.append(real(prefix=prefix))
        if len(made) == 1 and moment == "before it is opened":
            Path(made[0]).rmdir()
        return made[-1]

    def lock(descriptor: int) -> bool:
        if len(made) == 1:
            Path(made[0]).rmdir()
        return try_lock(descriptor)

    real = tempfile.mkdtemp
    monkeypatch.setattr(socket_folders.tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(socket_folders, "try_lock", lock)
    with own_folder() as folder:
        assert folder == Path(made[1])
        assert folder.is_dir()


@pytest.mark.parametrize("kind", ["open to others", "a link"])
async def test_a_control_folder_that_another_user_could_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(control.tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"ors-server-{os.getuid()}"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(ControlError, match="set TMPDIR"):
        await control.Control(Supervisor([Pool([], 1)], Settings(), gateways=1), "127.0.0.1", 1).__aenter__()
    with pytest.raises(ControlError, match="set TMPDIR"):
        control.ask(1, {"command": "workers"})
