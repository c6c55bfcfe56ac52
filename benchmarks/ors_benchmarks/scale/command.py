"""``ors-server bench scale``: several workers behind a gateway, beside nginx, HAProxy and bare uvicorn, in one run.

``python -m ors_benchmarks.scale`` is the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from ors_benchmarks.harness.benchmark import Benchmark, Measuring
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.latencies import Meter
from ors_benchmarks.harness.reports.results import Report
from ors_benchmarks.harness.reports.table import Layout
from ors_benchmarks.harness.runs import Run, Turn
from ors_benchmarks.scale.candidates import CANDIDATES, GATEWAY, GATEWAY_TCP, Candidate, versions
from ors_benchmarks.scale.rows import FIGURES, ROWS, ScaleRow
from ors_benchmarks.scale.scenarios import FULL, QUICK, ScaleSize, ScaleSubject
from ors_benchmarks.scale.servers import Cores, Servers
from ors_benchmarks.server.closed_loop import measure

__all__ = ["BENCHMARK", "main"]


@contextlib.contextmanager
def _measuring(
    candidates: Sequence[Candidate], size: ScaleSize, folder: Path, run: Run
) -> Generator[Measuring[ScaleRow, Candidate]]:
    """Measure arrangements of servers. Raises ``StartFailed``."""
    for candidate in candidates:
        if not candidate.here:
            run.leave_out(candidate, f"{candidate.program} is not installed")
    cores = Cores.of_this_process()
    os.sched_setaffinity(0, cores.load)
    try:
        with _Running(folder, cores, size) as servers:
            present = [candidate for candidate in candidates if candidate.here]
            yield Measuring(present, servers.measure, lambda _: servers.stop())
    finally:
        os.sched_setaffinity(0, cores.allowed)


class _Running(contextlib.AbstractContextManager["_Running"]):
    """The servers of a round, each candidate's started when it is first measured."""

    def __init__(self, folder: Path, cores: Cores, size: ScaleSize) -> None:
        self._folder = folder
        self._cores = cores
        self._size = size
        self._servers: dict[str, tuple[int, Servers]] = {}

    def measure(self, turn: Turn[ScaleRow, Candidate]) -> tuple[Measured, Mapping[str, int]]:
        """Measure a row of a candidate."""
        _, row, candidate = turn
        servers = self._get(candidate, row)
        subject = ScaleSubject(servers, candidate.client, Meter(), self._size.seconds, servers=servers, size=self._size)
        measured, failures = measure(row.measure, subject)
        if not servers.running:
            failures["a server ended"] += 1
        if failures or row.spoils:
            self._discard(candidate)
        return measured, failures

    def _get(self, candidate: Candidate, row: ScaleRow) -> Servers:
        kept = self._servers.get(candidate.name)
        if kept is not None and (row.fresh or kept[0] != row.workers):
            self._discard(candidate)
        if candidate.name not in self._servers:
            servers = candidate.start(self._folder, self._cores, row.workers)
            self._servers[candidate.name] = (row.workers, servers)
        return self._servers[candidate.name][1]

    def _discard(self, candidate: Candidate) -> None:
        """Stop a candidate's servers, if it has any; its next measurement starts others."""
        if candidate.name in self._servers:
            self._servers.pop(candidate.name)[1].stop()

    def stop(self) -> None:
        """Stop all servers."""
        while self._servers:
            _, (_, servers) = self._servers.popitem()
            servers.stop()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _layout(report: Report) -> Layout:
    return Layout(
        ours=[GATEWAY.name, GATEWAY_TCP.name],
        bases={},
        legend="ratios are of the same round.",
        setting="a core for the workers, one for the load; " if report.machine.pinned else "all on one core; ",
    )


BENCHMARK = Benchmark(
    name="scale",
    help="""Measure what several workers behind a gateway cost and gain, every answer verified.

    \b
    The gateway beside nginx and HAProxy in front of the same workers, one
    worker alone, and bare uvicorn. They take turns, round after round; ratios
    are of the same round. It ends with 1 if any answer was wrong or missing,
    and never because something was slow.
    """,
    examples=[
        "ors-server bench scale --quick           within 2 minutes",
        "ors-server bench scale                   everything, a quarter of an hour",
        "ors-server bench scale --rows calls,one --candidates gateway,direct,floor",
    ],
    quick_help="One round, 1 s stretches, 1,000 sessions: at most 2 minutes.",
    rows=ROWS,
    candidates=CANDIDATES,
    figures=FIGURES,
    full=FULL,
    quick=QUICK,
    measuring=_measuring,
    applies=lambda _, row, candidate: candidate.name in row.candidates,
    packages=versions,
    layout=_layout,
    about_candidates=[
        "gateway          2 workers behind the gateway, as `serve --workers 2` starts them",
        "gateway-tcp      the same with workers on TCP, as on several machines",
        "nginx, haproxy   2 workers with --listen tcp: behind them; left out if not installed",
        "direct           one worker alone: `serve` without --workers",
        "floor            bare uvicorn with one constant answer",
    ],
    advice=[
        "Leave the machine alone meanwhile. With two cores gateway and workers share one,",
        "and the load has the other; a third is the gateway's own.",
    ],
)
main = BENCHMARK.program()
