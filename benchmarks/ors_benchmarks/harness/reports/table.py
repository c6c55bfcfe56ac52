"""A report as a table: medians, spreads, ratios, and budgets met or missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_benchmarks.harness.reports.figures import Figure, Quotient
from ors_benchmarks.harness.reports.results import Report, Summary

__all__ = ["Layout", "limit", "met", "print_report", "shown", "verdict"]


@dataclass(frozen=True)
class Layout:
    """The parts of a table that differ between benchmarks."""

    #: Candidates that the budgets are for.
    ours: Sequence[str]
    #: By candidate: the others its medians are divided by, with the label of that ratio.
    bases: Mapping[str, Mapping[str, str]]
    #: Explains the ratios, below the table.
    legend: str
    #: Stands beside the hardware, below the table.
    setting: str = ""
    #: How many times slower this machine is than the one that budgets of processor time were set on.
    slowness: float = 1.0
    #: Whether processes outside the benchmark put its figures in doubt.
    others_disturb: bool = True
    #: The last line, below everything.
    footnote: str = ""


def met(figure: Figure, summary: Summary, slowness: float = 1.0) -> bool:
    """Check a figure against its budget, on a machine so many times slower than the one the budget was set on."""
    assert figure.budget is not None
    if figure.better == "less":
        return (summary.high if figure.worst else summary.median) <= figure.budget * slowness
    return (summary.low if figure.worst else summary.median) >= figure.budget


def shown(value: float) -> str:
    """Return a number with three significant digits: 0.123, 1.23, 12.3, 123, 12,345."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    decimals = 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{decimals}f}"


def limit(figure: Figure) -> str:
    """Return the budget as text; "" without one."""
    return "" if figure.budget is None else f"{'≤' if figure.better == 'less' else '≥'} {shown(figure.budget)}"


def verdict(figure: Figure, summary: Summary | None) -> str:
    """ " ✓" for a budget that is kept, " ✗" for one that is missed, "" without a budget or a summary."""
    return "" if figure.budget is None or summary is None else " ✓" if met(figure, summary) else " ✗"


def print_report(report: Report, figures: Sequence[Figure], layout: Layout, console: Console) -> None:
    """Print the table, its legend, the machine, and every remark and failure."""
    console.print(_table(report, figures, layout))
    machine = report.machine
    console.print(Text(f"Median of the rounds (lowest–highest); {layout.legend}", style="dim"))
    console.print(Text(f"{machine.hardware}; {layout.setting}{machine.conditions}.", style="dim"))
    if machine.busy(others=layout.others_disturb):
        text = "The machine was busy: CPU figures are high, latencies and pauses say little. Measure again when calm."
        console.print(Text(text, "yellow"))
    for name, notes in report.notes.items():
        for note in notes:
            console.print(Text(f"{report.titles.get(name, name)}: {note}"))
    for name, failures in report.failures.items():
        for text, count in failures.items():
            console.print(Text(f"{report.titles[name]} failed {count} times: {text}", style="bold red"))
    if layout.footnote:
        console.print(Text(layout.footnote, style="dim"))


def _table(report: Report, figures: Sequence[Figure], layout: Layout) -> Table:
    table = Table(show_lines=False, pad_edge=False, header_style="bold")
    with_budgets = any(figure.budget is not None for figure in figures)
    table.add_column("", ratio=3, min_width=28)
    if with_budgets:
        table.add_column("budget", justify="right", no_wrap=True)
    for name, title in report.titles.items():
        style = "bold" if name in layout.ours else ""
        table.add_column(title, justify="right", min_width=12, no_wrap=True, style=style)
    row = ""
    for figure in (figure for figure in figures if report.figures.get(figure.key)):
        if row and figure.row != row:
            table.add_section()
        row = figure.row
        title = f"{figure.title}, {figure.unit}" if figure.unit and figure.unit != "×" else figure.title
        budget = [_budget(figure, report, layout)] if with_budgets else []
        table.add_row(title, *budget, *(_cell(figure, name, report, layout) for name in report.titles))
    return table


def _budget(figure: Figure, report: Report, layout: Layout) -> Text:
    """Return the budget, with its verdict if only one candidate has to keep it."""
    summary = report.figures[figure.key].get(layout.ours[0]) if len(layout.ours) == 1 else None
    if figure.budget is None or summary is None:
        return Text(limit(figure))
    kept = met(figure, summary)
    cell = Text(limit(figure) + verdict(figure, summary), style="green" if kept else "red")
    if not kept and figure.processor and layout.slowness > 1:
        kept = met(figure, summary, layout.slowness)
        scaled = f"\n≤ {shown(figure.budget * layout.slowness)} here {'✓' if kept else '✗'}"
        cell.append(scaled, style="green" if kept else "red")
    return cell


def _cell(figure: Figure, name: str, report: Report, layout: Layout) -> Text:
    summaries = report.figures[figure.key]
    summary = summaries.get(name)
    if summary is None:
        failed = any(text.startswith(f"{figure.row}:") for text in report.failures.get(name, {}))
        return Text("failed", style="bold red") if failed else Text("–", style="dim")
    cell = Text(shown(summary.median))
    owners = figure.candidates if isinstance(figure, Quotient) else ()
    # The budget column has the verdict on ours where ours is one candidate.
    judged = len(layout.ours) > 1 if name in layout.ours else name in owners and not {*owners} & {*layout.ours}
    if judged and figure.budget is not None:
        cell.append(verdict(figure, summary), style="green" if met(figure, summary) else "red")
    if len(summary.values) > 1:
        cell.append(f"\n({shown(summary.low)}–{shown(summary.high)})", style="dim")
    bases: Mapping[str, str] = {} if isinstance(figure, Quotient) else layout.bases.get(name, {})
    ratios = [
        f"{shown(summary.median / base.median)}×{label}"
        for other, label in bases.items()
        if other != name and (base := summaries.get(other)) is not None and base.median
    ]
    if ratios:
        cell.append("\n" + ", ".join(ratios), style="dim")
    return cell
