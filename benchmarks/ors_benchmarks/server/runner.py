"""A run of the server benchmark: each candidate a process, for all rows of a round.

A row that changes the process gets one of its own, and so does whatever follows a failure.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ors_benchmarks.harness.benchmark import Measuring
from ors_benchmarks.harness.candidates import Candidate
from ors_benchmarks.harness.processes import Cores, Pause, ServerProcess, cores, on_core
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.latencies import Meter, percentile
from ors_benchmarks.harness.reports.results import Gathered
from ors_benchmarks.harness.runs import Run, Size, Turn
from ors_benchmarks.server.closed_loop import Subject, measure
from ors_benchmarks.server.floor import FLOOR, FloorClient
from ors_benchmarks.server.observed import OBSERVED, UNOBSERVED, arguments_of, client_of
from ors_benchmarks.server.rows import ServerRow

__all__ = ["applies", "measuring"]

ServerTurn = Turn[ServerRow, Candidate]


def applies(number: int, row: ServerRow, candidate: Candidate) -> bool:
    """Return whether a row of a candidate is measured in a round."""
    if row.candidates:
        return candidate.name in row.candidates
    if candidate in (OBSERVED, UNOBSERVED):
        return False
    return (number % 2 == 1 or not row.heavy) and (row.floor or candidate is not FLOOR)


@contextlib.contextmanager
def measuring(
    candidates: Sequence[Candidate], size: Size, folder: Path, run: Run
) -> Generator[Measuring[ServerRow, Candidate]]:
    """Measure servers of this machine. Raises ``PeerUnavailable`` and ``StartFailed``."""
    # Read before this process confines itself to one of them.
    assigned = cores()
    with on_core(assigned.load), _Processes(candidates, folder, assigned) as processes:
        yield Measuring(candidates, partial(_measure, size, processes), processes.end_round)


def _measure(size: Size, processes: _Processes, turn: ServerTurn) -> tuple[Measured, Mapping[str, int]]:
    _, row, candidate = turn
    started = time.monotonic()
    process = processes.get(candidate, fresh=row.fresh)
    process.forget_log()
    client = FloorClient if candidate is FLOOR else partial(client_of, candidate, processes.folder)
    subject = Subject(process, client, Meter(), size.seconds)
    measured, failures = measure(row.measure, subject)
    processes.note(row, started)
    if not process.running:
        failures["the server ended"] += 1
    if failures or row.fresh:
        processes.discard(candidate)
    return measured, failures


@dataclass
class _Processes(contextlib.AbstractContextManager["_Processes"]):
    """The servers of a round, each started when it is first measured."""

    candidates: Sequence[Candidate]
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
            command = candidate.command(candidate.prepare(), *arguments_of(candidate, self.folder))
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
                    figures[f"collector_p99_{name}"] = percentile(within, 0.99) * 1e3
                    figures[f"collector_share_{name}"] = sum(within) / (ended - started) * 100
            gathered.add(candidate.name, "all", Measured(figures), {})
        self._spans.clear()

    def __exit__(self, *_: object) -> None:
        for candidate in self.candidates:
            self.discard(candidate)
