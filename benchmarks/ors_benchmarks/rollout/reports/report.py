"""The report of a rollout benchmark: its JSON, with the headline ``ratio`` at the top, and its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_benchmarks.harness.machine import Machine
from ors_benchmarks.harness.reports.results import Results, Summary
from ors_benchmarks.harness.reports.table import shown
from ors_benchmarks.rollout.figures import PARTS, Cell

__all__ = ["BUDGET", "RolloutReport", "headline", "print_report"]


class _Budget(NamedTuple):
    #: The ratio that is to be reached, by environment.
    ratios: Mapping[str, float]
    #: Episodes at once; None: ``PER_CORE`` for each core.
    concurrency: int | None


#: Episodes at once for each core, as on the machine with the GPU.
PER_CORE = 16
#: Where the engine has a core of its own, where it has a GPU, and where a GPU is emulated.
BUDGET = {
    "cpu": _Budget({"echo": 0.90}, 64),
    "cuda": _Budget({"echo": 0.95, "terminal": 0.90}, 256),
    "emulated": _Budget({"echo": 0.97, "terminal": 0.92}, None),
}


#: What cells of different servers must have in common to be compared.
_SAME = ("client", "concurrency", "think_time")


class RolloutReport(Results):
    """A whole run."""

    #: Throughput with environments ÷ throughput of the same generations without, of the first cell: its median over the
    #: rounds. None where it could not be measured.
    ratio: float | None
    #: Why the run ended early, with the remedy; None for one that came to its end.
    ended_early: str | None
    started: datetime
    seconds: float
    machine: Machine
    #: Model, engine and its versions.
    model: str
    engine: str
    engine_description: dict[str, str]
    #: Of this process, and of each server that was started.
    packages: dict[str, dict[str, str]]
    #: What was asked for on the command line.
    options: dict[str, Any]
    rounds: int
    cells: list[Cell]
    #: Some episodes of the first cell's last round: where each was when (``figures.timeline_of``).
    timeline: list[dict[str, Any]]
    #: Whether the engine's prefix cache was empty before each run and each replay; None where nothing was run.
    cache_emptied: bool | None = None

    @property
    def budget(self) -> float | None:
        """The ratio that the first cell is to reach; None where there is no budget for what was measured."""
        device = self.engine_description.get("device", "")
        budget = BUDGET.get(device)
        if budget is None or not self.cells:
            return None
        if device == "cpu" and not (self.engine == "vllm" and self.model == "tiny" and self.machine.pinned):
            return None
        first = self.cells[0]
        measured = first.server, first.client, first.concurrency, first.think_time
        at_once = budget.concurrency or PER_CORE * self.machine.cores
        met = measured == ("ors-server", "ors_clients", at_once, 0.0)
        return budget.ratios.get(self.options.get("env", "")) if met else None

    @property
    def others(self) -> Sequence[Cell]:
        """The cells that differ from the first in nothing but the server: it is to be above them too."""
        return [
            cell
            for cell in self.cells[1:]
            if all(getattr(cell, name) == getattr(self.cells[0], name) for name in _SAME) and cell.ratio is not None
        ]


#: Rows of the table: a title, a figure's key, a factor and a unit.
_FIGURES: Sequence[tuple[str, str, float, str]] = (
    ("episodes", "episodes_per_second", 1, "/s"),
    ("turns", "turns_per_second", 1, "/s"),
    ("generated tokens", "generated_per_second", 1, "/s"),
    ("… of the replay, no environment", "replayed_per_second", 1, "/s"),
    ("prompt tokens", "prompt_per_second", 1, "/s"),
    ("an episode's time at its environment", "environment_share", 100, "%"),
    ("engine has work", "engine_busy", 100, "%"),
    ("engine's CPU", "engine_cpu", 100, "%"),
    ("… its front-end's", "front_end_cpu", 100, "%"),
    ("server's CPU", "server_cpu", 100, "%"),
    ("client's CPU", "client_cpu", 100, "%"),
    ("GPU utilisation", "gpu_utilisation", 100, "%"),
    ("GPU memory", "gpu_memory_mib", 1, "MiB"),
    ("prompt tokens from the prefix cache", "prefix_hits", 100, "%"),
    ("… of the replay", "replayed_prefix_hits", 100, "%"),
)


def print_report(report: RolloutReport, console: Console) -> None:
    """Print the tables, the machine, and every remark and failure."""
    peers = {(cell.server, cell.client) for cell in report.cells}
    ladder = {(cell.concurrency, cell.think_time) for cell in report.cells}
    if report.cells:
        console.print(_details(report.cells if len(ladder) == 1 else report.cells[: max(1, len(peers))]))
        if len(ladder) > 1:
            console.print(_ladder(report.cells))
        many = "Medians of the rounds (lowest–highest); latencies are of all rounds together."
        console.print(Text(many, style="dim"))
    machine = report.machine
    console.print(
        Text(
            f"{report.engine} with {report.model}; {machine.hardware}; {machine.conditions}.",
            style="dim",
        )
    )
    if machine.busy():
        console.print(Text("The machine was busy: measure again when it is calm.", style="yellow"))
    for cell in report.cells:
        where = f"{cell.client} → {cell.server}, {cell.concurrency} at once"
        for note in cell.notes:
            console.print(Text(f"{where}: {note}", style="yellow"), soft_wrap=True)
        for text, count in cell.failures.items():
            console.print(Text(f"{where}: {count} failed, {text}", style="bold red"), soft_wrap=True)
        for text, count in cell.environment_errors.items():
            told = f"{where}: {count} calls in which the environment's tool raised: {text}"
            console.print(Text(told, style="bold red"), soft_wrap=True)
        for text, count in list(cell.problems.items())[:3]:
            console.print(Text(f"{where}: {count} calls were wrong: {text}", style="yellow"), soft_wrap=True)
    if report.cache_emptied is False:
        console.print(
            Text(
                "The engine's prefix cache was not emptied: a replay finds there what its run has left.", style="yellow"
            ),
            soft_wrap=True,
        )
    if report.ended_early:
        console.print(Text(f"Ended early: {report.ended_early}", style="bold red"), soft_wrap=True)
    if report.ratio is not None and report.cells and report.cells[0].ratio is not None:
        console.print(Text(headline(report, report.cells[0].ratio), style="bold"), soft_wrap=True)


def headline(report: RolloutReport, ratio: Summary) -> str:
    """Return the ratio with its budget, if it has one, and the environment's share of the time, which is steadier."""
    parts = [f"ratio {ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"]
    if report.budget is not None:
        parts.append(f"budget ≥ {report.budget:.2f} {'✓' if ratio.median >= report.budget else '✗'}")
        others = [(cell.server, cell.ratio.median) for cell in report.others if cell.ratio is not None]
        if others and report.engine_description.get("device") == "cpu":
            told = ", ".join(f"{server} {median:.3f}" for server, median in others)
            parts.append(f"and above {told} {'✓' if all(ratio.median > median for _, median in others) else '✗'}")
    share = report.cells[0].figures.get("environment_share")
    also = "" if share is None else f"; {share.median:.1%} of an episode's time at its environment"
    return f"{', '.join(parts)}: throughput with environments ÷ the same generations without{also}"


def _details(cells: Sequence[Cell]) -> Table:
    table = Table(pad_edge=False, header_style="bold")
    table.add_column("", min_width=22)
    for cell in cells:
        think = f", think {cell.think_time:g} s" if cell.think_time else ""
        table.add_column(f"{cell.client} →\n{cell.server}\n{cell.concurrency} at once{think}", justify="right")
    table.add_row("ratio", *(_spread(cell.ratio, 1, 3) for cell in cells), style="bold")
    for title, key, factor, unit in _FIGURES:
        if any(key in cell.figures for cell in cells):
            table.add_row(f"{title}, {unit}", *(_spread(cell.figures.get(key), factor) for cell in cells))
    table.add_section()
    for name in dict.fromkeys(name for cell in cells for name in cell.latencies):
        table.add_row(f"{name} p50 / p95 / p99, ms", *(_quantiles(cell, name) for cell in cells))
    table.add_section()
    for part, title in PARTS.items():
        if any(part in cell.breakdown for cell in cells):
            table.add_row(f"{title}, ms an episode", *(_part(cell, part) for cell in cells))
    table.add_section()
    for process in dict.fromkeys(process for cell in cells for process in cell.memory_mib):
        row = [shown(cell.memory_mib[process]) if process in cell.memory_mib else "–" for cell in cells]
        table.add_row(f"peak memory: {process}, MiB", *row)
    table.add_row(
        "outcomes", *("\n".join(f"{count} {name}" for name, count in cell.outcomes.items()) for cell in cells)
    )
    table.add_row("infrastructure failures", *(str(cell.infrastructure_failures) for cell in cells))
    if any(cell.environment_errors for cell in cells):
        table.add_row("calls in which a tool raised", *(str(sum(cell.environment_errors.values())) for cell in cells))
    return table


def _ladder(cells: Sequence[Cell]) -> Table:
    table = Table(pad_edge=False, header_style="bold")
    for title in ("server", "client", "at once", "think, s", "ratio", "tokens/s", "without", "episodes/s", "at env."):
        table.add_column(title, justify="left" if title in ("server", "client") else "right")
    table.add_column("call p50 / p99, ms", justify="right")
    table.add_column("failed", justify="right")
    for cell in cells:
        calls = cell.latencies.get("tool call")
        table.add_row(
            cell.server,
            cell.client,
            f"{cell.concurrency:,}",
            f"{cell.think_time:g}",
            "–" if cell.ratio is None else f"{cell.ratio.median:.3f}",
            *(_median(cell, key) for key in ("generated_per_second", "replayed_per_second", "episodes_per_second")),
            f"{cell.figures['environment_share'].median:.0%}" if "environment_share" in cell.figures else "–",
            "–" if calls is None else f"{shown(calls.p50)} / {shown(calls.p99)}",
            str(cell.infrastructure_failures),
        )
    return table


def _median(cell: Cell, key: str) -> str:
    summary = cell.figures.get(key)
    return "–" if summary is None else shown(summary.median)


def _spread(summary: Summary | None, factor: float, digits: int | None = None) -> str:
    if summary is None:
        return "–"
    median, low, high = (
        shown(value * factor) if digits is None else f"{value * factor:.{digits}f}"
        for value in (summary.median, summary.low, summary.high)
    )
    return median if len(summary.values) < 2 else f"{median}\n({low}–{high})"


def _quantiles(cell: Cell, name: str) -> str:
    found = cell.latencies.get(name)
    return "–" if found is None else f"{shown(found.p50)} / {shown(found.p95)} / {shown(found.p99)}"


def _part(cell: Cell, part: str) -> str:
    return "–" if part not in cell.breakdown else shown(cell.breakdown[part] * 1e3)
