"""``ors-server bench server``: this server beside ``ors-sdk``, ``openreward`` and bare uvicorn, in one run.

``python -m ors_benchmarks.server`` is the same. The exit code says whether every answer was right, never how fast:
timings depend on the machine and decide nothing by themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ors_benchmarks.harness import charts
from ors_benchmarks.harness.candidates import OURS, SDKS, Candidate
from ors_benchmarks.harness.commands import (
    RESULTS,
    Charts,
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
from ors_benchmarks.harness.results import Report
from ors_benchmarks.harness.table import Layout
from ors_benchmarks.harness.table import print_report as print_table
from ors_benchmarks.server.charts import draw
from ors_benchmarks.server.floor import FLOOR
from ors_benchmarks.server.observed import OBSERVED, UNOBSERVED
from ors_benchmarks.server.rows import BUDGET_FLOOR, FIGURES, QUICK_ROWS, ROWS
from ors_benchmarks.server.runner import Plan, run

__all__ = ["CANDIDATES", "benchmark", "main", "print_report"]

CANDIDATES: Sequence[Candidate] = (*SDKS, FLOOR, UNOBSERVED, OBSERVED)


def benchmark(
    rounds: Annotated[int | None, rounds_option(5, "; the long rows every second time")] = None,
    seconds: Annotated[float | None, seconds_option(3)] = None,
    candidates: Annotated[
        str, typer.Option(metavar="NAME,...", help="The servers to measure, in this order.")
    ] = ",".join(candidate.name for candidate in CANDIDATES),
    rows: Rows = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"One round, 1 s stretches, only {', '.join(QUICK_ROWS)}: at most 90 s.")
    ] = False,
    output: Output = RESULTS,
    with_charts: Charts = True,
) -> None:
    """Measure this server beside the ones it replaces, every answer verified.

    \b
    Each server is a process on one core and hosts the same environment; the
    load comes from another core. They take turns, round after round, and the
    table shows medians with their spread. It ends with 1 if any answer was
    wrong or missing, and never because something was slow.
    """
    console = new_console()
    plan = Plan(
        candidates=choose(candidates, CANDIDATES, "--candidates"),
        rows=choose(rows or ",".join(QUICK_ROWS if quick else [row.name for row in ROWS]), ROWS, "--rows"),
        rounds=rounds or (1 if quick else 5),
        seconds=seconds or (1.0 if quick else 3.0),
    )
    if with_charts:
        charts.check_available()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        report = run(plan, Path(folder), console)
    finish(report, "server", output, console, print_report, draw if with_charts else None)


main = as_program(
    benchmark,
    section("Rows", ROWS),
    section(
        "Candidates",
        [
            "ours             this server with its defaults: logs, limits and ledger on",
            "ors-sdk          in a virtual environment that pip makes the first time",
            "openreward       in another",
            "floor            bare uvicorn with one constant answer: no server on it is faster",
            "unobserved       this server without metrics, for the row observed only",
            "observed         this server with a key, metrics and recording, for that row",
        ],
    ),
    section(
        "Examples",
        [
            "ors-server bench server --quick           once pip has run, within 90 s",
            "ors-server bench server                   everything, about half an hour",
            "ors-server bench server --candidates ours,floor --rows calls --rounds 9",
        ],
    ),
    "Leave the machine alone meanwhile: one core is for the servers, one for the load.",
    "Other work disturbs CPU figures least and latencies most; the spread beside each",
    "median shows how much.",
)


def print_report(report: Report, console: Console) -> None:
    """Print the table, held against ours and the floor, with budgets scaled to this machine."""
    floor = report.figures.get("call_cpu", {}).get(FLOOR.name)
    slowness = 1.0 if floor is None else floor.median / BUDGET_FLOOR
    pinned = "a core each for server and load" if report.machine.pinned else "server and load on the same core"
    layout = Layout(
        figures=FIGURES,
        ours=[OURS.name],
        bases={name: {OURS.name: " ours", FLOOR.name: " floor"} for name in report.titles},
        legend="× ours and × floor are ratios of medians.",
        setting=f"{pinned}; ",
        slowness=slowness,
    )
    print_table(report, layout, console)
    if slowness > 1:
        text = (
            f"Bare uvicorn takes {slowness * BUDGET_FLOOR:.0f} µs a request here, and took {BUDGET_FLOOR:.0f} where "
            f"the budgets were set: `here` is a budget of processor time × {slowness:.2f}."
        )
        console.print(Text(text, style="dim"))
