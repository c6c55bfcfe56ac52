"""The report as pictures: CPU per call and episode, latency against sessions, memory against sessions."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# matplotlib leaves the type of its keyword arguments open.

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ors_benchmarks.harness.results import Point, Report
from ors_benchmarks.harness.table import shown
from ors_server.errors import OrsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ChartsUnavailable", "check_available", "draw", "new_figure", "plain", "source"]

#: The candidates' colours, told apart in every kind of colour blindness, and their marks for those who print in grey.
COLOURS = {"ours": "#0072b2", "ors-sdk": "#e69f00", "openreward": "#cc3311", "floor": "#888888"}
MARKS = {"ours": "o", "ors-sdk": "s", "openreward": "^", "floor": "D"}


class ChartsUnavailable(OrsError):
    """matplotlib is not installed."""


def check_available() -> None:
    """Raise ``ChartsUnavailable`` where no charts can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ChartsUnavailable(
            "The charts need matplotlib",
            "Install it with `pip install '/path/to/ors-server[bench]'`, or use --no-charts.",
        )


def draw(report: Report, folder: Path, stem: str) -> list[Path]:
    """Write the charts that there are figures for as ``<stem>-<what>.png``; returns their paths."""
    written: list[Path] = []
    for name, chart in (("cpu", _cpu), ("latency", _latency), ("memory", _memory)):
        figure = chart(report)
        if figure is not None:
            path = folder / f"{stem}-{name}.png"
            figure.text(0.99, 0.985, source(report), ha="right", va="top", fontsize=7, color="#666666")
            figure.savefig(path, dpi=120, metadata={"Software": None})
            written.append(path)
    return written


def _cpu(report: Report) -> Figure | None:
    panels = [
        (title, unit, report.figures[key])
        for key, title, unit in (
            ("call_cpu", "Server CPU per /call, 32 sessions", "µs"),
            ("episode_cpu", "Server CPU per 8-call episode", "ms"),
        )
        if key in report.figures
    ]
    if not panels:
        return None
    figure = new_figure(2.2 * len(panels) + 0.6)
    for number, (title, unit, summaries) in enumerate(panels, 1):
        axes = figure.add_subplot(len(panels), 1, number)
        names = [name for name in report.titles if name in summaries]
        medians = [summaries[name].median for name in names]
        spread = [
            [summaries[name].median - summaries[name].low for name in names],
            [summaries[name].high - summaries[name].median for name in names],
        ]
        axes.barh(
            [report.titles[name] for name in names],
            medians,
            xerr=spread,
            color=[COLOURS[name] for name in names],
            error_kw={"elinewidth": 1, "capsize": 3},
        )
        for place, name in enumerate(names):
            axes.annotate(
                f"{shown(medians[place])} {unit}",
                (summaries[name].high, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        axes.invert_yaxis()
        axes.set_xlim(0, max(summaries[name].high for name in names) * 1.15)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel(unit)
        plain(axes, "x")
    return figure


def _latency(report: Report) -> Figure | None:
    medians, tails = report.curves.get("latency_p50"), report.curves.get("latency_p99")
    if not medians or not tails:
        return None
    figure = new_figure(5.0)
    axes = figure.add_subplot()
    _lines(axes, report, tails, "-")
    _lines(axes, report, medians, ":")
    axes.plot([], [], color="#333333", linestyle="-", label="p99, with its spread")
    axes.plot([], [], color="#333333", linestyle=":", label="p50")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted({point.x for points in tails.values() for point in points})
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel("sessions calling at once")
    axes.set_ylabel("ms")
    axes.set_title("Latency of /call", loc="left", fontsize=11)
    axes.legend(frameon=False)
    plain(axes, "both")
    return figure


def _memory(report: Report) -> Figure | None:
    curves = report.curves.get("memory")
    if not curves:
        return None
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    _lines(axes, report, curves, "-")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("idle sessions alive in one process")
    axes.set_ylabel("MiB more than without sessions")
    axes.set_title("Memory of the server", loc="left", fontsize=11)
    axes.legend(frameon=False)
    plain(axes, "both")
    return figure


def _lines(axes: Axes, report: Report, curves: Mapping[str, Sequence[Point]], style: str) -> None:
    for name, title in report.titles.items():
        points = curves.get(name)
        if not points:
            continue
        xs = [point.x for point in points]
        solid = style == "-"
        axes.plot(
            xs,
            [point.median for point in points],
            color=COLOURS[name],
            linestyle=style,
            marker=MARKS[name] if solid else None,
            markersize=5,
            label=title if solid else None,
        )
        if solid:
            lows, highs = [point.low for point in points], [point.high for point in points]
            axes.fill_between(xs, lows, highs, color=COLOURS[name], alpha=0.15, linewidth=0)


def new_figure(height: float) -> Figure:
    """An empty picture of this height, in inches."""
    # Drawn without pyplot: no window system, no state between charts.
    from matplotlib.figure import Figure

    return Figure(figsize=(8.0, height), layout="constrained")


def plain(axes: Axes, grid: str) -> None:
    """Nothing but the data and a light grid, along ``x`` or both ways."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x" if grid == "x" else "both", color="#dddddd", linewidth=0.6)


def source(report: Report) -> str:
    """Where the figures come from, for a corner of the picture."""
    rounds = f"{report.rounds} round{'s' if report.rounds > 1 else ''}"
    return f"{report.started:%Y-%m-%d}, {report.machine.cpu}, Python {report.machine.python}, {rounds}"
