"""Large results that clients do not read: what they cost in memory, and that each is still there."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.server.protocol.live import Connection, LiveServer, live_server, open_session
from tests.support.events import Reply, parse_events
from tests.support.waiting import until

MIB = 2**20
#: Responses that are not read, the size of each, and what the server may keep of them in memory.
RESPONSES, SIZE, MEMORY = 12, 12 * MIB, 24 * MIB
#: What the server may grow by: the results in memory, and what their connections hold.
GROWTH = MEMORY + 2 * SIZE


async def ask(server: LiveServer, sid: str, key: str, milliseconds: int = 0) -> Connection:
    """Make a call, and do not read its response."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    raw.connect((server.host, server.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=64 * 1024)
    connection = Connection(reader, writer)
    step = {"name": "step", "input": {"text": key, "size": SIZE, "milliseconds": milliseconds}}
    await connection.request("POST", "/call", step, sid, {"Idempotency-Key": key})
    return connection


async def read(connection: Connection) -> Reply:
    """Read a response."""
    reply = Reply(parse_events((await connection.response()).body))
    await connection.cut()
    return reply


async def end_session(server: LiveServer, sid: str) -> None:
    async with server.connect() as connection:
        await connection.request("POST", "/delete", sid=sid)
        assert (await connection.response()).status == 200


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "milliseconds", [pytest.param(0, id="one response"), pytest.param(100, id="stream", marks=pytest.mark.long)]
)
async def test_results_that_are_not_read_cost_memory_up_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, milliseconds: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    keys = [chr(ord("a") + number) for number in range(RESPONSES)]
    with live_server(result_memory=MEMORY, delivered_memory=MIB) as server:
        await open_session(server, "s")
        await read(await ask(server, "s", "z", milliseconds))
        before = server.running.resident
        unread = [await ask(server, "s", key, milliseconds) for key in keys]
        await asyncio.sleep(1)
        await until(lambda: server.running.resident - before < GROWTH, "the results stay in memory")
        # The responses go on where they stopped, from the disk, also where another connection has fetched the result.
        again = await read(await ask(server, "s", keys[0], milliseconds))
        assert again.text == keys[0] * SIZE
        for run, (key, connection) in enumerate(zip(keys, unread, strict=True), 2):
            reply = await read(connection)
            assert (reply.text, reply.output["metadata"]["run"]) == (key * SIZE, run)
        await end_session(server, "s")
        await until(lambda: not files(tmp_path), "a result was left on disk")


async def test_a_session_may_end_while_its_result_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with live_server(result_memory=1) as server:
        await open_session(server, "s")
        unread = await ask(server, "s", "a")
        await until(lambda: files(tmp_path) != [], "nothing was written to disk")
        await end_session(server, "s")
        assert (await read(unread)).text == "a" * SIZE
        await until(lambda: not files(tmp_path), "the result was left on disk")


@pytest.mark.long
async def test_a_delivered_result_is_fetched_again_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with live_server(result_memory=1, delivered_ttl=0.5, session_ttl=60) as server:
        await open_session(server, "s")
        for _ in range(3):
            reply = await read(await ask(server, "s", "a"))
            assert (reply.text, reply.output["metadata"]["run"]) == ("a" * SIZE, 1)
        await until(lambda: not files(tmp_path), "the result was left on disk")
