"""The sandboxes' report as a table and a chart: medians with spread, budgets, and how much more than by hand."""

# pyright: reportUnknownMemberType=false
# matplotlib leaves the type of its keyword arguments open.

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_benchmarks.harness.charts import new_figure, plain, source
from ors_benchmarks.harness.figures import Figure
from ors_benchmarks.harness.results import Report, Summary
from ors_benchmarks.harness.table import CALM, met, shown
from ors_benchmarks.sandboxes.candidates import BubblewrapByHand
from ors_benchmarks.sandboxes.scenarios import FIGURES

__all__ = ["draw", "print_report"]

#: The figures of the chart.
_CHARTED = ("cold_p50", "command_p50", "stop_p50", "crowd_500_wall", "crowd_100_wall")
_OURS, _OTHERS = "#0072b2", "#888888"


def print_report(report: Report, ours: Sequence[str], console: Console) -> None:
    """Print the table and what has to be said with it; ``ours`` are the candidates the budgets are for."""
    console.print(_table(report, ours))
    console.print(
        Text(
            f"Median of the rounds (lowest-highest); × is over {BubblewrapByHand.title}, which has no limits, no lease "
            "and no user of its own.",
            style="dim",
        )
    )
    machine = report.machine
    console.print(
        Text(
            f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.kernel}, Python "
            f"{machine.python}; others used {machine.others or 0:.0%} of the machine, {machine.stolen or 0:.0%} was "
            "stolen by its host.",
            style="dim",
        )
    )
    if (machine.stolen or 0) > CALM:
        console.print(Text("The machine was busy: measure again on a calm one.", "yellow"))
    for name, notes in report.notes.items():
        for note in notes:
            console.print(Text(f"{report.titles.get(name, name)}: {note}"))
    for name, failures in report.failures.items():
        for text, count in failures.items():
            console.print(Text(f"{report.titles[name]} failed {count} times: {text}", style="bold red"))


def _table(report: Report, ours: Sequence[str]) -> Table:
    result = Table(show_lines=False, pad_edge=False, header_style="bold")
    result.add_column("", ratio=3, min_width=28)
    result.add_column("budget", justify="right", no_wrap=True)
    for name, title in report.titles.items():
        result.add_column(title, justify="right", min_width=12, no_wrap=True, style="bold" if name in ours else "")
    row = ""
    for figure in FIGURES:
        summaries = report.figures.get(figure.key)
        if not summaries:
            continue
        if row and figure.row != row:
            result.add_section()
        row = figure.row
        title = f"{figure.title}, {figure.unit}" if figure.unit else figure.title
        budget = "" if figure.budget is None else f"≤ {shown(figure.budget)}"
        cells = [_cell(figure, name, summaries, report, name in ours) for name in report.titles]
        result.add_row(title, budget, *cells)
    return result


def _cell(figure: Figure, name: str, summaries: dict[str, Summary], report: Report, ours: bool) -> Text:
    summary = summaries.get(name)
    if summary is None:
        failed = any(text.startswith(f"{figure.row}:") for text in report.failures.get(name, {}))
        return Text("failed", style="bold red") if failed else Text("–", style="dim")
    cell = Text(shown(summary.median))
    if ours and figure.budget is not None:
        kept = met(figure, summary)
        cell.append(" ✓" if kept else " ✗", style="green" if kept else "red")
    if len(summary.values) > 1:
        cell.append(f"\n({shown(summary.low)}-{shown(summary.high)})", style="dim")
    base = summaries.get(BubblewrapByHand.name)
    if base is not None and name != BubblewrapByHand.name and base.median:
        cell.append(f"\n{shown(summary.median / base.median)}×", style="dim")
    return cell


def draw(report: Report, ours: Sequence[str], folder: Path, stem: str) -> list[Path]:
    """Write the chart as ``<stem>.png``; returns its path, or none where there is nothing to draw."""
    charted = [figure for key in _CHARTED for figure in FIGURES if figure.key == key and key in report.figures]
    charted = charted[:4]
    if not charted:
        return []
    picture = new_figure(1.9 * len(charted) + 0.5)
    for number, figure in enumerate(charted, 1):
        summaries = report.figures[figure.key]
        names = [name for name in report.titles if name in summaries]
        medians = [summaries[name].median for name in names]
        axes = picture.add_subplot(len(charted), 1, number)
        axes.barh(
            [report.titles[name] for name in names],
            medians,
            xerr=[
                [summaries[name].median - summaries[name].low for name in names],
                [summaries[name].high - summaries[name].median for name in names],
            ],
            color=[_OURS if name in ours else _OTHERS for name in names],
            error_kw={"elinewidth": 1, "capsize": 3},
        )
        for place, name in enumerate(names):
            axes.annotate(
                f"{shown(medians[place])} {figure.unit}",
                (summaries[name].high, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        if figure.budget is not None:
            axes.axvline(figure.budget, color="#cc3311", linestyle=":", linewidth=1.2)
        axes.set_xscale("log")
        low, high = min(summaries[name].low for name in names), max(summaries[name].high for name in names)
        axes.set_xlim(low / 3, max(high, figure.budget or 0) * 4)
        axes.invert_yaxis()
        axes.set_title(figure.title, loc="left", fontsize=10)
        plain(axes, "x")
    picture.text(0.99, 0.995, source(report), ha="right", va="top", fontsize=7, color="#666666")
    path = folder / f"{stem}.png"
    picture.savefig(path, dpi=120, metadata={"Software": None})
    return [path]
