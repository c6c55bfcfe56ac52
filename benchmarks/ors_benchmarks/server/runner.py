"""A run of the server benchmark: each candidate a process, for all rows of a round.

A row that changes the process gets one of its own, and so does whatever follows a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop
from rich.console import Console

from ors_benchmarks.harness.candidates import OURS, Candidate, packages
from ors_benchmarks.harness.figures import Measured
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.latencies import Meter
from ors_benchmarks.harness.processes import Cores, Pause, ServerProcess, cores, on_core, raise_file_limit
from ors_benchmarks.harness.results import Gathered, Report
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT, Run, Turn, turns
from ors_benchmarks.server.closed_loop import Subject
from ors_benchmarks.server.floor import FLOOR, FloorClient
from ors_benchmarks.server.observed import OBSERVED, UNOBSERVED, arguments_of, client_of
from ors_benchmarks.server.rows import FIGURES, ServerRow

__all__ = ["Plan", "run"]

ServerTurn = Turn[ServerRow, Candidate]


@dataclass(frozen=True)
class Plan:
    """Candidates, rows and rounds of a run."""

    candidates: Sequence[Candidate]
    rows: Sequence[ServerRow]
    rounds: int
    #: Seconds of each closed loop.
    seconds: float

    def measurements(self) -> list[ServerTurn]:
        """All measurements in their order."""

        def applies(number: int, row: ServerRow, candidate: Candidate) -> bool:
            if row.candidates:
                return candidate.name in row.candidates
            if candidate in (OBSERVED, UNOBSERVED):
                return False
            return (number % 2 == 1 or not row.heavy) and (row.floor or candidate is not FLOOR)

        return turns(self.rounds, self.rows, self.candidates, applies)


def run(plan: Plan, folder: Path, console: Console) -> Report:
    """Measure everything; ``folder`` takes the servers' logs. Raises ``PeerUnavailable`` and ``StartFailed``."""
    pythons = {candidate.name: candidate.prepare() for candidate in plan.candidates}
    run = Run(FIGURES, console)
    raise_file_limit()
    # Read before this process confines itself to one of them.
    assigned = cores()
    with on_core(assigned.load), _Processes(plan.candidates, pythons, folder, assigned) as processes:
        number = 1
        for turn in run.each(plan.measurements()):
            if turn.number != number:
                processes.end_round(run.gathered)
                number = turn.number
            run.add(turn, *_measure(plan, turn, processes))
        processes.end_round(run.gathered)
    return run.report(
        rounds=plan.rounds,
        window_seconds=plan.seconds,
        rows=plan.rows,
        titles={candidate.name: candidate.title for candidate in plan.candidates},
        packages={name: packages(python) for name, python in pythons.items()},
        ours=OURS.name,
    )


def _measure(plan: Plan, turn: ServerTurn, processes: _Processes) -> tuple[Measured, Mapping[str, int]]:
    _, row, candidate = turn
    started = time.monotonic()
    process = processes.get(candidate, fresh=row.fresh)
    process.forget_log()
    meter = Meter()
    client = FloorClient if candidate is FLOOR else partial(client_of, candidate, processes.folder)
    subject = Subject(process, client, meter, plan.seconds)

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
    return measured, Counter(meter.failures)


@dataclass
class _Processes(contextlib.AbstractContextManager["_Processes"]):
    """The servers of a round, each started when it is first measured."""

    candidates: Sequence[Candidate]
    pythons: Mapping[str, str]
    folder: Path
    cores: Cores
    _running: dict[str, ServerProcess] = field(default_factory=dict[str, ServerProcess])
    #: Of the round so far: the collector's pauses by candidate, and (row, start, end) of each measurement.
    _pauses: dict[str, list[Pause]] = field(default_factory=dict[str, list[Pause]])
    _spans: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])

    def get(self, candidate: Candidate, *, fresh: bool) -> ServerProcess:
        if fresh:
            self.discard(candidate)
        if candidate.name not in self._running:
            command = candidate.command(self.pythons[candidate.name], *arguments_of(candidate, self.folder))
            self._running[candidate.name] = ServerProcess.start(
                command, self.folder, self.cores.server, name=candidate.name
            )
        return self._running[candidate.name]

    def discard(self, candidate: Candidate) -> None:
        """Stop a candidate's process, if it has one; the next ``get`` starts another."""
        process = self._running.pop(candidate.name, None)
        if process is not None:
            pauses = process.stop()
            if pauses is not None:
                self._pauses.setdefault(candidate.name, []).extend(pauses)

    def note(self, row: ServerRow, started: float) -> None:
        """Note that a row was measured from ``started``, by ``time.monotonic``, until now."""
        self._spans.append((row.name, started, time.monotonic()))

    def end_round(self, gathered: Gathered) -> None:
        """Stop all processes and add their longest pauses: of the round, and of each row in it."""
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
def _no_collector() -> Generator[None]:
    """Keep this process's own collector from adding to the latencies."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
