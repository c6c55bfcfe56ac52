"""Load on a server: sessions opened by the thousand, calls in a closed loop, and probes beside them.

Trainers are closed loops: each session sends its next call when it has the answer to the last. So the rate adapts to
the server, and the latency at N sessions is about N times the server's time for a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import uvloop

from ors_benchmarks.harness.client import Client
from ors_benchmarks.harness.http11 import Address, Failure
from ors_benchmarks.harness.processes import cpu_seconds
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.latencies import Meter
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT

__all__ = ["Session", "Subject", "Window", "closed_loop", "each", "measure", "probing"]

#: Connections over which sessions are opened, pinged and closed.
CONNECTIONS = 64
#: Seconds between two requests of a probe.
PROBE_EVERY = 0.02
#: Seconds a worker rests after a failure, so that a broken server is not hammered.
REST = 0.01

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class Session:
    """An open session, and the connection it calls over."""

    client: Client
    sid: str
    index: int


class Process(Protocol):
    """A running server."""

    @property
    def address(self) -> Address: ...
    @property
    def pid(self) -> int: ...


@dataclass
class Subject:
    """The server that is measured, in one measurement."""

    process: Process
    client_type: Callable[[Address, Meter], Client]
    #: Requests of the load; probes have meters of their own.
    meter: Meter
    #: Seconds that a closed loop runs.
    seconds: float
    _clients: list[Client] = field(default_factory=list[Client])

    def client(self, meter: Meter | None = None) -> Client:
        """Return a client with a connection of its own."""
        client = self.client_type(self.process.address, meter or self.meter)
        self._clients.append(client)
        return client

    async def disconnect(self) -> None:
        """Close all connections: a server waits for open ones before it ends."""
        for client in self._clients:
            client.close_connection()
        await asyncio.sleep(0.01)  # the event loop closes them in its next turns

    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        return cpu_seconds(self.process.pid)

    async def open(self, count: int, *, connected: bool = True) -> list[Session]:
        """Open sessions, each with a connection to call over, and wait until they are set up.

        Raises ``Failure`` if any of them fails.
        """

        async def one(client: Client, number: int) -> Session:
            index = number % 2
            sid = await client.open(index)
            await client.prompt(sid, index)
            session = Session(self.client(), sid, index)
            if connected:
                await session.client.connect()
            return session

        opened = await each(self, range(count), one)
        if len(opened) < count:
            raise Failure("sessions that did not open")
        return opened

    async def close(self, sessions: Iterable[Session]) -> None:
        """End sessions and their connections."""

        async def one(client: Client, session: Session) -> None:
            session.client.close_connection()
            await client.close(session.sid)

        await each(self, sessions, one)


AnySubject = TypeVar("AnySubject", bound=Subject)


def measure(
    scenario: Callable[[AnySubject], Awaitable[Measured]], subject: AnySubject
) -> tuple[Measured, Counter[str]]:
    """Run a scenario on an event loop of its own; return its figures and its failures.

    This process's garbage collector stands still meanwhile: its pauses would be in the latencies.
    """
    failures = subject.meter.failures

    async def limited() -> Measured:
        try:
            async with asyncio.timeout(MEASUREMENT_LIMIT):
                return await scenario(subject)
        finally:
            await subject.disconnect()

    measured = Measured()
    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured = runner.run(limited())
    except TimeoutError:
        failures[f"not done after {MEASUREMENT_LIMIT:g} s"] += 1
    except Failure as failure:
        # The client has counted it, unless it is about several requests.
        if not failures:
            failures[str(failure)] += 1
    finally:
        gc.enable()
    return measured, failures


@dataclass(frozen=True)
class Window:
    """Figures of a closed loop."""

    #: Seconds, on the clock and of the server's CPU.
    wall: float
    cpu: float
    #: Share of its core that the load itself used: near 1 the load, not the server, was the limit.
    load_share: float
    #: Turns that ended within.
    turns: int


async def each(
    subject: Subject, items: Iterable[Item], work: Callable[[Client, Item], Awaitable[Result]]
) -> list[Result]:
    """Do something for each item, over a limited number of connections; failed items are counted and left out."""
    remaining, results = iter(items), list[Result]()

    async def worker() -> None:
        client = subject.client()
        for item in remaining:
            with contextlib.suppress(Failure):
                results.append(await work(client, item))
        client.close_connection()

    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    return results


async def closed_loop(subject: Subject, turns: Sequence[Callable[[], Awaitable[None]]], *beside: Meter) -> Window:
    """Take turns over and over, each in a task of its own, for the subject's seconds, after a warm-up.

    The subject's meter, and those of probes beside it, count for those seconds only. Ends when the requests under way
    are answered, so that the next measurement starts on an idle server. Raises ``Failure`` if no turn ended within.
    """
    meters = (subject.meter, *beside)
    stopped = False
    finished: list[float] = []

    async def worker(turn: Callable[[], Awaitable[None]]) -> None:
        while not stopped:
            try:
                await turn()
            except Failure:
                await asyncio.sleep(REST)
            else:
                finished.append(time.monotonic())

    workers = [asyncio.create_task(worker(turn)) for turn in turns]
    await asyncio.sleep(min(0.5, subject.seconds / 2))
    opened, cpu, own = time.monotonic(), subject.cpu(), time.process_time()
    for meter in meters:
        meter.between(opened)
    await asyncio.sleep(subject.seconds)
    closed, cpu, own = time.monotonic(), subject.cpu() - cpu, time.process_time() - own
    for meter in meters:
        meter.between(opened, closed)
    stopped = True
    await asyncio.gather(*workers)
    wall, ended = closed - opened, sum(opened <= moment < closed for moment in finished)
    if not ended:
        raise Failure(f"nothing was answered within {subject.seconds:g} s: --seconds makes them more")
    return Window(wall, cpu, own / wall, ended)


@contextlib.asynccontextmanager
async def probing(subject: Subject, *requests: Callable[[Client], Awaitable[None]]) -> AsyncGenerator[Meter]:
    """Send requests, each over a connection of its own, every 20 ms while the block runs; yields their meter."""
    meter = Meter()
    stopped = False

    async def probe(send: Callable[[Client], Awaitable[None]]) -> None:
        client = subject.client(meter)
        while not stopped:
            with contextlib.suppress(Failure):
                await send(client)
            await asyncio.sleep(PROBE_EVERY)
        client.close_connection()

    tasks = [asyncio.create_task(probe(send)) for send in requests]
    try:
        yield meter
    finally:
        stopped = True
        await asyncio.gather(*tasks)
        subject.meter.failures.update(meter.failures)
        subject.meter.wrong += meter.wrong
