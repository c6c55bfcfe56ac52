"""A whole run: rounds of rows of candidates, each candidate a process.

Candidates take turns within each row (A B C D, A B C D, …), so that what disturbs the machine for a minute disturbs all
of them. In a round each candidate has one process for all rows; a row that changes the process gets its own, and so
does whatever comes after a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from ors_benchmarks.harness.candidates import FLOOR, OURS, Candidate, packages
from ors_benchmarks.harness.figures import Row
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.machine import Observer, describe
from ors_benchmarks.harness.meter import Meter
from ors_benchmarks.harness.processes import Cores, Pause, ServerProcess, cores, raise_file_limit
from ors_benchmarks.harness.results import Gathered, Report
from ors_benchmarks.server.load import Subject
from ors_benchmarks.server.scenarios import Measured

__all__ = ["Outcome", "Plan", "run"]

#: Seconds one measurement may take before it counts as hung.
MEASUREMENT_LIMIT = 600.0


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    candidates: Sequence[Candidate]
    rows: Sequence[Row]
    rounds: int
    #: Seconds of each closed loop.
    seconds: float

    def measurements(self) -> list[tuple[int, Row, Candidate]]:
        """All measurements in their order."""
        return [
            (number, row, candidate)
            for number in range(1, self.rounds + 1)
            for row in self.rows
            if number % 2 or not row.heavy
            for candidate in self.candidates
            if row.floor or candidate is not FLOOR
        ]


@dataclass(frozen=True)
class Outcome:
    """One measurement, done."""

    number: int
    row: Row
    candidate: Candidate
    measured: Measured
    failures: Mapping[str, int]
    seconds: float


def run(
    plan: Plan, folder: Path, announce: Callable[[int, Row, Candidate], None], report: Callable[[Outcome], None]
) -> Report:
    """Measure everything; ``announce`` is called before each measurement and ``report`` after it.

    ``folder`` takes the servers' logs. Raises ``PeerUnavailable`` and ``StartFailed``.
    """
    started, clock = datetime.now(UTC), time.monotonic()
    pythons = {candidate.name: candidate.prepare() for candidate in plan.candidates}
    observer = Observer()
    gathered = Gathered()
    raise_file_limit()
    # Asked for before this process confines itself to one of them.
    placed = cores()
    with _on_core(placed.load), _Processes(plan.candidates, pythons, folder, placed) as processes:
        previous = 0
        for number, row, candidate in plan.measurements():
            if number != previous:
                processes.end_round(gathered)
                previous = number
            announce(number, row, candidate)
            outcome = _measure(plan, number, row, candidate, processes)
            gathered.add(candidate.name, row.name, outcome.measured, outcome.failures)
            report(outcome)
        processes.end_round(gathered)
    return Report(
        started=started.replace(microsecond=0),
        seconds=round(time.monotonic() - clock, 1),
        rounds=plan.rounds,
        window_seconds=plan.seconds,
        rows=[row.name for row in plan.rows],
        machine=observer.finish(describe()),
        titles={candidate.name: candidate.title for candidate in plan.candidates},
        packages={name: packages(python) for name, python in pythons.items()},
        figures=gathered.figures(OURS.name),
        curves=gathered.curves(),
        failures={name: dict(failures) for name, failures in gathered.failures.items()},
        notes=dict(gathered.notes),
    )


def _measure(plan: Plan, number: int, row: Row, candidate: Candidate, processes: _Processes) -> Outcome:
    started = time.monotonic()
    process = processes.get(candidate, fresh=row.fresh)
    process.forget_log()
    meter = Meter()
    subject = Subject(process, candidate.client, meter, plan.seconds)

    async def limited() -> Measured:
        try:
            async with asyncio.timeout(MEASUREMENT_LIMIT):
                return await row.measure(subject)
        finally:
            await subject.disconnect()

    measured = Measured()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, _no_collector():
        try:
            measured = runner.run(limited())
        except TimeoutError:
            meter.failures[f"not done after {MEASUREMENT_LIMIT:g} s"] += 1
        except Failure as failure:
            # The client has counted it, unless it is about several requests.
            if not meter.failures:
                meter.failures[str(failure)] += 1
    processes.note(row, started)
    if not process.running:
        meter.failures["the server ended"] += 1
    if meter.failures or row.fresh:
        processes.discard(candidate)
    return Outcome(number, row, candidate, measured, Counter(meter.failures), time.monotonic() - started)


@dataclass
class _Processes(contextlib.AbstractContextManager["_Processes"]):
    """The servers of a round, each started when it is first measured."""

    candidates: Sequence[Candidate]
    pythons: Mapping[str, str]
    folder: Path
    cores: Cores
    _running: dict[str, ServerProcess] = field(default_factory=dict[str, ServerProcess])
    #: Of the round so far: the collector's pauses, and what was measured when.
    _pauses: dict[str, list[Pause]] = field(default_factory=dict[str, list[Pause]])
    _spans: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])

    def get(self, candidate: Candidate, *, fresh: bool) -> ServerProcess:
        if fresh:
            self.discard(candidate)
        if candidate.name not in self._running:
            command = candidate.command(self.pythons[candidate.name])
            self._running[candidate.name] = ServerProcess.start(
                command, self.folder, self.cores.server, name=candidate.name
            )
        return self._running[candidate.name]

    def discard(self, candidate: Candidate) -> None:
        """Stop a candidate's process, if there is one; the next ``get`` starts another."""
        process = self._running.pop(candidate.name, None)
        if process is not None:
            pauses = process.stop()
            if pauses is not None:
                self._pauses.setdefault(candidate.name, []).extend(pauses)

    def note(self, row: Row, started: float) -> None:
        """A row was measured from ``started``, by ``time.monotonic``, until now."""
        self._spans.append((row.name, started, time.monotonic()))

    def end_round(self, gathered: Gathered) -> None:
        """Stop all processes and give their longest pauses: of the round, and of each row in it."""
        for candidate in self.candidates:
            self.discard(candidate)
            pauses = self._pauses.pop(candidate.name, None)
            if pauses is None:
                continue
            figures = {"collector_pause": max((pause.seconds for pause in pauses), default=0.0) * 1e3}
            for name, started, ended in self._spans:
                within = [pause.seconds for pause in pauses if started <= pause.started < ended]
                if within:
                    figures[f"collector_pause_{name}"] = max(within) * 1e3
            gathered.add(candidate.name, "all", Measured(figures), {})
        self._spans.clear()

    def __exit__(self, *_: object) -> None:
        for candidate in self.candidates:
            self.discard(candidate)


@contextlib.contextmanager
def _on_core(core: int | None) -> Generator[None]:
    """Keep this process on a core."""
    allowed = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def _no_collector() -> Generator[None]:
    """Keep this process's own collector from adding to the latencies."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
