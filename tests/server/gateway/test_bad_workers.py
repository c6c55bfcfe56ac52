"""Workers that report garbage, have another version, are never ready or are none at all."""

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ors_server.cluster.gateway.members import health as watching
from ors_server.cluster.gateway.members.health import watch
from ors_server.cluster.gateway.members.workers import Life, Member, Worker, Workers
from ors_server.cluster.gateway.proxy.worker_requests import ask
from ors_server.wire.version import HANDSHAKE, VERSION
from tests.server.gateway.conftest import WIRE, ping, reply, start_several
from tests.server.gateway.conftest import call as call_tool
from tests.server.gateway.test_several_workers import until as wait_until
from tests.support.cut_connections import answered
from tests.support.waiting import PATIENCE, until

REPORT: dict[str, Any] = {
    "slot": 0, "incarnation": 0, "sessions": 3, "max_sessions": 9, "calls": 0, "task_lists": {}, "version": VERSION,
    "handshake": HANDSHAKE,
}  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def watched(
    folder: Path, reports: bytes, look: Callable[[Worker], Awaitable[None]], on_report: Any = None
) -> None:
    """Watch a worker whose state stream is these bytes, each time that it is opened, while ``look`` runs."""

    answering: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reports)

    path = folder / "worker.sock"
    server = await asyncio.start_unix_server(answer, path)
    (worker,), _ = Workers().replace([Member(0, 0, f"unix:{path}")])
    watching_it = asyncio.create_task(watch(worker, on_report))
    try:
        await look(worker)
        assert not watching_it.done()
    finally:
        server.close()
        for task in (watching_it, *filter(None, answering)):
            task.cancel()
        await asyncio.gather(watching_it, *filter(None, answering), return_exceptions=True)


def line(**changes: Any) -> bytes:
    return json.dumps(REPORT | changes).encode() + b"\n"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        HEAD + b"{not json\n",
        HEAD + b"{}\n",
        HEAD + line(sessions="many"),
        HEAD + line(sessions=float("inf")),
        HEAD + b'{"slot": ' + b"[" * 100_000 + b"\n",
        HEAD + line(task_lists=3),
        HEAD + b"{" + b"x" * (2**24 + 1),
    ],
    ids=[
        "TLS",
        "an error",
        "no JSON",
        "nothing",
        "a wrong type",
        "infinity",
        "too deep",
        "wrong lists",
        "without an end",
    ],
)
async def test_a_worker_that_reports_garbage_gets_no_sessions_and_fills_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    monkeypatch.setattr(watching, "_PAUSE", 0.01)

    async def look(worker: Worker) -> None:
        await asyncio.sleep(0.4)
        assert worker.life in (Life.STARTING, Life.SERVING)
        if b"task_lists" not in garbage:
            assert not worker.accepts

    def note(state: Any) -> None:
        state["task_lists"].items()

    with caplog.at_level(logging.WARNING, "ors_server"):
        await watched(tmp_path, garbage, look, note)
    assert len(caplog.records) <= 1


async def test_an_answer_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of an environment runs in the worker: it must not fill the memory of the gateway."""
    monkeypatch.setattr("ors_server.cluster.gateway.proxy.worker_requests.LONGEST", 2**20)
    sent = 0
    ended = asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 2**16)
                await writer.drain()
                sent += 2**16
        ended.set()

    path = tmp_path / "worker.sock"
    server = await asyncio.start_unix_server(flood, path)
    (worker,), _ = Workers().replace([Member(0, 0, f"unix:{path}")])
    try:
        assert await ask(worker, "/_ors/figures") == (0, b"")
        await asyncio.wait_for(ended.wait(), PATIENCE)
    finally:
        server.close()
    assert sent < 2**24


async def test_a_long_report_is_read(tmp_path: Path) -> None:
    """A server with thousands of environments."""
    lists = {f"environment-{number}": {"train": "0" * 32} for number in range(5000)}

    async def look(worker: Worker) -> None:
        await until(lambda: worker.sessions == 3)

    await watched(tmp_path, HEAD + line(task_lists=lists), look)


async def test_a_worker_of_another_version_serves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The package was updated while the server ran, and a worker has been replaced: its supervisor says so."""

    async def look(worker: Worker) -> None:
        await until(lambda: worker.life is Life.SERVING)

    with caplog.at_level(logging.WARNING, "ors_server"):
        await watched(tmp_path, HEAD + line(version="9.9") * 3, look)
    assert not caplog.records


@pytest.mark.parametrize("handshake", [HANDSHAKE + 1, None])
async def test_a_worker_with_another_private_protocol_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, handshake: int | None
) -> None:
    path = tmp_path / "worker.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + line(version="9.9", handshake=handshake))
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    (worker,), _ = Workers().replace([Member(0, 0, f"unix:{path}")])
    with caplog.at_level(logging.INFO, "ors_server"):
        await asyncio.wait_for(watch(worker), PATIENCE)
    server.close()
    await asyncio.sleep(0.05)  # the connection ends here as well
    assert worker.life is Life.DEAD
    (record,) = caplog.records
    assert {"9.9", VERSION} <= set(vars(record)["reason"].replace(",", " ").split())


@pytest.mark.long
def test_a_server_without_a_worker_says_so_and_serves_again_with_the_next(tmp_path: Path) -> None:
    with start_several(tmp_path, f"{WIRE}:Wire", gateways=1) as several, several.client() as client:
        sid = several.open(client)
        workers = [row["pid"] for row in several.workers()]
        several.running.process.send_signal(signal.SIGSTOP)  # so that there is none for as long as the test looks
        try:
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: answered(lambda: client.get("/health")).status_code == 503)
            for refused in (
                client.get("/health"),
                client.get("/ready"),
                client.post("/create_session"),
                client.get("/list_environments"),
            ):
                assert refused.status_code == 503
                assert "worker" in refused.json()["detail"]
            assert ping(client, sid).status_code == 410
        finally:
            several.running.process.send_signal(signal.SIGCONT)
        wait_until(lambda: client.get("/health").status_code == 200)
        wait_until(lambda: client.post("/create_session").status_code == 200)
        assert reply(call_tool(client, several.open(client), text="on")).text == "on"


@pytest.mark.long
def test_two_servers_may_share_a_data_directory(tmp_path: Path) -> None:
    """Two supervisors: the file of rollouts takes several processes, and their sockets lie apart."""
    with (
        start_several(tmp_path / "same", f"{WIRE}:Wire", gateways=1) as first,
        first.client() as one,
        start_several(tmp_path / "same", f"{WIRE}:Wire", gateways=1) as second,
        second.client() as two,
    ):
        for several, client in ((first, one), (second, two), (first, one)):
            assert reply(call_tool(client, several.open(client), text="here")).text == "here"
            assert client.get("/v1/runs").json() == {"runs": [], "total": 0}
        assert {row["pid"] for row in first.workers()}.isdisjoint(row["pid"] for row in second.workers())
