"""Tool calls during a storm of uploads: every result is right, every event is stored, and a table shows the cost.

Times are printed but not checked: they depend on the machine as much as on the server. ``pytest -m long -s`` shows the
table.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from ors_benchmarks.harness.http11 import Address, Connection
from ors_benchmarks.harness.reports.latencies import percentile

from tests.server.rollouts.conftest import data_dir as data_dir
from tests.server.rollouts.conftest import start_server as start_server
from tests.server.rollouts.support import body, message, rollout, rows
from tests.support.paths import ROOT
from tests.support.servers import StartServer

pytestmark = pytest.mark.long

SECONDS = 5.0
SESSIONS = 16
#: Calls a second, over all sessions.
CALLS = 400.0
UPLOADERS = 8
#: Messages of one upload, as many as openreward's client sends at once; and their length in characters.
MESSAGES, LENGTH = 127, 500


def request(path: str, content: bytes, sid: str = "") -> bytes:
    """Return a whole HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nhost: server\r\ncontent-length: {len(content)}\r\nx-session-id: {sid}\r\n\r\n"
    return head.encode() + content


def thread_seconds(pid: int) -> tuple[float, float]:
    """Return the processor time of a process's main thread, and of its other threads."""
    spent = {True: 0, False: 0}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        fields = (thread / "stat").read_text().rpartition(")")[2].split()
        spent[thread.name == str(pid)] += int(fields[11]) + int(fields[12])
    return spent[True] / 100, spent[False] / 100


async def keep_pace(rate: float, until: float, turn: Callable[[], Awaitable[None]]) -> None:
    """Take turns at a rate, until a time."""
    due = time.monotonic()
    while (now := time.monotonic()) < until:
        await asyncio.sleep(max(0.0, due - now))
        due = max(due + 1 / rate, now)
        await turn()


async def play(address: Address, pid: int, uploads: float) -> tuple[str, int]:
    """Call for some seconds while uploading at a rate. Return a line of the table, and the number of stored events."""
    seconds: list[float] = []
    stored = 0
    until = time.monotonic() + SECONDS

    async def call() -> None:
        connection, sid = await Connection.to(address), str(uuid.uuid4())
        created = await connection.exchange(request("/create", b'{"split": "train", "index": 0}', sid))
        assert created.status == 200, created.body

        async def turn() -> None:
            text = str(uuid.uuid4())
            content = json.dumps({"name": "echo", "input": {"text": text}}).encode()
            response = await connection.exchange(request("/call", content, sid))
            assert response.status == 200
            assert text.encode() in response.body
            seconds.append(response.seconds)

        await keep_pace(CALLS / SESSIONS, until, turn)
        connection.close()

    async def upload() -> None:
        connection = await Connection.to(address)

        async def turn() -> None:
            nonlocal stored
            name = str(uuid.uuid4())
            content = body(rollout(name), *(message(name, index, "word " * (LENGTH // 5)) for index in range(MESSAGES)))
            response = await connection.exchange(request("/v1/rollouts", content))
            assert (response.status, json.loads(response.body)) == (200, {"stored": MESSAGES + 1})
            stored += MESSAGES

        await keep_pace(uploads / UPLOADERS, until, turn)
        connection.close()

    before = thread_seconds(pid)
    await asyncio.gather(*(call() for _ in range(SESSIONS)), *(upload() for _ in range(UPLOADERS if uploads else 0)))
    main, others = (after - earlier for after, earlier in zip(thread_seconds(pid), before, strict=True))
    line = (
        f"{len(seconds) / SECONDS:7.0f} calls/s {stored / SECONDS:8.0f} messages/s   call p50"
        f" {percentile(seconds, 0.5) * 1e3:6.2f} ms  p99 {percentile(seconds, 0.99) * 1e3:6.2f} ms   main thread"
        f" {main / SECONDS:5.1%}  others {others / SECONDS:5.1%}"
    )
    return line, stored


def test_calls_beside_a_storm_of_uploads(start_server: StartServer, data_dir: Path) -> None:
    served = start_server(f"{ROOT / 'tests' / 'support' / 'environments.py'}:Echo")
    lines: list[str] = []
    total = 0
    for uploads in (0.0, 8.0, 40.0, 0.0, 8.0, 40.0):
        line, stored = asyncio.run(play(Address("127.0.0.1", served.port), served.process.pid, uploads))
        lines.append(line)
        total += stored
    print("\n" + "\n".join(lines))
    assert rows(data_dir, "SELECT count(*) FROM messages") == [(total,)]
    assert served.stop() == 0
