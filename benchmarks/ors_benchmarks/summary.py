"""``make bench``: the short forms of all benchmarks one after the other, and one page of their results.

    python -m ors_benchmarks.summary [FOLDER]        default: build/bench

Each benchmark is a process in a group of its own, so that nothing it started outlives it. A benchmark that cannot run
here, or fails, is named on the page with the reason, and the others go on. The page is Markdown and links the JSON and
the charts beside it.
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
from ors_benchmarks.harness.reports.figures import Figure
from ors_benchmarks.harness.reports.results import Report
from ors_benchmarks.harness.reports.table import limit, shown, verdict
from ors_benchmarks.rollout.figures import PARTS
from ors_benchmarks.rollout.reports.report import RolloutReport
from ors_benchmarks.sandboxes.scenarios import FIGURES as SANDBOX_FIGURES
from ors_benchmarks.scale.rows import FIGURES as SCALE_FIGURES
from ors_benchmarks.server.rows import FIGURES as SERVER_FIGURES
from ors_benchmarks.terminal.scenarios import FIGURES as TERMINAL_FIGURES

__all__ = ["BENCHMARKS", "Benchmark", "Outcome", "page", "run", "vllm_python"]

_ROOT = Path(__file__).resolve().parent.parent.parent
#: Limits in seconds: for a benchmark, and for its report after an interrupt.
LIMIT = 1200.0
GRACE = 60.0


@dataclass(frozen=True)
class Benchmark:
    """One of the benchmarks."""

    #: The beginning of its results' file names.
    name: str
    title: str
    #: Its command, less the output folder, or the reason why it cannot run.
    command: Callable[[], Sequence[str] | str]
    #: The lines of the page for a file of results.
    show: Callable[[Path], list[str]]


@dataclass(frozen=True)
class Outcome:
    """The end of one benchmark."""

    benchmark: Benchmark
    #: Its results; None if it wrote none.
    results: Path | None
    #: The failure; None for a success.
    problem: str | None


def run(benchmarks: Sequence[Benchmark], folder: Path, console: Console) -> list[Outcome]:
    """Run the benchmarks, with their output on the console."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for benchmark in benchmarks:
        console.rule(benchmark.title)
        before = set(folder.glob(f"{benchmark.name}-*.json"))
        command = benchmark.command()
        problem = command if isinstance(command, str) else _run([*command, "--output", str(folder)])
        new = sorted(set(folder.glob(f"{benchmark.name}-*.json")) - before, key=lambda path: path.stat().st_mtime)
        outcomes.append(Outcome(benchmark, new[-1] if new else None, problem))
        if problem is not None:
            console.print(f"[red]{benchmark.title}: {problem}[/red]", soft_wrap=True)
    return outcomes


def _run(command: Sequence[str]) -> str | None:
    """Run a command in a process group that ends with it; returns the failure, or None."""
    # An interrupt makes it report; a shell's background jobs inherit that SIGINT is ignored.
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=_be_interruptible)
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return f"not done after {LIMIT:g} s"
    except KeyboardInterrupt:
        # The terminal interrupts another process group.
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
    """Return the page as Markdown."""
    lines = ["# Benchmarks, short form", ""]
    for outcome in outcomes:
        lines += [f"## {outcome.benchmark.title}", ""]
        if outcome.problem is not None:
            lines += [f"**Failed or not run:** {outcome.problem}", ""]
        if outcome.results is not None:
            lines += outcome.benchmark.show(outcome.results)
            charts = sorted(outcome.results.parent.glob(f"{outcome.results.stem}-*.png"))
            lines += [*(f"![{chart.stem}]({chart.name})" for chart in charts), ""]
            lines += [f"Everything measured: [{outcome.results.name}]({outcome.results.name})", ""]
    lines.append("One or two rounds on whatever else the machine was doing: an impression and not a measurement.")
    return "\n".join(lines) + "\n"


def vllm_python() -> Sequence[str] | str:
    """Return the command of the rollout benchmark, with vLLM installed here or in an environment made for it."""
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
        lines = [report.machine.hardware, "", "| | budget | " + " | ".join(report.titles.values()) + " |"]
        lines.append("|---|---" + "|---" * len(report.titles) + "|")
        ours = next(iter(report.titles))
        for figure in figures:
            found = report.figures.get(figure.key)
            if found:
                cells = " | ".join(shown(found[name].median) if name in found else "" for name in report.titles)
                lines.append(
                    f"| {figure.title}, {figure.unit} | {limit(figure)}{verdict(figure, found.get(ours))} | {cells} |"
                )
        failed = [f"{name}: {text}" for name, texts in report.failures.items() for text in texts]
        return [*lines, "", *(f"- **{text}**" for text in failed), *([""] if failed else [])]

    return show


def _show_rollout(path: Path) -> list[str]:
    report = RolloutReport.model_validate_json(path.read_text())
    ratio = "not measured" if report.ratio is None else f"{report.ratio:.3f}"
    budget = "" if report.budget is None else f" (budget ≥ {report.budget:.2f})"
    lines = [
        report.machine.hardware,
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


def _quick(name: str) -> Callable[[], Sequence[str]]:
    return lambda: [sys.executable, "-m", f"ors_benchmarks.{name}", "--quick"]


BENCHMARKS: Sequence[Benchmark] = (
    Benchmark("server", "Server", _quick("server"), _show_table(SERVER_FIGURES)),
    Benchmark("sandboxes", "Sandboxes", _quick("sandboxes"), _show_table(SANDBOX_FIGURES)),
    Benchmark("terminal", "Terminal episodes", _quick("terminal"), _show_table(TERMINAL_FIGURES)),
    Benchmark("clients", "Clients", _quick("clients"), _show_table(CLIENT_FIGURES)),
    Benchmark("scale", "Several workers", _quick("scale"), _show_table(SCALE_FIGURES)),
    Benchmark("rollout", "Rollouts", vllm_python, _show_rollout),
)


def main() -> None:
    """Run all benchmarks and write the page; ends with 1 if one failed."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench")
    console = Console(highlight=False)
    outcomes = run(BENCHMARKS, folder, console)
    written = folder / "summary.md"
    written.write_text(page(outcomes))
    console.rule("Summary")
    console.print(written.read_text(), soft_wrap=True, markup=False)
    console.print(f"written: {written}", soft_wrap=True)
    if any(outcome.problem is not None for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
