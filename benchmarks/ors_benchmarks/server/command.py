"""``ors-server bench server``: this server beside ``ors-sdk``, ``openreward`` and bare uvicorn, in one run.

``python -m ors_benchmarks.server`` is the same. The exit code says whether every answer was right, never how fast:
timings depend on the machine and decide nothing by themselves.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ors_benchmarks.harness import charts
from ors_benchmarks.harness.candidates import CANDIDATES, Candidate
from ors_benchmarks.harness.commands import choose
from ors_benchmarks.harness.figures import FIGURES, QUICK_ROWS, ROWS, Row
from ors_benchmarks.harness.results import free_path
from ors_benchmarks.harness.table import print_report, shown
from ors_benchmarks.server.runner import Outcome, Plan, run

__all__ = ["benchmark", "main"]


_EPILOG = "\n".join(
    [
        "[bold]Rows[/bold]",
        *(f"  {row.name:<10} {row.title}" for row in ROWS),
        "",
        "[bold]Candidates[/bold]",
        "  ours        this server as it comes: logs, limits and ledger on",
        "  ors-sdk     in a virtual environment that pip makes the first time",
        "  openreward  in another",
        "  floor       bare uvicorn with one constant answer: no server on it is faster",
        "",
        "[bold]Examples[/bold]",
        "  ors-server bench server --quick           once pip has run, within 90 s",
        "  ors-server bench server                   everything, about half an hour",
        "  ors-server bench server --candidates ours,floor --rows calls --rounds 9",
        "",
        "Leave the machine alone meanwhile: it has a core for the servers and one for",
        "the load, and no other. CPU figures stand other work best, latencies worst;",
        "the spread beside each median tells.",
    ]
)

application = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@application.command(epilog=_EPILOG)
def benchmark(
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How often everything is measured; the long rows every second time. Default 5."),
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Seconds of each stretch of calls. Default 3.")] = None,
    candidates: Annotated[
        str, typer.Option(metavar="NAME,...", help="The servers to measure, in this order.")
    ] = ",".join(candidate.name for candidate in CANDIDATES),
    rows: Annotated[str | None, typer.Option(metavar="NAME,...", help="What to measure. Default: all rows.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"One round, 1 s stretches, only {', '.join(QUICK_ROWS)}: at most 90 s.")
    ] = False,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the JSON and the charts go.", file_okay=False)
    ] = Path("benchmarks/results"),
    with_charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Draw the charts, with matplotlib.")] = True,
) -> None:
    """Measure this server beside the ones it replaces, every answer verified.

    \b
    Each server is a process on one core and hosts the same environment; the
    load comes from another core. They take turns, round after round, and the
    table shows medians with their spread. It ends with 1 if any answer was
    wrong or missing, and never because something was slow.
    """
    # A table in a file or a pipe is not cut to the width of a terminal that is not there.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    plan = Plan(
        candidates=choose(candidates, CANDIDATES, "--candidates"),
        rows=choose(rows or ",".join(QUICK_ROWS if quick else [row.name for row in ROWS]), ROWS, "--rows"),
        rounds=rounds or (1 if quick else 5),
        seconds=seconds or (1.0 if quick else 3.0),
    )
    if with_charts:
        charts.check_available()
    output.mkdir(parents=True, exist_ok=True)
    progress = _Progress(console, plan)
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder, progress.bar:
        report = run(plan, Path(folder), progress.announce, progress.report)
    path = free_path(output, f"server-{report.started:%Y-%m-%d}")
    report.write(path)
    written = [path, *(charts.draw(report, output, path.stem) if with_charts else ())]
    console.print()
    print_report(report, console)
    for file in written:
        console.print(f"written: {file}", soft_wrap=True)
    if report.failures:
        raise typer.Exit(1)


class _Progress:
    """A bar, and a line for each measurement. Drawn between measurements only: drawing costs the load's core."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._console = console
        self._rounds = plan.rounds
        self._task = self.bar.add_task("preparing", total=len(plan.measurements()))

    def announce(self, number: int, row: Row, candidate: Candidate) -> None:
        """A measurement begins."""
        self.bar.update(self._task, description=f"round {number} of {self._rounds}: {row.name}, {candidate.title}")
        self.bar.refresh()

    def report(self, outcome: Outcome) -> None:
        """A measurement is done."""
        figures = outcome.measured.figures
        if outcome.failures:
            text, count = max(outcome.failures.items(), key=lambda item: item[1])
            found = f"[red]{sum(outcome.failures.values())} failures, {count} of them: {text}[/red]"
        else:
            own = [figure for figure in FIGURES if figure.key in figures]
            found = ", ".join(f"{figure.title}: {shown(figures[figure.key])} {figure.unit}" for figure in own[:2])
        self._console.print(
            f"[dim]{outcome.number}[/dim] {outcome.row.name:<9} {outcome.candidate.title:<13} {found}  "
            f"[dim]({outcome.seconds:.0f} s)[/dim]",
            soft_wrap=True,
        )
        self.bar.advance(self._task)
        self.bar.refresh()


def main(arguments: Sequence[str] | None = None, program: str = "python -m ors_benchmarks.server") -> None:
    """Run the command with these arguments, or those of this process, and end the process.

    Raises ``OrsError`` where something has to be corrected first.
    """
    application(arguments, prog_name=program)
