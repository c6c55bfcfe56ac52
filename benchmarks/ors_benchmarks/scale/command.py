"""``ors-server bench scale``: several workers behind a gateway, beside nginx, HAProxy and bare uvicorn, in one run.

``python -m ors_benchmarks.scale`` is the same. The exit code says whether every answer was right, never how fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from ors_benchmarks.harness.commands import (
    RESULTS,
    Output,
    Rows,
    as_program,
    choose,
    finish,
    new_console,
    rounds_option,
    seconds_option,
    section,
)
from ors_benchmarks.harness.figures import Measured
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.latencies import Meter
from ors_benchmarks.harness.processes import raise_file_limit
from ors_benchmarks.harness.results import Report
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT, Run, Turn, turns
from ors_benchmarks.harness.table import Layout
from ors_benchmarks.harness.table import print_report as print_table
from ors_benchmarks.scale.candidates import CANDIDATES, GATEWAY, GATEWAY_TCP, Candidate, versions
from ors_benchmarks.scale.rows import FIGURES, ROWS, ScaleRow, quotients
from ors_benchmarks.scale.scenarios import FULL, QUICK, ScaleSubject, Size
from ors_benchmarks.scale.servers import Cores, Servers

__all__ = ["benchmark", "main"]


def benchmark(
    rounds: Annotated[int | None, rounds_option(FULL.rounds)] = None,
    seconds: Annotated[float | None, seconds_option(int(FULL.seconds))] = None,
    candidates: Annotated[str, typer.Option(metavar="NAME,...", help="What to measure, in this order.")] = ",".join(
        candidate.name for candidate in CANDIDATES
    ),
    rows: Rows = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round, 1 s stretches, 1,000 sessions: at most 2 minutes.")
    ] = False,
    output: Output = RESULTS,
) -> None:
    """Measure what several workers behind a gateway cost and gain, every answer verified.

    \b
    The gateway beside nginx and HAProxy in front of the same workers, one
    worker alone, and bare uvicorn. They take turns, round after round; ratios
    are of the same round. It ends with 1 if any answer was wrong or missing,
    and never because something was slow.
    """
    console = new_console()
    size = QUICK if quick else FULL
    size = dataclasses.replace(size, rounds=rounds or size.rounds, seconds=seconds or size.seconds)
    chosen = choose(candidates, CANDIDATES, "--candidates")
    chosen_rows = choose(rows, ROWS, "--rows")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        report = run(chosen, chosen_rows, size, Path(folder), console)
    finish(report, "scale", output, console, _print_report)


main = as_program(
    benchmark,
    section("Rows", ROWS),
    section(
        "Candidates",
        [
            "gateway          2 workers behind the gateway, as `serve --workers 2` starts them",
            "gateway-tcp      the same with workers on TCP, as on several machines",
            "nginx, haproxy   2 workers with --listen tcp: behind them; left out if not installed",
            "direct           one worker alone: `serve` without --workers",
            "floor            bare uvicorn with one constant answer",
        ],
    ),
    section(
        "Examples",
        [
            "ors-server bench scale --quick           within 2 minutes",
            "ors-server bench scale                   everything, a quarter of an hour",
            "ors-server bench scale --rows calls,one --candidates gateway,direct,floor",
        ],
    ),
    "Leave the machine alone meanwhile. With two cores gateway and workers share one,",
    "and the load has the other; a third is the gateway's own.",
)


def run(
    candidates: Sequence[Candidate], rows: Sequence[ScaleRow], size: Size, folder: Path, console: Console
) -> Report:
    """Measure everything; ``folder`` takes the servers' logs. Raises ``StartFailed``."""
    run = Run(FIGURES, console)
    present = [candidate for candidate in candidates if candidate.here]
    for candidate in candidates:
        if not candidate.here:
            run.gathered.notes[candidate.name].append(f"not measured: {candidate.program} is not installed")
    raise_file_limit()
    cores = Cores.of_this_process()
    found: dict[str, dict[str, float]] = {}
    number = 1

    def end_round() -> None:
        servers.end_round()
        for name, figures in quotients(found).items():
            run.gathered.add(name, "all", Measured(figures), {})
        found.clear()

    with _on(cores.load, cores.allowed), _Running(folder, cores) as servers:
        for turn in run.each(turns(size.rounds, rows, present, lambda _, row, each: each.name in row.candidates)):
            if turn.number != number:
                end_round()
                number = turn.number
            measured, failures = _measure(turn, servers, size)
            if not failures:
                found.setdefault(turn.candidate.name, {}).update(measured.figures)
            run.add(turn, measured, failures)
        end_round()
    return run.report(
        rounds=size.rounds,
        window_seconds=size.seconds,
        rows=rows,
        titles={candidate.name: candidate.title for candidate in candidates},
        packages={candidate.name: versions(candidate) for candidate in present},
        ours=GATEWAY.name,
    )


def _measure(turn: Turn[ScaleRow, Candidate], running: _Running, size: Size) -> tuple[Measured, Mapping[str, int]]:
    row, candidate = turn.row, turn.candidate
    servers = running.get(candidate, row)
    meter = Meter()
    subject = ScaleSubject(servers, candidate.client, meter, size.seconds, servers=servers, size=size)

    async def limited() -> Measured:
        try:
            async with asyncio.timeout(MEASUREMENT_LIMIT):
                return await row.measure(subject)
        finally:
            await subject.disconnect()

    measured = Measured()
    gc.collect()
    gc.disable()  # its pauses would be in the latencies
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            measured = runner.run(limited())
    except TimeoutError:
        meter.failures[f"not done after {MEASUREMENT_LIMIT:g} s"] += 1
    except Failure as failure:
        # The client has counted it, unless it is about several requests.
        if not meter.failures:
            meter.failures[str(failure)] += 1
    finally:
        gc.enable()
    if not servers.running:
        meter.failures["a server ended"] += 1
    if meter.failures or row.spoils:
        running.discard(candidate)
    return measured, Counter(meter.failures)


class _Running(contextlib.AbstractContextManager["_Running"]):
    """The servers of a round, each candidate's started when it is first measured."""

    def __init__(self, folder: Path, cores: Cores) -> None:
        self._folder = folder
        self._cores = cores
        self._servers: dict[str, tuple[int, Servers]] = {}

    def get(self, candidate: Candidate, row: ScaleRow) -> Servers:
        """Return the servers for a row."""
        kept = self._servers.get(candidate.name)
        if kept is not None and (row.fresh or kept[0] != row.workers):
            self.discard(candidate)
        if candidate.name not in self._servers:
            servers = candidate.start(self._folder, self._cores, row.workers)
            self._servers[candidate.name] = (row.workers, servers)
        return self._servers[candidate.name][1]

    def discard(self, candidate: Candidate) -> None:
        """Stop a candidate's servers, if it has any; the next ``get`` starts others."""
        if candidate.name in self._servers:
            self._servers.pop(candidate.name)[1].stop()

    def end_round(self) -> None:
        """Stop all servers."""
        while self._servers:
            _, (_, servers) = self._servers.popitem()
            servers.stop()

    def __exit__(self, *_: object) -> None:
        self.end_round()


@contextlib.contextmanager
def _on(cores: frozenset[int], allowed: frozenset[int]) -> Generator[None]:
    """Keep this process, and what it starts meanwhile, on some cores."""
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _print_report(report: Report, console: Console) -> None:
    layout = Layout(
        figures=FIGURES,
        ours=[GATEWAY.name, GATEWAY_TCP.name],
        bases={},
        legend="ratios are of the same round.",
        setting="a core for the workers, one for the load; " if report.machine.pinned else "all on one core; ",
    )
    print_table(report, layout, console)
