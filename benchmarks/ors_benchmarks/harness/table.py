"""The report as a table: medians, spreads, ratios, and budgets met or missed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_benchmarks.harness.candidates import FLOOR, OURS
from ors_benchmarks.harness.figures import BUDGET_FLOOR, FIGURES, Figure
from ors_benchmarks.harness.results import Report, Summary

__all__ = ["met", "print_report", "shown", "slowness", "table"]

#: Share of the machine that others may take before the figures are doubted.
CALM = 0.05


def met(figure: Figure, ours: Summary, slowness: float = 1.0) -> bool:
    """Whether a figure with a budget keeps it, on a machine so many times slower than the one it was set on."""
    assert figure.budget is not None
    if figure.better == "less":
        return (ours.high if figure.worst else ours.median) <= figure.budget * slowness
    return (ours.low if figure.worst else ours.median) >= figure.budget


def slowness(report: Report) -> float | None:
    """How many times longer bare uvicorn took than where the budgets were set; None where it was not measured."""
    floor = report.figures.get("call_cpu", {}).get(FLOOR.name)
    return None if floor is None else floor.median / BUDGET_FLOOR


def shown(value: float) -> str:
    """A number with three digits that say something: 0.123, 1.23, 12.3, 123, 12,345."""
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    decimals = 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{decimals}f}"


def table(report: Report) -> Table:
    """The table; its columns are the candidates, each with what it has over ours and over the floor."""
    result = Table(show_lines=False, pad_edge=False, header_style="bold")
    result.add_column("", ratio=3, min_width=28)
    result.add_column("budget", justify="right", no_wrap=True)
    for name, title in report.titles.items():
        result.add_column(title, justify="right", min_width=12, no_wrap=True, style="bold" if name == OURS.name else "")
    row = ""
    for figure in FIGURES:
        summaries = report.figures.get(figure.key)
        if not summaries:
            continue
        if row and figure.row != row:
            result.add_section()
        row = figure.row
        cells = [_cell(figure, name, summaries, report) for name in report.titles]
        title = f"{figure.title}, {figure.unit}" if figure.unit and figure.unit != "×" else figure.title
        result.add_row(title, _budget(figure, summaries.get(OURS.name), slowness(report)), *cells)
    return result


def print_report(report: Report, console: Console) -> None:
    """Print the table and what has to be said with it."""
    console.print(table(report))
    console.print(Text("Median of the rounds (lowest–highest); × ours and × floor are ratios of medians.", style="dim"))
    slow = slowness(report)
    if slow is not None and slow > 1:
        console.print(
            Text(
                f"Bare uvicorn takes {slow * BUDGET_FLOOR:.0f} µs a request here, and took {BUDGET_FLOOR:.0f} where "
                f"the budgets were set: `here` is a budget of processor time × {slow:.2f}.",
                style="dim",
            )
        )
    machine = report.machine
    where = "a core each for server and load" if machine.pinned else "server and load on the same core"
    console.print(
        Text(
            f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.kernel}, Python "
            f"{machine.python}; {where}; others used {machine.others or 0:.0%} of the machine, "
            f"{machine.stolen or 0:.0%} was stolen by its host.",
            style="dim",
        )
    )
    if (machine.others or 0) + (machine.stolen or 0) > CALM:
        console.print(Text("The machine was busy: latencies and pauses say little, CPU figures are high.", "yellow"))
    for name, notes in report.notes.items():
        for note in notes:
            console.print(Text(f"{report.titles[name]}: {note}"))
    for name, failures in report.failures.items():
        for text, count in failures.items():
            console.print(Text(f"{report.titles[name]} failed {count} times: {text}", style="bold red"))


def _budget(figure: Figure, ours: Summary | None, slowness: float | None) -> Text:
    if figure.budget is None:
        return Text("")
    limit = f"{'≤' if figure.better == 'less' else '≥'} {shown(figure.budget)}"
    if ours is None:
        return Text(limit)
    kept = met(figure, ours)
    cell = Text(f"{limit} {'✓' if kept else '✗'}", style="green" if kept else "red")
    if not kept and figure.processor and slowness is not None and slowness > 1:
        kept = met(figure, ours, slowness)
        scaled = f"\n≤ {shown(figure.budget * slowness)} here {'✓' if kept else '✗'}"
        cell.append(scaled, style="green" if kept else "red")
    return cell


def _cell(figure: Figure, name: str, summaries: dict[str, Summary], report: Report) -> Text:
    summary = summaries.get(name)
    if summary is None:
        failed = any(text.startswith(f"{figure.row}:") for text in report.failures.get(name, {}))
        return Text("failed", style="bold red") if failed else Text("–", style="dim")
    cell = Text(shown(summary.median))
    if len(summary.values) > 1:
        cell.append(f"\n({shown(summary.low)}–{shown(summary.high)})", style="dim")
    ratios: list[str] = []
    for other, label in ((OURS.name, "ours"), (FLOOR.name, "floor")):
        base = summaries.get(other)
        if base is not None and other != name and base.median and figure.ratio is None:
            ratios.append(f"{shown(summary.median / base.median)}× {label}")
    if ratios:
        cell.append("\n" + ", ".join(ratios), style="dim")
    return cell
