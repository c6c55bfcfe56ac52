"""Scenarios: one function a row of the benchmark, which puts a server under load and measures it.

Each returns its figures by key (``rows`` explains them), and curves for the charts. Wrong and missing answers become
failures in the subject's meter, which the runner reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from ors_benchmarks.harness.client import TARGETS, Client
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.instructions import counting
from ors_benchmarks.harness.processes import resident_bytes
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.latencies import Meter
from ors_benchmarks.server.closed_loop import Session, Subject, Window, closed_loop, each, probing

__all__ = [
    "blocking_tools",
    "calls",
    "connections",
    "crowd",
    "episodes",
    "get_task",
    "large_output",
    "latency",
    "live_sessions",
    "observed_calls",
    "set_up",
    "slow_tools",
]

#: Environments of ``script_server`` besides the one that calls go to.
SLOW_SETUP = "slowsetup"
REBUILT_TASKS = "rebuilttasks"

_texts = itertools.count()


def _calling(session: Session) -> Callable[[], Awaitable[None]]:
    async def turn() -> None:
        await session.client.noop(session.sid, f"t{next(_texts)}")

    return turn


async def _calling_together(subject: Subject, sessions: Sequence[Session], *beside: Meter) -> Window:
    return await closed_loop(subject, [_calling(session) for session in sessions], *beside)


# --- CPU time ------------------------------------------------------------------------------------


async def calls(subject: Subject, sessions: int = 32) -> Measured:
    """Measure calls of a few sessions."""
    opened = await subject.open(sessions)
    with counting(subject.process.pid) as counted:
        window = await _calling_together(subject, opened)
    await subject.close(opened)
    figures = {
        "call_cpu": window.cpu / window.turns * 1e6,
        "call_rate": window.turns / window.wall,
        "load_share": window.load_share,
    }
    if counted.rate is not None:
        figures["call_instructions"] = counted.rate * window.cpu / window.turns / 1e3
    return Measured(figures)


async def connections(subject: Subject, counts: tuple[int, int] = (64, 512)) -> Measured:
    """Measure how the processor time of a call grows with the connections that call at once."""
    measured, cpu = Measured(), list[float]()
    sessions: list[Session] = []
    for count in counts:
        sessions += await subject.open(count - len(sessions))
        window = await _calling_together(subject, sessions)
        cpu.append(window.cpu / window.turns * 1e6)
        measured.figures[f"connections_cpu_{count}"] = cpu[-1]
    measured.figures["connections_p99"] = subject.meter.percentile("call", 0.99) * 1e3
    measured.figures["connections_growth"] = cpu[1] / cpu[0]
    await subject.close(sessions)
    return measured


async def observed_calls(subject: Subject) -> Measured:
    """Measure the same with keys, metrics and recording on, and without.

    A server that records loads SQLAlchemy when it starts, and compiles its statements at the first write:
    work of the first seconds, which is over before the calls begin.
    """
    await subject.close(await subject.open(1))
    await asyncio.sleep(1.5)
    for _ in range(60):
        before = subject.cpu()
        await asyncio.sleep(0.5)
        if subject.cpu() - before < 0.01:
            break
    measured = await calls(subject)
    found = measured.figures
    return Measured(
        {f"observed_{name}": found[f"call_{name}"] for name in ("cpu", "instructions") if f"call_{name}" in found}
    )


async def episodes(subject: Subject, workers: int = 32, length: int = 8) -> Measured:
    """Whole episodes, one after the other."""

    def player(number: int) -> Callable[[], Awaitable[None]]:
        client, turns = subject.client(), itertools.count(number)

        async def turn() -> None:
            index = next(turns) % 2
            sid = await client.open(index)
            await client.prompt(sid, index)
            for _ in range(length - 1):
                await client.noop(sid, f"t{next(_texts)}")
            await client.call(sid, "echo", {"text": TARGETS[index]}, "That is the word.", 1.0, True)
            await client.close(sid)

        return turn

    window = await closed_loop(subject, [player(number) for number in range(workers)])
    return Measured({"episode_cpu": window.cpu / window.turns * 1e3, "episode_rate": window.turns / window.wall})


async def large_output(subject: Subject, characters: int = 2**20, repeats: int = 30) -> Measured:
    """Measure calls with a large output."""
    [session] = await subject.open(1)
    text = "x" * characters
    await session.client.call(session.sid, "big", {"characters": characters}, text)
    cpu = subject.cpu()
    for _ in range(repeats):
        await session.client.call(session.sid, "big", {"characters": characters}, text)
    cpu = subject.cpu() - cpu
    await subject.close([session])
    return Measured({"output_cpu": cpu / repeats * 1e3})


async def get_task(subject: Subject, tasks: int = 100_000, repeats: int = 100) -> Measured:
    """Single tasks of an environment that builds all of them at each listing."""
    client = subject.client()
    await client.task(REBUILT_TASKS, 0)  # a server that caches the list builds it now
    cpu = subject.cpu()
    for number in range(repeats):
        await client.task(REBUILT_TASKS, number * tasks // repeats)
    cpu = subject.cpu() - cpu
    client.close_connection()
    return Measured({"task_cpu": cpu / repeats * 1e3})


# --- many at once --------------------------------------------------------------------------------


async def latency(subject: Subject, counts: Sequence[int] = (1, 8, 32, 128, 512)) -> Measured:
    """More and more sessions calling at once."""
    measured = Measured()
    sessions: list[Session] = []
    for count in counts:
        sessions += await subject.open(count - len(sessions))
        pinged = sessions[0].sid
        async with probing(subject, _health, functools.partial(_ping, sid=pinged)) as probe:
            await _calling_together(subject, sessions, probe)
        for name, share in (("p50", 0.50), ("p99", 0.99)):
            milliseconds = subject.meter.percentile("call", share) * 1e3
            measured.figures[f"call_{name}_{count}"] = milliseconds
            measured.curves.setdefault(f"latency_{name}", []).append((count, milliseconds))
        measured.figures[f"health_p99_{count}"] = probe.percentile("health", 0.99) * 1e3
        measured.figures[f"ping_p99_{count}"] = probe.percentile("ping", 0.99) * 1e3
    await subject.close(sessions)
    return measured


async def crowd(subject: Subject) -> Measured:
    """Thousands of sessions calling at once."""
    return await latency(subject, (2048, 4096))


async def _health(client: Client) -> None:
    await client.health()


async def _ping(client: Client, sid: str) -> None:
    await client.ping(sid)


# --- many alive ----------------------------------------------------------------------------------


async def live_sessions(
    subject: Subject, steps: Sequence[int] = (1024, 2048, 4096, 8192, 16_384), step_limit: float = 120.0
) -> Measured:
    """More and more sessions alive, each pinged at every step and called at the end.

    The first step with a refused or lost request ends the measurement; that is its result and not an error. A step of
    more than ``step_limit`` seconds ends it too.
    """
    process = subject.process
    curve = [(0.0, 0.0)]
    measured = Measured(curves={"memory": curve})
    before = resident_bytes(process.pid)
    sessions: list[Session] = []
    for count in steps:
        started = time.perf_counter()
        with contextlib.suppress(Failure):
            sessions += await subject.open(count - len(sessions), connected=False)
        grown = resident_bytes(process.pid) - before
        await each(subject, sessions, lambda client, session: client.ping(session.sid))
        if subject.meter.failures:
            break
        curve.append((count, grown / 2**20))
        measured.figures["session_memory"] = grown / 1024 / count
        measured.figures["live_sessions"] = count
        if time.perf_counter() - started > step_limit:
            break
    if subject.meter.failures and not subject.meter.wrong:
        measured.notes.append("; ".join(subject.meter.failures))
        subject.meter.failures.clear()
    else:
        await each(subject, sessions, lambda client, session: client.noop(session.sid, session.sid))
    return measured


# --- slow code -----------------------------------------------------------------------------------


async def slow_tools(subject: Subject, sessions: int = 1000, seconds: float = 2.0) -> Measured:
    """Tools that wait without holding a thread, all at once."""
    return await _waiting_tools(subject, "slow", sessions, seconds)


async def blocking_tools(subject: Subject, sessions: int = 64, seconds: float = 0.5) -> Measured:
    """Tools that block their thread, all at once."""
    return await _waiting_tools(subject, "block", sessions, seconds)


async def _waiting_tools(subject: Subject, tool: str, count: int, seconds: float) -> Measured:
    *sessions, other = await subject.open(count + 1)

    async def wait(session: Session) -> None:
        await session.client.call(session.sid, tool, {"seconds": seconds}, "slept")

    async with probing(subject, functools.partial(_call_other, other=other)) as probe:
        started = time.perf_counter()
        outcomes = await asyncio.gather(*map(wait, sessions), return_exceptions=True)
        wall = time.perf_counter() - started
    _raise_unexpected(outcomes)
    await subject.close([*sessions, other])
    return Measured({f"{tool}_wall": wall, f"{tool}_others_p99": probe.percentile("call", 0.99) * 1e3})


async def set_up(subject: Subject, count: int = 256) -> Measured:
    """Sessions whose set-up takes a second, opened all at once."""
    [other] = await subject.open(1)
    sessions: list[Session] = []

    async def open_one(number: int) -> None:
        client = subject.client()
        await client.connect()
        sid = await client.open(number % 2, SLOW_SETUP)
        await client.prompt(sid, number % 2, SLOW_SETUP)
        sessions.append(Session(client, sid, number % 2))

    async with probing(subject, functools.partial(_call_other, other=other)) as probe:
        started = time.perf_counter()
        outcomes = await asyncio.gather(*map(open_one, range(count)), return_exceptions=True)
        wall = time.perf_counter() - started
    _raise_unexpected(outcomes)
    await subject.close([*sessions, other])
    return Measured({"setup_wall": wall, "setup_others_p99": probe.percentile("call", 0.99) * 1e3})


async def _call_other(client: Client, other: Session) -> None:
    await client.noop(other.sid, "other")


def _raise_unexpected(outcomes: Sequence[BaseException | None]) -> None:
    """Raise whatever is not a ``Failure``: a fault of the benchmark. Failures are in the meter already."""
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, Failure):
            raise outcome
