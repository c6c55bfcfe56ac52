"""Scenarios: one function a row of the benchmark. Each returns figures of the front and of the workers by key.

A wrong or missing answer is a failure in the subject's meter, or a ``Failure``; the row then has no figures.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ors_benchmarks.harness.checks import CallLost, Refused, WrongAnswer
from ors_benchmarks.harness.client import Client
from ors_benchmarks.harness.http11 import ConnectionLost, Failure
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.latencies import Meter
from ors_benchmarks.harness.runs import Size
from ors_benchmarks.scale.servers import Parts, Servers
from ors_benchmarks.server.closed_loop import Session, Subject, closed_loop, each, probing

__all__ = [
    "FULL",
    "QUICK",
    "ScaleSize",
    "ScaleSubject",
    "burn",
    "calls",
    "episodes",
    "killed",
    "many",
    "one",
    "output",
    "pings",
    "spread",
    "stopped",
    "streams",
]

#: Sessions that burn at once, and that are open while a worker dies.
_BURNING, _SPREAD = 8, 16
#: Streams that are opened at once, and seconds before the next.
_STREAMS_AT_ONCE, _PAUSE = 20, 0.02
#: Seconds for which a lost session may be unanswered before the row fails.
_PATIENCE = 30.0
#: Seconds between two pings of a session that is lost.
_PING_EVERY = 0.001
_BUSY_LOOP = "import time; n = 0; end = time.monotonic() + {}\nwhile time.monotonic() < end: n += 1\nprint(n)"

_texts = itertools.count()


@dataclass(frozen=True, kw_only=True)
class ScaleSize(Size):
    """Repetitions and amounts of a run."""

    streams: int
    sessions: int
    outputs: int


FULL = ScaleSize(rounds=5, seconds=3.0, streams=2000, sessions=10_000, outputs=30)
QUICK = ScaleSize(rounds=1, seconds=1.0, streams=500, sessions=1000, outputs=20)


@dataclass
class ScaleSubject(Subject):
    """The servers that are measured, in one measurement."""

    servers: Servers = field(kw_only=True)
    size: ScaleSize = field(kw_only=True)
    _looks: list[Parts] = field(default_factory=list[Parts])

    def cpu(self) -> float:
        """CPU seconds of all processes so far."""
        self._looks.append(self.servers.cpu())
        return sum(self._looks[-1])

    @property
    def spent(self) -> Parts:
        """CPU seconds of both parts between the last two looks."""
        before, after = self._looks[-2:]
        return Parts(after.front - before.front, after.workers - before.workers)


Scenario = Callable[[ScaleSubject], Awaitable[Measured]]


def _calling(session: Session, tool: str = "noop", prefix: str = "noop:") -> Callable[[], Awaitable[None]]:
    async def turn() -> None:
        text = f"t{next(_texts)}"
        await session.client.call(session.sid, tool, {"text": text}, prefix + text)

    return turn


async def _closed_loop(subject: ScaleSubject, count: int) -> tuple[float, Parts]:
    """Let sessions call the tool that does nothing; return the median seconds, and CPU seconds of a call."""
    sessions = await subject.open(count)
    window = await closed_loop(subject, [_calling(session) for session in sessions])
    spent = subject.spent
    await subject.close(sessions)
    return subject.meter.percentile("call", 0.5), Parts(spent.front / window.turns, spent.workers / window.turns)


# --- a call --------------------------------------------------------------------------------------


async def calls(subject: ScaleSubject) -> Measured:
    """32 sessions calling at once."""
    _, cpu = await _closed_loop(subject, 32)
    measured = Measured({"call_worker": cpu.workers * 1e6})
    if cpu.front:
        measured.figures["call_front"] = cpu.front * 1e6
    return measured


async def one(subject: ScaleSubject) -> Measured:
    """One session, one connection."""
    seconds, _ = await _closed_loop(subject, 1)
    return Measured({"p50_1": seconds * 1e3})


async def many(subject: ScaleSubject) -> Measured:
    """64 sessions calling at once."""
    seconds, cpu = await _closed_loop(subject, 64)
    measured = Measured({"p50_64": seconds * 1e3, "cpu_64": sum(cpu) * 1e6})
    if subject.servers.cores.front_alone:
        measured.figures["p50_64_alone"] = seconds * 1e3
    return measured


async def pings(subject: ScaleSubject) -> Measured:
    """32 sessions kept alive."""
    sessions = await subject.open(32)
    turns = [functools.partial(_ping, session.client, session.sid) for session in sessions]
    measured = await _cost(subject, "ping", turns)
    await subject.close(sessions)
    return measured


async def episodes(subject: ScaleSubject) -> Measured:
    """Sessions from create_session to delete_session, without a call."""

    def player(number: int) -> Callable[[], Awaitable[None]]:
        client, turns = subject.client(), itertools.count(number)

        async def turn() -> None:
            index = next(turns) % 2
            sid = await client.open(index)
            await client.prompt(sid, index)
            await client.close(sid)

        return turn

    return await _cost(subject, "episode", [player(number) for number in range(32)])


async def _cost(subject: ScaleSubject, name: str, turns: Sequence[Callable[[], Awaitable[None]]]) -> Measured:
    window = await closed_loop(subject, turns)
    front, workers = (seconds / window.turns * 1e6 for seconds in subject.spent)
    return Measured({f"{name}_worker": workers} | ({f"{name}_front": front} if front else {}))


async def output(subject: ScaleSubject, characters: int = 2**20) -> Measured:
    """Large results, one after the other."""
    [session] = await subject.open(1)
    text = "x" * characters
    await session.client.call(session.sid, "big", {"characters": characters}, text)
    subject.cpu()
    for _ in range(subject.size.outputs):
        await session.client.call(session.sid, "big", {"characters": characters}, text)
    subject.cpu()
    await subject.close([session])
    front, workers = (seconds / subject.size.outputs * 1e3 for seconds in subject.spent)
    return Measured({"output_worker": workers} | ({"output_front": front} if front else {}))


# --- open streams --------------------------------------------------------------------------------


async def streams(subject: ScaleSubject) -> Measured:
    """Many event streams open at once, each of a call that waits."""
    count = subject.size.streams
    sessions = await subject.open(count, connected=False)
    before = subject.servers.memory()
    seconds = 2 + count / 200

    async def wait(session: Session) -> None:
        await session.client.call(session.sid, "slow", {"seconds": seconds}, "slept")

    waiting: list[asyncio.Task[None]] = []
    for first in range(0, count, _STREAMS_AT_ONCE):
        # All at once would measure what it takes to open them.
        waiting += [asyncio.create_task(wait(session)) for session in sessions[first : first + _STREAMS_AT_ONCE]]
        await asyncio.sleep(_PAUSE)
    if any(task.done() for task in waiting):
        raise WrongAnswer("streams have ended before all were open")
    most = before
    while not any(task.done() for task in waiting):
        memory = subject.servers.memory()
        most = Parts(max(most.front, memory.front), max(most.workers, memory.workers))
        await asyncio.sleep(0.05)
    await asyncio.gather(*waiting, return_exceptions=True)
    await subject.close(sessions)
    measured = Measured({"stream_worker": (most.workers - before.workers) / 1024 / count})
    if before.front:
        measured.figures["stream_front"] = (most.front - before.front) / 1024 / count
    return measured


# --- several workers -----------------------------------------------------------------------------


async def burn(subject: ScaleSubject) -> Measured:
    """Sessions whose tool burns 10 ms of Python, on all cores of the machine."""
    servers = subject.servers
    sessions = await subject.open(_BURNING)
    servers.confine(servers.cores.allowed)
    try:
        before = _bare_gain(servers.cores.allowed, subject.seconds / 2)
        window = await closed_loop(subject, [_calling(session, "burn", "burned:") for session in sessions])
        spent = subject.spent
        after = _bare_gain(servers.cores.allowed, subject.seconds / 2)
    finally:
        servers.confine(servers.cores.workers)
    await subject.close(sessions)
    return Measured(
        {
            "burn_rate": window.turns / window.wall,
            "burn_cpu": spent.workers / window.turns * 1e3,
            "burn_allowed": (before + after) / 2,
        }
    )


def _bare_gain(cores: frozenset[int], seconds: float) -> float:
    """Return the work of two bare interpreters at once ÷ the work of one: what the machine allows now."""

    def work(processes: int) -> int:
        command = [sys.executable, "-I", "-S", "-c", _BUSY_LOOP.format(seconds)]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
        for process in started:
            os.sched_setaffinity(process.pid, cores)
        return sum(int(process.communicate()[0]) for process in started)

    alone = work(1)
    return work(2) / alone


async def spread(subject: ScaleSubject) -> Measured:
    """Many sessions alive at once: how many each worker has."""
    count = subject.size.sessions

    async def open_one(client: Client, number: int) -> str:
        return await client.open(number % 2)

    sids = await each(subject, range(count), open_one)
    deadline = time.monotonic() + _PATIENCE
    while sum(held := [int(row["sessions"]) for row in subject.servers.slots()]) != len(sids):
        if time.monotonic() > deadline:
            raise WrongAnswer("the workers have another number of sessions than were opened")
        await asyncio.sleep(0.1)
    await each(subject, sids[:: max(1, len(sids) // 500)], lambda client, sid: client.ping(sid))
    return Measured({"fullest": max(held) / (sum(held) / len(held))})


# --- a worker dies -------------------------------------------------------------------------------


async def killed(subject: ScaleSubject) -> Measured:
    """Kill a worker: its sessions, a call under way, and the sessions of the other one."""
    pid, mine, others = await _divided(subject)
    in_flight = asyncio.create_task(_lost_call(subject, mine[0]))
    await asyncio.sleep(0.3)
    async with probing(subject, *(functools.partial(_ping, sid=sid) for sid in others)):
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        gone = await _until_gone(subject, mine[1]) - started
        ended = await in_flight - started
        await asyncio.sleep(0.3)
    return Measured({"killed": gone * 1e3, "killed_in_flight": ended * 1e3})


async def stopped(subject: ScaleSubject) -> Measured:
    """Stop a worker with SIGSTOP; let it go on once its sessions are lost, and find them again."""
    pid, mine, others = await _divided(subject)
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    try:
        async with probing(subject, *(functools.partial(_ping, sid=sid) for sid in others)):
            gone = await _until_gone(subject, mine[1]) - started
    finally:
        os.kill(pid, signal.SIGCONT)
    client = subject.client(Meter())
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            await client.ping(mine[1])
            break
        except Failure:
            if time.monotonic() > deadline:
                raise WrongAnswer("the sessions of a worker that goes on are not found again") from None
            await asyncio.sleep(0.1)
    return Measured({"stopped": gone})


async def _divided(subject: ScaleSubject) -> tuple[int, Sequence[str], Sequence[str]]:
    """Open sessions; return the process of slot 0, its sessions and the others'."""
    by_slot: dict[bool, list[str]] = {True: [], False: []}
    for session in await subject.open(_SPREAD, connected=False):
        # The first 20 bits of a placed id are its slot.
        by_slot[int(session.sid[:5], 16) == 0].append(session.sid)
    [pid] = [int(row["pid"]) for row in subject.servers.slots() if row["slot"] == 0]
    if len(by_slot[True]) < 2 or not by_slot[False]:
        raise WrongAnswer("the sessions are not spread over the workers")
    return pid, by_slot[True], by_slot[False][:2]


async def _ping(client: Client, sid: str) -> None:
    await client.ping(sid)


async def _until_gone(subject: ScaleSubject, sid: str) -> float:
    """Ping a session until it is answered with 410; return that time. Lost connections are expected meanwhile."""
    client = subject.client(Meter())
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            await client.ping(sid)
        except Refused as refused:
            if str(refused).startswith("status 410") and "Session lost" in str(refused):
                return time.monotonic()
            raise WrongAnswer(f"a lost session is answered with {refused}") from None
        except ConnectionLost:
            pass
        await asyncio.sleep(_PING_EVERY)
    raise WrongAnswer("a lost session is not answered with 410")


async def _lost_call(subject: ScaleSubject, sid: str) -> float:
    """Wait for a call whose worker dies; return when its stream or its connection ended."""
    client = subject.client(Meter())
    with contextlib.suppress(ConnectionLost, CallLost):
        await client.call(sid, "slow", {"seconds": _PATIENCE}, "slept")
        raise WrongAnswer("a call of a dead worker has an answer")
    return time.monotonic()
