"""Thousands of clients, each response checked: small sessions over the benchmarks' connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ors_benchmarks.harness.http11 import Address, Connection, Response
from ors_benchmarks.harness.reports.latencies import percentile

from tests.support.events import Reply, parse_events
from tests.support.servers import Running

__all__ = ["Member", "Probes", "each", "open_sessions", "probing", "raise_file_limit", "request_bytes", "totals"]

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Seconds after which one request counts as hung.
PATIENCE = 60.0
_numbers = itertools.count()


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def request_bytes(method: str, path: str, sid: str | None = None, body: object = None, key: str | None = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: server", f"Content-Length: {len(content)}"]
    if sid is not None:
        lines.append(f"X-Session-ID: {sid}")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join([*lines, "", ""]).encode() + content


class Wire:
    """One connection at a time to a server, opened on demand."""

    def __init__(self, port: int) -> None:
        self._address = Address("127.0.0.1", port)
        self._connection: Connection | None = None

    async def exchange(self, request: bytes) -> Response:
        """Send a request; retry once if the server closed the idle connection meanwhile."""
        if self._connection is None or not self._connection.open:
            self._connection = await Connection.to(self._address)
        return await asyncio.wait_for(self._connection.exchange(request), PATIENCE)

    async def ask(self, method: str, path: str, sid: str | None = None, body: object = None) -> Any:
        """Return the JSON of a response that must be 200."""
        response = await self.exchange(request_bytes(method, path, sid, body))
        assert response.status == 200, (response.status, response.body[:500])
        return json.loads(response.body)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass
class Member:
    """One session, with a connection of its own or a borrowed one."""

    sid: str
    wire: Wire

    async def create(self, environment: str = "crowd", **spec: Any) -> Member:
        body = {"env_name": environment, "task_spec": spec}
        assert await self.wire.ask("POST", "/create", self.sid, body) == {"sid": self.sid}
        return self

    async def call(self, tool: str, key: str | None = None, task_id: str | None = None, **arguments: Any) -> Reply:
        body: dict[str, Any] = {"name": tool, "input": arguments}
        if task_id is not None:
            body["task_id"] = task_id
        response = await self.wire.exchange(request_bytes("POST", "/call", self.sid, body, key))
        assert response.status == 200, (response.status, response.body[:500])
        return Reply(parse_events(response.body))

    async def prompt(self) -> str:
        return (await self.wire.ask("GET", "/prompt", self.sid))[0]["text"]

    async def ping(self) -> None:
        assert await self.wire.ask("POST", "/ping", self.sid) == {"status": "ok"}

    async def delete(self) -> None:
        assert await self.wire.ask("POST", "/delete", self.sid) == {"sid": self.sid}


async def each(
    port: int, items: Iterable[Item], work: Callable[[Wire, Item], Awaitable[Result]], connections: int = 64
) -> list[Result]:
    """Run `work` for each item, over this many connections; raise the first failure."""
    remaining, results = iter(items), list[Result]()

    async def worker() -> None:
        wire = Wire(port)
        try:
            for item in remaining:
                results.append(await work(wire, item))
        finally:
            wire.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(worker())
    return results


async def open_sessions(port: int, count: int, **spec: Any) -> list[Member]:
    """Open sessions that are being set up, each with a connection of its own that is not open yet."""

    async def one(wire: Wire, number: int) -> Member:
        sid = f"session-{next(_numbers)}"
        await Member(sid, wire).create(**spec)
        return Member(sid, Wire(port))

    return await each(port, range(count), one)


async def totals(port: int, tool: str = "totals") -> Any:
    """Return the counts of the server's environments."""
    wire = Wire(port)
    member = await Member(f"totals-{next(_numbers)}", wire).create("totals")
    try:
        return json.loads((await member.call(tool)).text)
    finally:
        await member.delete()
        wire.close()


@dataclass
class Probes:
    """Durations in seconds of `/health` and `/ping` under a load."""

    seconds: list[float] = field(default_factory=list[float])

    def report(self, what: str) -> None:
        """Print the figures, which are informative only."""
        worst, p99 = max(self.seconds), percentile(self.seconds, 0.99)
        print(f"\n{what}: {len(self.seconds)} probes, p99 {p99 * 1000:.0f} ms, worst {worst * 1000:.0f} ms")


@contextlib.asynccontextmanager
async def probing(server: Running, what: str) -> AsyncGenerator[Probes]:
    """Request `/health` and `/ping` every 20 ms during the block; every response must be right."""
    probes, stopped = Probes(), False
    member = await Member(f"probe-{next(_numbers)}", Wire(server.port)).create()

    async def probe(ask: Callable[[Wire], Awaitable[None]]) -> None:
        wire = Wire(server.port)
        while not stopped:
            started = time.perf_counter()
            await ask(wire)
            probes.seconds.append(time.perf_counter() - started)
            await asyncio.sleep(0.02)
        wire.close()

    async def health(wire: Wire) -> None:
        assert await wire.ask("GET", "/health") == {"status": "ok"}

    async def ping(wire: Wire) -> None:
        await Member(member.sid, wire).ping()

    tasks = [asyncio.create_task(probe(ask)) for ask in (health, ping)]
    try:
        yield probes
    finally:
        stopped = True
        await asyncio.gather(*tasks)
        await member.delete()
        member.wire.close()
    probes.report(what)
