"""The report as pictures: throughput against concurrency, where an episode's time goes, and where episodes wait."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# matplotlib leaves the type of its keyword arguments open.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ors_benchmarks.harness.reports.charts import line, new_figure, plain, save
from ors_benchmarks.harness.reports.table import shown
from ors_benchmarks.rollout.figures import PARTS, Cell
from ors_benchmarks.rollout.reports.report import RolloutReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw"]

#: Told apart in every kind of colour blindness.
PART_COLOURS = {
    "engine": "#0072b2",
    "queue": "#56b4e9",
    "handover": "#a6cee3",
    "environment": "#009e73",
    "http": "#e69f00",
    "http_server": "#e69f00",
    "http_client": "#f0e442",
    "http_waiting": "#d55e00",
    "client": "#cc79a7",
}
SPANS = {
    "open": ("#e69f00", "opens its session"),
    "prompt": ("#f0e442", "asks for prompt and tools"),
    "tools": ("#f0e442", None),
    "generate": ("#0072b2", "waits for the engine"),
    "call": ("#009e73", "calls a tool"),
    "close": ("#cc3311", "closes its session"),
}
THINK_COLOURS = ("#0072b2", "#009e73", "#e69f00", "#cc3311", "#cc79a7", "#333333")
MARKS = ("o", "s", "^", "D", "v", "P")


def draw(report: RolloutReport, folder: Path, stem: str) -> list[Path]:
    """Write the charts that there are figures for as ``<stem>-<name>.png``; returns their paths."""
    charts = {"throughput": _throughput(report), "breakdown": _breakdown(report), "timeline": _timeline(report)}
    return [
        save(figure, folder / f"{stem}-{name}.png", _source(report))
        for name, figure in charts.items()
        if figure is not None
    ]


def _throughput(report: RolloutReport) -> Figure | None:
    """Tokens a second and ratio against concurrency, a line for each think-time, or server and client."""
    lines: dict[str, list[Cell]] = {}
    several = len({(cell.server, cell.client) for cell in report.cells}) > 1
    for cell in report.cells:
        if cell.ratio is not None:  # a cell that was not played to its end has figures, but no rate
            label = f"{cell.client} → {cell.server}" if several else f"think-time {_duration(cell.think_time)}"
            lines.setdefault(label, []).append(cell)
    if not lines or max(len(cells) for cells in lines.values()) < 2:
        return None
    figure = new_figure(6.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    counts = sorted({cell.concurrency for cells in lines.values() for cell in cells})
    for number, (label, cells) in enumerate(lines.items()):
        cells = sorted(cells, key=lambda cell: cell.concurrency)
        colour, mark = THINK_COLOURS[number % len(THINK_COLOURS)], MARKS[number % len(MARKS)]
        rates = [cell.figures["generated_per_second"] for cell in cells]
        xs = [cell.concurrency for cell in cells]
        line(above, xs, rates, colour, mark, label)
        ratios = [(cell.concurrency, cell.ratio.median) for cell in cells if cell.ratio is not None]
        below.plot([x for x, _ in ratios], [y for _, y in ratios], color=colour, marker=mark, markersize=5)
    # The others' replays differ from it by chance only: they are the same generations and wait for no environment.
    label, cells = next(iter(lines.items()))
    replayed = sorted(
        (cell.concurrency, cell.figures["replayed_per_second"].median)
        for cell in cells
        if "replayed_per_second" in cell.figures
    )
    above.plot(
        [count for count, _ in replayed],
        [rate for _, rate in replayed],
        color="#888888",
        linestyle="--",
        label=f"the generations of {label}, no environment",
    )
    above.set_ylim(bottom=0)
    above.set_ylabel("generated tokens a second")
    above.set_title("Throughput with environments", loc="left", fontsize=11)
    above.legend(frameon=False, fontsize=8)
    above.yaxis.set_major_formatter("{x:,.0f}")
    if report.budget is not None:
        below.axhline(report.budget, color="#888888", linewidth=0.8, linestyle=":")
    below.set_ylim(0, max(1.05, *below.get_ylim()))
    below.set_ylabel("ratio")
    below.set_xscale("log", base=2)
    below.set_xticks(counts, [f"{count:,}" for count in counts])
    below.minorticks_off()
    below.set_xlabel("episodes at once")
    for axes in (above, below):
        plain(axes, "both")
    return figure


def _breakdown(report: RolloutReport) -> Figure | None:
    """Return a bar for each cell: the shares of an episode's time."""
    cells = [cell for cell in report.cells if cell.breakdown]
    if not cells:
        return None
    figure = new_figure(0.42 * len(cells) + 1.6)
    axes = figure.add_subplot()
    positions = range(len(cells))
    starts = [0.0] * len(cells)
    totals = [sum(cell.breakdown.values()) or 1.0 for cell in cells]
    for part, title in PARTS.items():
        shares = [100 * cell.breakdown.get(part, 0.0) / total for cell, total in zip(cells, totals, strict=True)]
        if not any(shares):
            continue
        axes.barh(positions, shares, left=starts, color=PART_COLOURS[part], label=title, height=0.7)
        for position, (start, share) in enumerate(zip(starts, shares, strict=True)):
            if share >= 6:
                axes.text(
                    start + share / 2, position, f"{share:.0f}", ha="center", va="center", fontsize=8, color="white"
                )
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    axes.set_yticks(positions, [_cell_label(cell, report.cells) for cell in cells], fontsize=8)
    for position, total in enumerate(totals):
        axes.annotate(
            f"{shown(total)} s", (100, position), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of an episode's wall-clock time, whose mean stands at the right")
    axes.set_title("Where an episode's time goes", loc="left", fontsize=11)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    plain(axes, "x")
    return figure


def _timeline(report: RolloutReport) -> Figure | None:
    """Return a row for each episode, coloured by what it waits for."""
    if not report.timeline:
        return None
    figure = new_figure(0.11 * len(report.timeline) + 1.8)
    axes = figure.add_subplot()
    used: set[str] = set()
    for row, episode in enumerate(report.timeline):
        axes.plot([episode["started"], episode["ended"]], [row, row], color="#333333", linewidth=0.6, zorder=1)
        for kind, started, ended in episode["spans"]:
            axes.barh(row, ended - started, left=started, color=SPANS[kind][0], height=0.8, zorder=2)
            used.add(kind)
    for kind, (colour, label) in SPANS.items():
        if kind in used and label is not None:
            axes.barh(0, 0, color=colour, label=label)
    axes.plot([], [], color="#333333", linewidth=0.6, label="waits for the client")
    first = report.cells[0]
    axes.set_title(f"Where episodes wait: {_cell_label(first, [first])}", loc="left", fontsize=11)
    axes.set_xlabel("seconds since the run began")
    axes.set_ylabel("episodes")
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    plain(axes, "x")
    return figure


def _cell_label(cell: Cell, cells: Sequence[Cell]) -> str:
    parts = [f"{cell.concurrency:,} at once"]
    if len({(other.server, other.client) for other in cells}) > 1 or len(cells) == 1:
        parts.insert(0, f"{cell.client} → {cell.server}")
    if len({other.think_time for other in cells}) > 1 or cell.think_time:
        parts.append(f"think {_duration(cell.think_time)}")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if 0 < seconds < 1 else f"{seconds:g} s"


def _source(report: RolloutReport) -> str:
    parts = [f"{report.started:%Y-%m-%d}", report.engine, report.model, str(report.options.get("env"))]
    seconds = report.cells[0].figures.get("seconds") if report.cells else None
    rounds = len(seconds.values) if seconds is not None else 0
    return ", ".join([*parts, report.machine.cpu, f"{rounds} round{'' if rounds == 1 else 's'}"])
