"""Random clients for a long time: every result is checked, every session ends once, and memory stays flat.

`ORS_SOAK_SECONDS` is the duration (the hour of a release: 3600), `ORS_SOAK_REPORT` names a file for the figures, and
`ORS_SOAK_SEED` repeats a run's choices.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.long.crowd import Member, Wire, probing, raise_file_limit, request_bytes, totals
from tests.server.robustness.cutting import Cut, call_request, cutting, send
from tests.support.events import Reply, parse_events
from tests.support.servers import Running, launched

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("ORS_SOAK_SECONDS", "120"))
CLIENTS = 48
MIB = 2**20
#: Short times, so that memory that is kept for a while has its full size after the first minute.
VARIABLES = {
    "ORS_SESSION_TTL": "6",
    "ORS_RESULT_TTL": "2",
    "ORS_RESULT_MEMORY": str(4 * MIB),
    "ORS_DELIVERED_TTL": "5",
    "ORS_DELIVERED_MEMORY": str(8 * MIB),
    "ORS_TOMBSTONES": "2000",
    "ORS_STREAM_AFTER": "0.02",
    "ORS_HEARTBEAT": "0.5",
}
#: Log lines of the server's own faults.
FAULTS = ("request failed", "housekeeping failed", "never retrieved", "Exception in", "ending a session failed")


@pytest.fixture
def server(tmp_path: Path) -> Generator[Running]:
    with launched("long.crowd_server", tmp_path, variables=VARIABLES) as running:
        yield running
    assert running.process.returncode == 0
    log = running.log.read_text()
    assert not [fault for fault in FAULTS if fault in log]


@dataclass
class Book:
    """Record of the actions and of the results they must have."""

    done: Counter[str] = field(default_factory=Counter[str])
    #: Sessions that were created and not yet torn down.
    expected: set[str] = field(default_factory=set[str])
    #: Memory of the server in bytes, at seconds since the start.
    memory: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])


class Player:
    """One client that plays random episodes and checks every response."""

    def __init__(self, number: int, server: Running, proxy: int, book: Book, chance: random.Random) -> None:
        self.name = f"client-{number}"
        self.server = server
        self.proxy = proxy
        self.book = book
        self.chance = chance
        self.wire = Wire(server.port)
        self.number = 0

    def text(self) -> str:
        """Return a unique text."""
        self.number += 1
        return f"{self.name} {self.number}"

    async def play(self, end: float) -> None:
        try:
            while time.monotonic() < end:
                await self.episode()
        except BaseException as error:  # only adds the client's number: it is raised again
            error.add_note(f"{self.name} at its text {self.number}")
            raise
        finally:
            self.wire.close()

    async def episode(self) -> None:
        chance, sid = self.chance, self.text().replace(" ", "-")
        member = Member(sid, self.wire)
        spec: dict[str, Any] = {"subject": sid, "set up": chance.choice([0, 0, 0, 0.05])}
        self.book.expected.add(sid)
        self.book.done["sessions"] += 1
        for _ in range(chance.choice([1, 1, 1, 2])):  # a repeated request returns the same session
            await member.create(**spec)
        if chance.random() < 0.5:
            assert await member.prompt() == "set up: True"
        counted = 0
        for _ in range(chance.randint(1, 12)):
            kind = chance.choices(["work", "block", "count", "fail"], [12, 2, 5, 1])[0]
            if kind == "count":
                counted += 1
                assert (await self.checked(member, "count", {})).text == str(counted)
            else:
                await self.one_call(member, kind)
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.05]))
        await self.leave(member)

    async def one_call(self, member: Member, kind: str) -> None:
        chance, text = self.chance, self.text()
        size = chance.choices([0, 5000, 90_000, 600_000], [80, 12, 6, 1])[0] if kind == "work" else 0
        seconds = chance.choices([0.0, 0.01, 0.03, 0.3], [70, 15, 10, 5])[0]
        arguments = {"text": text, "size": size, "seconds": seconds}
        reply = await self.checked(member, kind, arguments)
        if kind == "fail":
            assert reply.error == f"ValueError: {text}"
        else:
            assert reply.text == text + " \t\n" * (size // 3), "the text is another"
            assert reply.output["reward"] == 0.25

    async def checked(self, member: Member, tool: str, arguments: dict[str, Any]) -> Reply:
        """Call a tool: plainly, over a connection that is lost once or twice, or with its result fetched again."""
        chance, key = self.chance, f"key {self.text()}"
        body = {"name": tool, "input": arguments}
        self.book.done["calls"] += 1
        task_id: str | None = None
        if chance.random() < 0.25:
            for _ in range(chance.choice([1, 1, 2])):
                length = len(call_request(member.sid, body, key))
                cut = self.cut(length)
                lost = await send(self.proxy, call_request(member.sid, body, key, cut))
                self.book.done[f"cut {cut.direction}s"] += 1
                events = parse_events(lost.body)
                task_id = events[0].data if events else task_id
        if task_id is not None and chance.random() < 0.5:
            body["task_id"] = task_id
        requests = [request_bytes("POST", "/call", member.sid, body, key)]
        if chance.random() < 0.1:
            requests *= 2  # the same key twice at once, over two connections
        replies = await asyncio.gather(*(self.answer(request, first=not at) for at, request in enumerate(requests)))
        assert all(reply.events == replies[0].events for reply in replies)
        assert task_id in (None, replies[0].task_id)
        if chance.random() < 0.1:
            again = await member.call(tool, task_id=replies[0].task_id, **arguments)
            assert again.events == replies[0].events
            self.book.done["results fetched again"] += 1
        return replies[0]

    def cut(self, length: int) -> Cut:
        """Return a random loss within a request of this many bytes, or within a response."""
        manner: Literal["end", "reset"] = "end" if self.chance.random() < 0.5 else "reset"
        if self.chance.random() < 0.33:
            return Cut("request", manner, self.chance.randint(0, length))
        return Cut("response", manner, self.chance.randint(0, self.chance.choice([600, 100_000])))

    async def answer(self, request: bytes, *, first: bool) -> Reply:
        wire = self.wire if first else Wire(self.server.port)
        try:
            response = await wire.exchange(request)
        finally:
            if not first:
                wire.close()
        assert response.status == 200, (response.status, response.body[:300])
        return Reply(parse_events(response.body))

    async def leave(self, member: Member) -> None:
        """Leave the session, mostly by deleting it."""
        way = self.chance.random()
        if way < 0.75:
            for _ in range(self.chance.choice([1, 1, 2])):
                await member.delete()
            self.book.done["deletions"] += 1
            response = await self.wire.exchange(request_bytes("POST", "/ping", member.sid))
            assert response.status == 410
        elif way < 0.85:
            self.book.done["abandonments"] += 1
        else:
            # During a call whose result no client reads.
            arguments = {"text": self.text(), "size": 30_000, "seconds": self.chance.choice([0.0, 0.1, 1.0])}
            body = {"name": self.chance.choice(["work", "block"]), "input": arguments}
            request = call_request(member.sid, body, None, Cut("response", "reset", self.chance.choice([0, 200, 1000])))
            await send(self.proxy, request)
            self.book.done["abandonments under a call"] += 1
            if self.chance.random() < 0.5:
                await member.delete()


async def watch(server: Running, book: Book, started: float) -> None:
    """Record the server's memory each second, and check that each session was torn down and each call run once."""
    while True:
        await asyncio.sleep(1)
        book.memory.append((time.monotonic() - started, server.resident))
        await settle(server, book)


async def settle(server: Running, book: Book) -> None:
    for subject in (await totals(server.port))["torn down"]:
        assert subject in book.expected, f"{subject} was torn down twice"
        book.expected.discard(subject)
    runs = await totals(server.port, "runs")
    book.done["runs"] += runs["texts"]
    assert runs["twice"] == {}


async def test_soak(server: Running) -> None:
    raise_file_limit()
    seed = int(os.environ.get("ORS_SOAK_SEED", str(time.time_ns() % 2**32)))
    print(f"\nORS_SOAK_SEED={seed}")
    book, started = Book(), time.monotonic()
    async with cutting(server.port) as proxy, probing(server, "soak") as probes:
        watching = asyncio.create_task(watch(server, book, started))
        players = [
            Player(number, server, proxy, book, random.Random(seed * CLIENTS + number)) for number in range(CLIENTS)
        ]
        playing = [asyncio.create_task(player.play(started + SECONDS)) for player in players]
        try:
            await asyncio.wait((watching, *playing), return_when=asyncio.FIRST_EXCEPTION, timeout=SECONDS)
            if not watching.done():
                await asyncio.gather(*playing)
        finally:
            for task in (watching, *playing):
                task.cancel()
            outcomes = await asyncio.gather(watching, *playing, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert not failures, failures
        # The abandoned sessions expire.
        async with asyncio.timeout(60):
            while book.expected:
                await asyncio.sleep(0.5)
                await settle(server, book)
    at_rest = server.resident
    counted = (await totals(server.port))["totals"]
    assert counted["constructed"] - counted["torn down"] == 1  # the querying session

    # The first quarter warms up: pools, caches, and data that is kept for a while.
    quarters = [
        statistics.median(
            [size for moment, size in book.memory if SECONDS * part / 4 <= moment < SECONDS * (part + 1) / 4]
        )
        for part in range(4)
    ]
    report = {
        "seconds": SECONDS,
        "seed": seed,
        "clients": CLIENTS,
        **dict(sorted(book.done.items())),
        "memory by quarter, MiB": [round(size / MIB, 1) for size in quarters],
        "memory at rest, MiB": round(at_rest / MIB, 1),
        "probe p99, ms": round(statistics.quantiles(probes.seconds, n=100)[98] * 1000, 1),
    }
    print(json.dumps(report, indent=2))
    if path := os.environ.get("ORS_SOAK_REPORT"):
        Path(path).write_text(json.dumps(report, indent=2) + "\n")
    assert quarters[3] < quarters[1] + max(24 * MIB, 0.15 * quarters[1])
    assert at_rest < quarters[1] + 24 * MIB
