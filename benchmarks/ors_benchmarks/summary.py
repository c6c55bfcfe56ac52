"""``make bench``: the short forms of all benchmarks one after the other, and one page of what they found.

    python -m ors_benchmarks.summary [FOLDER]        default: build/bench

Each benchmark is a process of its own, with its own exit code and in a group of its own, so that nothing it has started
outlives it. One that cannot run here, or fails, is named on the page with its last words, and the others go on. The
page is Markdown and links the JSON and the charts beside it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ors_benchmarks.clients.command import FIGURES as CLIENT_FIGURES
from ors_benchmarks.harness.figures import FIGURES, Figure
from ors_benchmarks.harness.machine import Machine
from ors_benchmarks.harness.results import Report, Summary
from ors_benchmarks.harness.table import met, shown
from ors_benchmarks.rollout.figures import PARTS
from ors_benchmarks.rollout.report import RolloutReport
from ors_benchmarks.sandboxes.scenarios import FIGURES as SANDBOX_FIGURES

__all__ = ["PARTS_OF_IT", "Outcome", "Part", "page", "run", "vllm_python"]

_ROOT = Path(__file__).resolve().parent.parent.parent
#: Seconds one benchmark may take, and may then take to report what it has.
LIMIT = 1200.0
GRACE = 60.0


@dataclass(frozen=True)
class Part:
    """One of the benchmarks."""

    #: As its results' files begin.
    name: str
    title: str
    #: What starts it, less the output folder; or why it cannot be started.
    command: Callable[[], Sequence[str] | str]
    #: Its lines of the page.
    show: Callable[[Path], list[str]]


@dataclass(frozen=True)
class Outcome:
    """What came of one of them."""

    part: Part
    #: Its results; None where it left none.
    results: Path | None
    #: What went wrong; None where nothing did.
    problem: str | None


def run(parts: Sequence[Part], folder: Path, console: Console) -> list[Outcome]:
    """Run them, with their output on the console."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for part in parts:
        console.rule(part.title)
        before = set(folder.glob(f"{part.name}-*.json"))
        command = part.command()
        problem = command if isinstance(command, str) else _run([*command, "--output", str(folder)])
        new = sorted(set(folder.glob(f"{part.name}-*.json")) - before, key=lambda path: path.stat().st_mtime)
        outcomes.append(Outcome(part, new[-1] if new else None, problem))
        if problem is not None:
            console.print(f"[red]{part.title}: {problem}[/red]", soft_wrap=True)
    return outcomes


def _run(command: Sequence[str]) -> str | None:
    """Run one in a process group of its own, which ends with it; what went wrong."""
    # An interrupt asks it to report: in the background of a shell that is ignored, and it would inherit that.
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=_be_interruptible)
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return f"not done after {LIMIT:g} s"
    except KeyboardInterrupt:
        # It is not in the group that the terminal interrupts.
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return None if process.returncode == 0 else f"it ended with {process.returncode}; its output says why"


def _be_interruptible() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def page(outcomes: Sequence[Outcome]) -> str:
    """The page."""
    lines = ["# Benchmarks, short form", ""]
    for outcome in outcomes:
        lines += [f"## {outcome.part.title}", ""]
        if outcome.problem is not None:
            lines += [f"**Failed or not run:** {outcome.problem}", ""]
        if outcome.results is not None:
            lines += outcome.part.show(outcome.results)
            charts = sorted(outcome.results.parent.glob(f"{outcome.results.stem}-*.png"))
            lines += [*(f"![{chart.stem}]({chart.name})" for chart in charts), ""]
            lines += [f"Everything measured: [{outcome.results.name}]({outcome.results.name})", ""]
    lines.append("One or two rounds on whatever else the machine was doing: an impression, no measurement.")
    return "\n".join(lines) + "\n"


def vllm_python() -> Sequence[str] | str:
    """The rollout benchmark where vLLM is: here, or in its own environment, which is made if need be."""
    if importlib.util.find_spec("vllm") is not None:
        return [sys.executable, "-m", "ors_benchmarks.rollout", "--quick"]
    script = _ROOT / "scripts" / "vllm-venv"
    if not script.exists():
        return "vLLM's environment is made by scripts/vllm-venv, which a checkout has and an installed package has not"
    made = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        return "the virtual environment of vLLM cannot be made; scripts/vllm-venv says why"
    return [made.stdout.strip(), "-m", "ors_benchmarks.rollout", "--quick"]


def _show_table(figures: Sequence[Figure]) -> Callable[[Path], list[str]]:
    def show(path: Path) -> list[str]:
        report = Report.model_validate_json(path.read_text())
        lines = [_machine(report.machine), "", "| | budget | " + " | ".join(report.titles.values()) + " |"]
        lines.append("|---|---" + "|---" * len(report.titles) + "|")
        ours = next(iter(report.titles))
        for figure in figures:
            found = report.figures.get(figure.key)
            if found:
                cells = " | ".join(shown(found[name].median) if name in found else "" for name in report.titles)
                lines.append(f"| {figure.title}, {figure.unit} | {_budget(figure, found.get(ours))} | {cells} |")
        failed = [f"{name}: {text}" for name, texts in report.failures.items() for text in texts]
        return [*lines, "", *(f"- **{text}**" for text in failed), *([""] if failed else [])]

    return show


def _show_rollout(path: Path) -> list[str]:
    report = RolloutReport.model_validate_json(path.read_text())
    ratio = "not measured" if report.ratio is None else f"{report.ratio:.3f}"
    budget = "" if report.budget is None else f" (budget ≥ {report.budget:.2f})"
    lines = [
        _machine(report.machine),
        "",
        f"**Ratio {ratio}**{budget}: throughput of {report.engine} with {report.model} and "
        f"{report.options.get('env')} between its turns ÷ throughput of the same generations without.",
        "",
        "| server | client | at once | tokens/s | without | ratio | at the environment | of an episode's time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in report.cells:
        rates = [cell.figures.get(key) for key in ("generated_per_second", "replayed_per_second")]
        share = cell.figures.get("environment_share")
        total = sum(cell.breakdown.values()) or 1.0
        parts = ", ".join(f"{PARTS[part]} {seconds / total:.0%}" for part, seconds in cell.breakdown.items())
        lines.append(
            f"| {cell.server} | {cell.client} | {cell.concurrency} | "
            + " | ".join("" if rate is None else shown(rate.median) for rate in rates)
            + f" | {'' if cell.ratio is None else f'{cell.ratio.median:.3f}'}"
            + f" | {'' if share is None else f'{share.median:.1%}'} | {parts} |"
        )
    return [*lines, ""]


def _machine(machine: Machine) -> str:
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:g} GiB, {machine.kernel}, Python {machine.python}"
    )


def _budget(figure: Figure, ours: Summary | None) -> str:
    if figure.budget is None:
        return ""
    sign = "≤" if figure.better == "less" else "≥"
    return f"{sign} {shown(figure.budget)}" + ("" if ours is None else " ✓" if met(figure, ours) else " ✗")


PARTS_OF_IT: Sequence[Part] = (
    Part("server", "Server", lambda: [sys.executable, "-m", "ors_benchmarks.server", "--quick"], _show_table(FIGURES)),
    Part(
        "sandboxes",
        "Sandboxes",
        lambda: [sys.executable, "-m", "ors_benchmarks.sandboxes", "--quick"],
        _show_table(SANDBOX_FIGURES),
    ),
    Part(
        "clients",
        "Clients",
        lambda: [sys.executable, "-m", "ors_benchmarks.clients", "--quick"],
        _show_table([Figure(key, "", title, unit) for key, title, unit in CLIENT_FIGURES]),
    ),
    Part("rollout", "Rollouts", vllm_python, _show_rollout),
)


def main() -> None:
    """Run all of them and write the page; ends with 1 if one failed."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench")
    console = Console(highlight=False)
    outcomes = run(PARTS_OF_IT, folder, console)
    written = folder / "summary.md"
    written.write_text(page(outcomes))
    console.rule("Summary")
    console.print(written.read_text(), soft_wrap=True, markup=False)
    console.print(f"written: {written}", soft_wrap=True)
    if any(outcome.problem is not None for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
