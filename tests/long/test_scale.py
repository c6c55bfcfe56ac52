"""Thousands of sessions, calls, tasks and results: no error, bounded memory, and a server that always responds.

Durations are only printed; the bounds on memory are generous. Run with `-s` for the figures.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.long.crowd import (
    Member,
    Wire,
    each,
    open_sessions,
    probing,
    raise_file_limit,
    request_bytes,
    totals,
)
from tests.support.servers import Running, launched

pytestmark = pytest.mark.long

MIB = 2**20


@pytest.fixture(scope="module", autouse=True)
def many_files() -> None:
    raise_file_limit()


@pytest.fixture
def server(tmp_path: Path) -> Generator[Running]:
    """Start a server for each test, so that memory is its own."""
    with launched("long.crowd_server", tmp_path) as running:
        yield running
    assert running.process.returncode == 0
    assert "Traceback" not in running.log.read_text()


async def test_16384_live_sessions(server: Running) -> None:
    count = 16_384
    before = server.resident
    async with probing(server, "16,384 sessions open, call, ping and end"):
        sessions = await open_sessions(server.port, count)

        async def use(wire: Wire, session: Member) -> None:
            assert (await Member(session.sid, wire).call("work", text=session.sid)).text == session.sid

        async def ping(wire: Wire, session: Member) -> None:
            await Member(session.sid, wire).ping()

        async def end(wire: Wire, session: Member) -> None:
            await Member(session.sid, wire).delete()

        await each(server.port, sessions, use)
        await each(server.port, sessions, ping)
        growth = server.resident - before
        await each(server.port, sessions, end)
    print(f"memory for {count} used sessions: {growth / MIB:.0f} MiB, {growth / count / 1024:.1f} KiB each")
    assert growth < count * 24 * 1024
    assert server.resident - before < growth + 16 * MIB
    counted = (await totals(server.port))["totals"]
    assert counted["torn down"] >= count
    # The session that queries is the only live one.
    assert counted["constructed"] - counted["torn down"] == 1
    assert (await totals(server.port, "runs"))["twice"] == {}


@pytest.mark.parametrize("count", [512, 4096])
async def test_many_concurrent_calls(server: Running, count: int) -> None:
    sessions = await open_sessions(server.port, count)
    try:
        async with probing(server, f"{count} sessions calling at once"):
            for turn in range(4):

                async def call(session: Member, turn: int = turn) -> float:
                    text = f"{session.sid} {turn}"
                    started = time.perf_counter()
                    reply = await session.call("work", text=text)
                    assert (reply.text, reply.output["reward"]) == (text, 0.25)
                    return time.perf_counter() - started

                seconds = sorted(await asyncio.gather(*(call(session) for session in sessions)))
                p99 = seconds[int(0.99 * len(seconds))]
                print(f"turn {turn}: median {seconds[count // 2] * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
    finally:
        for session in sessions:
            session.wire.close()
    runs = await totals(server.port, "runs")
    assert runs == {"texts": 4 * count, "twice": {}}


async def test_a_thousand_slow_tools_at_once(server: Running) -> None:
    sessions = await open_sessions(server.port, 1000)
    before = server.resident
    async with probing(server, "1,000 tools of 3 s at once"):

        async def call(session: Member) -> None:
            for _ in range(2):
                assert (await session.call("work", text=session.sid, seconds=3.0)).text == session.sid
            session.wire.close()

        started = time.monotonic()
        await asyncio.gather(*(call(session) for session in sessions))
        print(f"\n2 x 1,000 tools of 3 s: {time.monotonic() - started:.1f} s")
    assert server.resident - before < 200 * MIB


async def test_64_blocking_tools_at_once(server: Running) -> None:
    sessions = await open_sessions(server.port, 64)
    async with probing(server, "64 blocking tools of 0.5 s at once"):

        async def call(session: Member) -> None:
            for turn in range(4):
                text = f"{session.sid} {turn}"
                assert (await session.call("block", text=text, seconds=0.5)).text == text
            session.wire.close()

        started = time.monotonic()
        await asyncio.gather(*(call(session) for session in sessions))
        print(f"\n4 x 64 blocking tools of 0.5 s: {time.monotonic() - started:.1f} s")


async def test_256_set_ups_of_a_second_at_once(server: Running) -> None:
    async with probing(server, "256 set-ups of 1 s at once"):
        started = time.monotonic()
        sessions = await open_sessions(server.port, 256, **{"set up": 1.0})

        async def play(session: Member) -> None:
            assert await session.prompt() == "set up: True"
            assert (await session.call("work", text=session.sid)).text == session.sid
            await session.delete()
            session.wire.close()

        await asyncio.gather(*(play(session) for session in sessions))
        print(f"\n256 set-ups of 1 s: {time.monotonic() - started:.1f} s")


async def test_outputs_of_a_mebibyte(server: Running) -> None:
    sessions = await open_sessions(server.port, 32)
    before, peak = server.resident, 0
    async with probing(server, "32 sessions, results of 1 MiB"):

        async def call(session: Member) -> None:
            nonlocal peak
            for turn in range(16):
                text = f"{session.sid} {turn}"
                reply = await session.call("work", text=text, size=MIB)
                assert reply.text == text + " \t\n" * (MIB // 3), "the text is another"
                peak = max(peak, server.resident - before)
            session.wire.close()

        await asyncio.gather(*(call(session) for session in sessions))
    print(f"memory for 512 results of 1 MiB: {peak / MIB:.0f} MiB")
    # 64 MiB of delivered results are kept, in addition to the results being sent to 32 clients.
    assert peak < 512 * MIB


async def test_a_hundred_thousand_tasks(server: Running) -> None:
    count, before = 100_000, server.resident

    def task(number: int) -> dict[str, Any]:
        return {"id": number, "question": f"What is {number} + {number}?"}

    async with probing(server, "100,000 tasks listed, counted, ranged and fetched"):

        async def read(wire: Wire, turn: int) -> None:
            body = {"split": "train"}
            assert await wire.ask("POST", "/manytasks/num_tasks", None, body) == {"num_tasks": count}
            if turn % 16 == 0:
                listed = (await wire.ask("POST", "/manytasks/tasks", None, body))["tasks"]
                assert len(listed) == count
                assert listed[turn] == task(turn)
            start = turn * 97
            ranged = await wire.ask(
                "POST", "/manytasks/task_range", None, {**body, "start": start, "stop": start + 1000}
            )
            assert ranged["tasks"] == [task(number) for number in range(start, start + 1000)]
            for index in range(start, start + 20):
                fetched = await wire.ask("POST", "/manytasks/task", None, {**body, "index": index})
                assert fetched["task"] == task(index)

        await each(server.port, range(128), read, connections=16)
    assert server.resident - before < 400 * MIB


async def test_sessions_abandoned_by_the_thousand(tmp_path: Path) -> None:
    """Their clients disconnect while results are being sent, and never return."""
    count = 5000
    variables = {"ORS_SESSION_TTL": "3", "ORS_RESULT_MEMORY": str(32 * MIB)}
    with launched("long.crowd_server", tmp_path, variables=variables) as server:
        before = server.resident
        async with probing(server, f"{count} sessions abandoned with results of 100 kB"):

            async def abandon(wire: Wire, number: int) -> None:
                sid = f"abandoned-{number}"
                await Member(sid, wire).create(subject=sid)
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                arguments = {"text": sid, "size": 100_000, "seconds": 0.02}
                writer.write(request_bytes("POST", "/call", sid, {"name": "work", "input": arguments}))
                await writer.drain()
                writer.transport.abort()
                del reader

            await each(server.port, range(count), abandon, connections=32)
            abandoned = server.resident - before
            torn_down = Counter[str]()
            async with asyncio.timeout(60):
                while torn_down.total() < count:
                    torn_down.update((await totals(server.port))["torn down"])
                    await asyncio.sleep(0.5)
        assert torn_down == Counter(f"abandoned-{number}" for number in range(count))
        late = Wire(server.port)
        for number in (0, count - 1):
            response = await late.exchange(request_bytes("POST", "/ping", f"abandoned-{number}"))
            assert response.status == 410
        late.close()
        print(f"memory: {abandoned / MIB:.0f} MiB with them, {(server.resident - before) / MIB:.0f} MiB after them")
        # Their 477 MiB of results are bounded to 32, and a burst's additional memory is freed.
        assert abandoned < 128 * MIB
        assert server.resident - before < 96 * MIB
    assert server.process.returncode == 0
