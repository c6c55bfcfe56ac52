"""Scenarios: one function a row of the sandboxes' benchmark, and the figures of the rows.

Every answer is checked: a command's output is a number that only this command can have given. A start that fails, or a
wrong answer, is a ``Failure``; the row then has no figures.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_containers.errors import SandboxError
from ors_containers.images import ImageStore, Recipe
from ors_containers.sandbox import Sandbox
from ors_containers.scheduling.admission import Admission
from ors_containers.scheduling.capacity import CapacityReader
from ors_containers.scheduling.pool import SandboxPool

from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.harness.client import Client
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.processes import ServerProcess
from ors_benchmarks.harness.reports.figures import Figure, Measured, Quotient, Row
from ors_benchmarks.harness.reports.latencies import Meter, percentile
from ors_benchmarks.harness.runs import Size
from ors_benchmarks.sandboxes.candidates import LIMITS, PATIENCE, Box, Candidate, Ours, OursBox, server_command

__all__ = ["FIGURES", "FULL", "QUICK", "ROWS", "SandboxRow", "SandboxSize"]

#: Sessions of one group, as GRPO has them.
GROUP = 16
SETUP_SECONDS = 0.5
#: Leaves an idle Python running.
_PYTHON = "python3 -c 'import time; time.sleep(600)' > /dev/null 2>&1 & echo started"
#: Seconds that freed memory takes to show as free.
_SETTLE = 1.0


@dataclass(frozen=True, kw_only=True)
class SandboxSize(Size):
    """Repetitions of a round."""

    starts: int
    commands: int
    crowds: Sequence[int]


FULL = SandboxSize(rounds=3, starts=40, commands=500, crowds=(100, 500))
QUICK = SandboxSize(rounds=1, starts=10, commands=100, crowds=(100,))


@dataclass(frozen=True)
class SandboxRow(Row):
    """A row of the sandboxes' benchmark."""

    measure: Callable[[Candidate, SandboxSize], Awaitable[Measured]]
    applies: Callable[[Candidate], bool] = lambda _: True


def _spread(key: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{key}_p50": percentile(seconds, 0.5) * 1e3, f"{key}_p95": percentile(seconds, 0.95) * 1e3}


def _ours(candidate: Candidate) -> Ours:
    assert isinstance(candidate, Ours)
    return candidate


async def cold_starts(candidate: Candidate, size: SandboxSize) -> Measured:
    """Start sandboxes one after the other: start, first answer, stop."""
    creations, starts, stops = list[float](), list[float](), list[float]()
    for _ in range(size.starts):
        started = time.perf_counter()
        box = await candidate.start()
        created = time.perf_counter()
        try:
            await box.check()
            answered = time.perf_counter()
        finally:
            await box.stop()
        creations.append(created - started)
        starts.append(answered - started)
        stops.append(time.perf_counter() - answered)
    figures = _spread("cold", starts)
    # `apptainer exec` creates nothing, and leaves nothing that could be stopped.
    if percentile(stops, 0.5) > 1e-4:
        figures |= {"create_p50": percentile(creations, 0.5) * 1e3, **_spread("stop", stops)}
    return Measured(figures)


async def warm_starts(candidate: Candidate, size: SandboxSize) -> Measured:
    """Take sandboxes one after the other from a pool that has had time to fill.

    Raises ``WrongAnswer`` for a pool that starts another, and what its sandboxes' answers raise.
    """
    ours = _ours(candidate)
    pool = SandboxPool(ours.runtime, Admission(), warm=2)
    seconds: list[float] = []
    try:
        for number in range(size.starts + 2):
            started = time.perf_counter()
            box = OursBox(await _opened(pool, ours))
            try:
                await box.check()
                if number >= 2:  # an image is in demand from the second time on
                    seconds.append(time.perf_counter() - started)
            finally:
                await box.stop()
            await _filled(pool, 2 if number else 0)
        if pool.counts.cold > 2:
            raise WrongAnswer("a pool that is full and starts another")
    finally:
        await pool.close()
    return Measured(_spread("warm", seconds))


async def _filled(pool: SandboxPool, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while pool.warm < count:
        if time.monotonic() > deadline:
            raise Failure("a pool that is not filled")
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)  # what fills it is at rest again


async def _opened(pool: SandboxPool, ours: Ours) -> Sandbox:
    try:
        return await pool.acquire(ours.image, LIMITS)
    except SandboxError as error:
        raise Failure(f"{type(error).__name__}: {error}"[:200]) from error


async def commands(candidate: Candidate, size: SandboxSize) -> Measured:
    """Commands in one sandbox, one after the other."""
    box = await candidate.start()
    seconds: list[float] = []
    try:
        await box.check()
        for _ in range(size.commands if candidate.keeps_shell else size.starts):
            started = time.perf_counter()
            await box.check()
            seconds.append(time.perf_counter() - started)
    finally:
        await box.stop()
    return Measured(_spread("command", seconds))


async def through_http(candidate: Candidate, size: SandboxSize) -> Measured:
    """Sessions of a server in a process of its own, and commands in the last of them."""
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        command = server_command(_ours(candidate))
        server = await asyncio.to_thread(ServerProcess.start, command, Path(folder), None, name="sandboxes")
        client = Client(server.address, Meter(), "sandboxenvironment")
        try:
            firsts: list[float] = []
            sid = ""
            for number in range(max(4, size.starts // 4)):
                started = time.perf_counter()
                sid = await client.open(0)
                await client.prompt(sid, 0)
                await _command(client, sid, number)
                firsts.append(time.perf_counter() - started)
                if number:
                    await client.close(sid)
                    sid = ""
            sid = await client.open(0)
            await client.prompt(sid, 0)
            for number in range(10):
                await _command(client, sid, number)
            client.meter.between(time.monotonic())
            for number in range(size.commands):
                await _command(client, sid, number)
            latencies = client.meter.latencies["call"]
            figures = {**_spread("http", latencies), "http_first": percentile(firsts, 0.5) * 1e3}
            await client.close(sid)
        finally:
            client.close_connection()
            await asyncio.to_thread(server.stop)
    return Measured(figures)


async def _command(client: Client, sid: str, number: int) -> None:
    token = secrets.randbelow(2**32)
    await client.call(sid, "bash", {"text": f"echo $(({token} + {number}))"}, f"{token + number}\n")


async def crowd(candidate: Candidate, size: SandboxSize) -> Measured:
    """Idle sandboxes at once: until the last has come up, what each takes, and whether each of them works."""
    figures: dict[str, float] = {}
    for count in size.crowds:
        await asyncio.sleep(_SETTLE)
        before, files = CapacityReader().read().memory, _open_files()
        boxes: list[Box] = []
        try:
            started = time.perf_counter()
            results = await asyncio.gather(*_starts(candidate, count), return_exceptions=True)
            wall = time.perf_counter() - started
            boxes = [box for box in results if isinstance(box, Box)]
            for problem in results:
                if isinstance(problem, BaseException):
                    raise problem
            await asyncio.sleep(_SETTLE)
            taken = before - CapacityReader().read().memory
            figures[f"crowd_{count}_files"] = (_open_files() - files) / count
            for box in boxes:
                await box.check()
            if count == size.crowds[0]:
                for box in boxes:
                    await box.run(_PYTHON)
                await asyncio.sleep(_SETTLE)
                figures[f"crowd_{count}_python"] = (before - CapacityReader().read().memory) / count / 2**20
            started = time.perf_counter()
        finally:
            await asyncio.gather(*(box.stop() for box in boxes))
        figures[f"crowd_{count}_wall"] = wall
        figures[f"crowd_{count}_memory"] = taken / count / 2**20
        figures[f"crowd_{count}_stop"] = time.perf_counter() - started
        figures[f"crowd_{count}_failures"] = count - len(boxes)
    return Measured(figures)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their number is enough


def _starts(candidate: Candidate, count: int) -> list[Awaitable[Box]]:
    # By hand as few at a time as ours: more only get into each other's way.
    few = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def by_hand() -> Box:
        async with few:
            return await candidate.start()

    if not isinstance(candidate, Ours):
        return [by_hand() for _ in range(count)]
    pool = SandboxPool(candidate.runtime, Admission(queue=count), warm=0)

    async def admitted() -> Box:
        return OursBox(await _opened(pool, candidate))

    return [admitted() for _ in range(count)]


async def group(candidate: Candidate, size: SandboxSize) -> Measured:
    """Open the sessions of a group: 16 at once of one task with a set-up of half a second, and one of another task."""
    ours = _ours(candidate)
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101, S103 - for the image's user, who may be another
        store = ImageStore(Path(folder))
        try:
            one = await _group(ours, store, 1)
            several = await _group(ours, store, GROUP)
        except SandboxError as error:
            raise Failure(f"{type(error).__name__}: {error}"[:200]) from error
        finally:
            store.close()
            await store.prune(max_total=0)  # layers may have owners whose files only the store can remove
    return Measured({"group_one": one, "group_wall": several})


async def _group(ours: Ours, store: ImageStore, count: int) -> float:
    """Seconds until the last of the sessions has its first answer, which shows that one set-up was run for all."""
    # Another recipe every time, or nothing would be left to do.
    script = f"sleep {SETUP_SECONDS}; head -c 16 /dev/urandom | sha256sum > made; echo {secrets.token_hex(8)} > task"
    recipe = Recipe(script=script)
    boxes: list[OursBox] = []

    async def session() -> bytes:
        image = await store.derive(ours.image, recipe)
        sandbox = ours.runtime.sandbox(image, LIMITS)
        await sandbox.start()
        boxes.append(OursBox(sandbox))
        return await boxes[-1].run("cat made task")

    try:
        started = time.perf_counter()
        answers = await asyncio.gather(*(session() for _ in range(count)))
        wall = time.perf_counter() - started
    finally:
        await asyncio.gather(*(box.stop() for box in boxes))
    if len(set(answers)) != 1 or len(answers[0]) < 64:
        raise WrongAnswer(f"{len(set(answers))} set-ups for one task")
    return wall


async def examinations(candidate: Candidate, size: SandboxSize) -> Measured:
    """Run a program from outside that reads what a command left, after every process of the sandbox was ended.

    Raises ``WrongAnswer`` for another output, and ``Failure`` if there is none.
    """
    box = await _ours(candidate).start()
    seconds: list[float] = []
    program = ("/bin/bash", "-c", 'read -r token < note; echo "$token"; cat /.examination/told')
    try:
        for _ in range(size.starts):
            token, told = secrets.token_hex(8), secrets.token_bytes(1024).hex()
            await box.run(f"echo {token} > note; sleep 100 > /dev/null 2>&1 & disown")
            started = time.perf_counter()
            try:
                result = await box.sandbox.examine(program, files={"told": told.encode()}, timeout=PATIENCE)
            except SandboxError as error:
                raise Failure(f"{type(error).__name__}: {error}"[:200]) from error
            seconds.append(time.perf_counter() - started)
            if result.exit_status or result.text != f"{token}\n{told}":
                raise WrongAnswer(f"an examination ended with {result.exit_status}: {result.text[:60]!r}")
            await box.sandbox.run("true", timeout=PATIENCE)  # the new shell
    finally:
        await box.stop()
    return Measured(_spread("examine", seconds))


def _is_ours(candidate: Candidate) -> bool:
    return candidate.ours


ROWS: Sequence[SandboxRow] = (
    SandboxRow("cold", "starts to the first answer, and stops, one after the other", cold_starts),
    SandboxRow("warm", "the same from a pool of warm ones", warm_starts, _is_ours),
    SandboxRow("command", "commands in one sandbox", commands),
    SandboxRow("http", "sessions and commands through the server's API", through_http, _is_ours),
    SandboxRow("examine", "a grader's program, alone with what the agent left", examinations, _is_ours),
    SandboxRow("group", "16 sessions at once of one task with a set-up", group, _is_ours),
    SandboxRow("crowd", "100 and 500 idle sandboxes at once", crowd, lambda candidate: candidate.keeps_shell),
)

FIGURES: Sequence[Figure] = (
    Figure("cold_p50", "cold", "cold start to first output, p50", "ms", budget=40),
    Figure("cold_p95", "cold", "cold start to first output, p95", "ms"),
    Figure("create_p50", "cold", "creation alone, p50", "ms"),
    Quotient(
        "create_strict",
        "cold",
        "creation, sandbox service ÷ strict",
        budget=2.5,
        of="create_p50",
        peer="service",
        candidates=("bubblewrap",),
    ),
    Figure("warm_p50", "warm", "warm start to first output, p50", "ms", budget=10),
    Figure("warm_p95", "warm", "warm start to first output, p95", "ms"),
    Figure("stop_p50", "cold", "stop, p50", "ms"),
    Figure("stop_p95", "cold", "stop, p95", "ms"),
    Figure("command_p50", "command", "command round trip, p50", "ms"),
    Figure("command_p95", "command", "command round trip, p95", "ms"),
    Quotient(
        "command_podman",
        "command",
        "podman exec ÷ sandbox service",
        better="more",
        budget=3,
        of="command_p50",
        peer="podman",
        candidates=("service",),
    ),
    Figure("http_p50", "http", "command round trip through /call, p50", "ms", budget=2),
    Figure("http_p95", "http", "command round trip through /call, p95", "ms"),
    Figure("http_first", "http", "session over HTTP to first output, p50", "ms"),
    Figure("examine_p50", "examine", "examination, p50", "ms"),
    Figure("examine_p95", "examine", "examination, p95", "ms"),
    Figure("group_one", "group", "one session, its set-up of 0.5 s included", "s"),
    Figure("group_wall", "group", "16 sessions of one task, the same", "s"),
    Figure("crowd_100_wall", "crowd", "100 at once, all started", "s"),
    Figure("crowd_100_memory", "crowd", "memory of each of 100", "MiB"),
    Figure("crowd_100_python", "crowd", "… with an idle Python in each", "MiB"),
    Figure("crowd_100_files", "crowd", "descriptors of this process for each", ""),
    Figure("crowd_100_stop", "crowd", "100 at once, all stopped", "s"),
    Figure("crowd_500_wall", "crowd", "500 at once, all started", "s", budget=10),
    Figure("crowd_500_failures", "crowd", "500 at once, failures", "", budget=0),
    Figure("crowd_500_memory", "crowd", "memory of each of 500", "MiB", budget=1),
    Figure("crowd_500_stop", "crowd", "500 at once, all stopped", "s"),
)
