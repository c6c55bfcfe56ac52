"""The parts that all charts are made of. Colours differ in every kind of colour blindness, marks in grey print."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# matplotlib leaves the type of its keyword arguments open.

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ors_containers.distribution import install_command

from ors_benchmarks.harness.reports.results import Report, Summary
from ors_benchmarks.harness.reports.table import shown
from ors_server.errors import OrsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ChartsUnavailable", "bars", "check_available", "line", "new_figure", "plain", "save", "source"]


class Spread(Protocol):
    """A median with its lowest and highest value."""

    median: float
    low: float
    high: float


class ChartsUnavailable(OrsError):
    """matplotlib is not installed."""


def check_available() -> None:
    """Raise ``ChartsUnavailable`` if no charts can be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ChartsUnavailable(
            "The charts need matplotlib",
            f"Install it with `{install_command('bench')}`, or use --no-charts.",
        )


def new_figure(height: float) -> Figure:
    """Return an empty picture of this height, in inches."""
    # Drawn without pyplot: no window system, no state between charts.
    from matplotlib.figure import Figure

    return Figure(figsize=(8.0, height), layout="constrained")


def plain(axes: Axes, grid: str) -> None:
    """Leave only the data and a light grid, along ``x`` or both ways."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x" if grid == "x" else "both", color="#dddddd", linewidth=0.6)


def bars(axes: Axes, titles: Sequence[str], summaries: Sequence[Summary], unit: str, colours: Sequence[str]) -> None:
    """Draw a horizontal bar a candidate, the first on top, with its median in words and its spread."""
    medians = [summary.median for summary in summaries]
    spread = [[each.median - each.low for each in summaries], [each.high - each.median for each in summaries]]
    axes.barh(titles, medians, xerr=spread, color=colours, error_kw={"elinewidth": 1, "capsize": 3})
    for position, summary in enumerate(summaries):
        text = f"{shown(summary.median)} {unit}"
        axes.annotate(text, (summary.high, position), xytext=(6, 0), textcoords="offset points", va="center")
    axes.invert_yaxis()
    plain(axes, "x")


def line(axes: Axes, xs: Sequence[float], ys: Sequence[Spread], colour: str, mark: str, label: str) -> None:
    """Draw medians as a line and their spread as a band."""
    axes.plot(xs, [y.median for y in ys], color=colour, marker=mark, markersize=5, label=label)
    axes.fill_between(xs, [y.low for y in ys], [y.high for y in ys], color=colour, alpha=0.15, linewidth=0)


def save(figure: Figure, path: Path, origin: str) -> Path:
    """Write a picture with the origin of its figures in the upper right corner; returns its path."""
    figure.suptitle(origin, x=0.995, ha="right", fontsize=6.5, color="#666666")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path


def source(report: Report) -> str:
    """Return the origin of a report's figures: day, machine, rounds."""
    rounds = f"{report.rounds} round{'s' if report.rounds > 1 else ''}"
    return f"{report.started:%Y-%m-%d}, {report.machine.cpu}, Python {report.machine.python}, {rounds}"
