"""``ors-server bench server``: this server beside ``ors-sdk``, ``openreward`` and bare uvicorn, in one run.

``python -m ors_benchmarks.server`` is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from ors_benchmarks.harness.benchmark import Benchmark
from ors_benchmarks.harness.candidates import OURS, SDKS, Candidate, packages
from ors_benchmarks.harness.reports.results import Report
from ors_benchmarks.harness.reports.table import Layout
from ors_benchmarks.harness.runs import Size
from ors_benchmarks.server.charts import draw
from ors_benchmarks.server.floor import FLOOR
from ors_benchmarks.server.observed import OBSERVED, UNOBSERVED
from ors_benchmarks.server.rows import BUDGET_FLOOR, FIGURES, QUICK_ROWS, ROWS
from ors_benchmarks.server.runner import applies, measuring

__all__ = ["BENCHMARK", "CANDIDATES", "main"]

CANDIDATES: Sequence[Candidate] = (*SDKS, FLOOR, UNOBSERVED, OBSERVED)


def _layout(report: Report) -> Layout:
    """Hold the table against ours and the floor, with budgets scaled to this machine."""
    floor = report.figures.get("call_cpu", {}).get(FLOOR.name)
    slowness = 1.0 if floor is None else floor.median / BUDGET_FLOOR
    pinned = "a core each for server and load" if report.machine.pinned else "server and load on the same core"
    explained = (
        f"Bare uvicorn takes {slowness * BUDGET_FLOOR:.0f} µs a request here, and took {BUDGET_FLOOR:.0f} where "
        f"the budgets were set: `here` is a budget of processor time × {slowness:.2f}."
    )
    return Layout(
        ours=[OURS.name],
        bases={name: {OURS.name: " ours", FLOOR.name: " floor"} for name in report.titles},
        legend="× ours and × floor are ratios of medians.",
        setting=f"{pinned}; ",
        slowness=slowness,
        footnote=explained if slowness > 1 else "",
    )


BENCHMARK = Benchmark(
    name="server",
    help="""Measure this server beside the ones it replaces, every answer verified.

    \b
    Each server is a process on one core and hosts the same environment; the
    load comes from another core. They take turns, round after round, and the
    table shows medians with their spread. It ends with 1 if any answer was
    wrong or missing, and never because something was slow.
    """,
    examples=[
        "ors-server bench server --quick           once pip has run, within 90 s",
        "ors-server bench server                   everything, about half an hour",
        "ors-server bench server --candidates ours,floor --rows calls --rounds 9",
    ],
    quick_help=f"One round, 1 s stretches, only {', '.join(QUICK_ROWS)}: at most 90 s.",
    quick_rows=QUICK_ROWS,
    rows=ROWS,
    candidates=CANDIDATES,
    figures=FIGURES,
    full=Size(rounds=5, seconds=3.0),
    quick=Size(rounds=1, seconds=1.0),
    measuring=measuring,
    applies=applies,
    prepare=Candidate.prepare,
    packages=lambda candidate: packages(candidate.prepare()),
    layout=_layout,
    draw=draw,
    about_rounds="; the long rows every second time",
    about_candidates=[
        "ours             this server with its defaults: logs, limits and ledger on",
        "ors-sdk          in a virtual environment that pip makes the first time",
        "openreward       in another",
        "floor            bare uvicorn with one constant answer: no server on it is faster",
        "unobserved       this server without metrics, for the row observed only",
        "observed         this server with a key, metrics and recording, for that row",
    ],
    advice=[
        "Leave the machine alone meanwhile: one core is for the servers, one for the load.",
        "Other work disturbs CPU figures least and latencies most; the spread beside each",
        "median shows how much.",
    ],
)
main = BENCHMARK.program()
