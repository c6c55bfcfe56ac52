"""``ors-server bench sandboxes``: our sandboxes on each runtime, beside the same programs by hand, in one run.

``python -m ors_benchmarks.sandboxes`` is the same. Candidates take turns within each row, round after round. The exit
code says whether every answer was right, never how fast.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from ors_containers.runtime import runtime_names
from rich.console import Console

from ors_benchmarks.harness import charts
from ors_benchmarks.harness.commands import choose
from ors_benchmarks.harness.http11 import Failure
from ors_benchmarks.harness.machine import Observer, describe
from ors_benchmarks.harness.processes import raise_file_limit
from ors_benchmarks.harness.results import Gathered, Report, free_path
from ors_benchmarks.harness.table import shown
from ors_benchmarks.sandboxes.candidates import Candidate, NotHere, candidates, user
from ors_benchmarks.sandboxes.report import draw, print_report
from ors_benchmarks.sandboxes.scenarios import FIGURES, FULL, QUICK, ROWS, SandboxRow, Size
from ors_benchmarks.server.scenarios import Measured
from ors_server.errors import OrsError

__all__ = ["benchmark", "main"]

#: Seconds one measurement may take before it counts as hung.
MEASUREMENT_LIMIT = 600.0


_EPILOG = "\n".join(
    [
        "[bold]Rows[/bold]",
        *(f"  {row.name:<9} {row.title}" for row in ROWS),
        "",
        "[bold]Candidates[/bold]",
        *(f"  {candidate.name:<15} {candidate.title}" for candidate in candidates()),
        "",
        "[bold]Examples[/bold]",
        "  ors-server bench sandboxes --quick        in a minute or two",
        "  ors-server bench sandboxes                everything, a quarter of an hour",
        "  ors-server bench sandboxes --candidates bubblewrap,bwrap --rows cold,crowd",
    ]
)

application = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class NothingToMeasure(OrsError):
    """None of the candidates works on this machine."""


@application.command(epilog=_EPILOG)
def benchmark(
    rounds: Annotated[
        int | None, typer.Option(min=1, help=f"How often everything is measured. Default {FULL.rounds}.")
    ] = None,
    names: Annotated[
        str | None,
        typer.Option("--candidates", metavar="NAME,...", help="What to measure. Default: all that work here."),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="What to do with them. Default: all rows.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round, fewer starts, at most 100 at once.")] = False,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the JSON and the chart go.", file_okay=False)
    ] = Path("benchmarks/results"),
    with_charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the chart, with matplotlib.")] = True,
) -> None:
    """Measure sandboxes: starts, commands, examinations, hundreds at once, every answer verified.

    \b
    Ours on each runtime of this machine, beside the same programs used by
    hand. It ends with 1 if any answer was wrong or missing, and never because
    something was slow.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    size = QUICK if quick else FULL
    if rounds is not None:
        size = dataclasses.replace(size, rounds=rounds)
    known = candidates()
    chosen = choose(names, known, "--candidates")
    chosen_rows = choose(rows, ROWS, "--rows")
    if with_charts:
        charts.check_available()
    output.mkdir(parents=True, exist_ok=True)
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(_run(chosen, chosen_rows, size, console))
    ours = [candidate.name for candidate in chosen if candidate.ours]
    path = free_path(output, f"sandboxes-{report.started:%Y-%m-%d}")
    report.write(path)
    written = [path, *(draw(report, ours, output, path.stem) if with_charts else ())]
    console.print()
    print_report(report, ours, console)
    for file in written:
        console.print(f"written: {file}", soft_wrap=True)
    if report.failures:
        raise typer.Exit(1)


async def _run(chosen: Sequence[Candidate], rows: Sequence[SandboxRow], size: Size, console: Console) -> Report:
    started, clock = datetime.now(UTC), time.monotonic()
    observer = Observer()
    gathered = Gathered()
    versions: dict[str, dict[str, str]] = {}
    async with AsyncExitStack() as stack:
        present: list[Candidate] = []
        for candidate in chosen:
            try:
                await stack.enter_async_context(candidate.open())
                versions[candidate.name] = {candidate.program: candidate.version(), "user": user()}
            except NotHere as reason:
                console.print(f"[dim]{candidate.title}: {reason}[/dim]", soft_wrap=True)
                gathered.notes[candidate.name].append(f"not measured: {reason}")
            else:
                present.append(candidate)
        if not present:
            raise NothingToMeasure(
                "None of the candidates works on this machine", "`ors-server sandbox doctor` says what to install."
            )
        for number in range(1, size.rounds + 1):
            for row in rows:
                for candidate in present:
                    if row.applies(candidate):
                        await _measure(number, row, candidate, size, gathered, console)
    return Report(
        started=started.replace(microsecond=0),
        seconds=round(time.monotonic() - clock, 1),
        rounds=size.rounds,
        window_seconds=0.0,
        rows=[row.name for row in rows],
        machine=observer.finish(describe()),
        titles={candidate.name: candidate.title for candidate in present},
        packages=versions,
        figures=gathered.figures(runtime_names()[0]),
        curves={},
        failures={name: dict(failures) for name, failures in gathered.failures.items()},
        notes=dict(gathered.notes),
    )


async def _measure(
    number: int, row: SandboxRow, candidate: Candidate, size: Size, gathered: Gathered, console: Console
) -> None:
    clock = time.monotonic()
    measured, failures = Measured(), dict[str, int]()
    try:
        async with asyncio.timeout(MEASUREMENT_LIMIT):
            measured = await row.measure(candidate, size)
    except TimeoutError:
        failures[f"not done after {MEASUREMENT_LIMIT:g} s"] = 1
    except Failure as failure:
        failures[str(failure)] = 1
    gathered.add(candidate.name, row.name, measured, failures)
    found = ", ".join(
        f"{figure.title}: {shown(measured.figures[figure.key])} {figure.unit}"
        for figure in [figure for figure in FIGURES if figure.key in measured.figures][:2]
    )
    if failures:
        found = f"[red]failed: {next(iter(failures))}[/red]"
    console.print(
        f"[dim]{number}[/dim] {row.name:<9} {candidate.title:<24} {found}  "
        f"[dim]({time.monotonic() - clock:.0f} s)[/dim]",
        soft_wrap=True,
    )


def main(arguments: Sequence[str] | None = None, program: str = "python -m ors_benchmarks.sandboxes") -> None:
    """Run the command with these arguments, or those of this process, and end the process.

    Raises ``OrsError`` where something has to be corrected first.
    """
    application(arguments, prog_name=program)
