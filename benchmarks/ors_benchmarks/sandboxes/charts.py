"""The chart of the sandboxes' benchmark."""

# pyright: reportUnknownMemberType=false
# matplotlib leaves the type of its keyword arguments open.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ors_benchmarks.harness.reports.charts import bars, new_figure, save, source
from ors_benchmarks.harness.reports.results import Report
from ors_benchmarks.sandboxes.scenarios import FIGURES

__all__ = ["draw"]

#: The figures of the chart; the first four that were measured.
_CHARTED = ("cold_p50", "command_p50", "stop_p50", "crowd_500_wall", "crowd_100_wall")
_OURS, _OTHERS = "#0072b2", "#888888"


def draw(ours: Sequence[str], report: Report, folder: Path, stem: str) -> list[Path]:
    """Write the chart as ``<stem>.png``; returns its path, or nothing if there is nothing to draw."""
    figures = {figure.key: figure for figure in FIGURES}
    charted = [figures[key] for key in _CHARTED if key in report.figures][:4]
    if not charted:
        return []
    picture = new_figure(1.9 * len(charted) + 0.5)
    for number, figure in enumerate(charted, 1):
        found = {name: report.figures[figure.key][name] for name in report.titles if name in report.figures[figure.key]}
        colours = [_OURS if name in ours else _OTHERS for name in found]
        axes = picture.add_subplot(len(charted), 1, number)
        bars(axes, [report.titles[name] for name in found], list(found.values()), figure.unit, colours)
        if figure.budget is not None:
            axes.axvline(figure.budget, color="#cc3311", linestyle=":", linewidth=1.2)
        axes.set_xscale("log")
        low, high = min(each.low for each in found.values()), max(each.high for each in found.values())
        axes.set_xlim(low / 3, max(high, figure.budget or 0) * 4)
        axes.set_title(figure.title, loc="left", fontsize=10)
    return [save(picture, folder / f"{stem}.png", source(report))]
