"""Charts of the server benchmark: CPU per call and episode, latency and memory against sessions."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# matplotlib leaves the type of its keyword arguments open.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ors_benchmarks.harness.reports.charts import bars, line, new_figure, plain, save, source
from ors_benchmarks.harness.reports.results import Point, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

_COLOURS = {"ours": "#0072b2", "ors-sdk": "#e69f00", "openreward": "#cc3311", "floor": "#888888"}
_MARKS = {"ours": "o", "ors-sdk": "s", "openreward": "^", "floor": "D"}


def draw(report: Report, folder: Path, stem: str) -> list[Path]:
    """Write the charts that there are figures for as ``<stem>-<name>.png``; returns their paths."""
    charts = {"cpu": _cpu(report), "latency": _latency(report), "memory": _memory(report)}
    return [
        save(figure, folder / f"{stem}-{name}.png", source(report))
        for name, figure in charts.items()
        if figure is not None
    ]


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
        found = {name: summaries[name] for name in report.titles if name in summaries}
        titles, colours = [report.titles[name] for name in found], [_COLOURS[name] for name in found]
        bars(axes, titles, list(found.values()), unit, colours)
        axes.set_xlim(0, max(summary.high for summary in found.values()) * 1.15)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel(unit)
    return figure


def _latency(report: Report) -> Figure | None:
    medians, tails = report.curves.get("latency_p50"), report.curves.get("latency_p99")
    if not medians or not tails:
        return None
    figure = new_figure(5.0)
    axes = figure.add_subplot()
    _lines(axes, report, tails)
    for name, points in medians.items():
        axes.plot(
            [point.x for point in points], [point.median for point in points], color=_COLOURS[name], linestyle=":"
        )
    axes.plot([], [], color="#333333", linestyle="-", label="p99, with its spread")
    axes.plot([], [], color="#333333", linestyle=":", label="p50")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    counts = sorted({point.x for points in tails.values() for point in points})
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    _finish(axes, "sessions calling at once", "ms", "Latency of /call")
    return figure


def _memory(report: Report) -> Figure | None:
    curves = report.curves.get("memory")
    if not curves:
        return None
    figure = new_figure(4.2)
    axes = figure.add_subplot()
    _lines(axes, report, curves)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _finish(axes, "idle sessions alive in one process", "MiB more than without sessions", "Memory of the server")
    return figure


def _lines(axes: Axes, report: Report, curves: Mapping[str, Sequence[Point]]) -> None:
    for name, title in report.titles.items():
        if points := curves.get(name):
            line(axes, [point.x for point in points], points, _COLOURS[name], _MARKS[name], title)


def _finish(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False)
    plain(axes, "both")
