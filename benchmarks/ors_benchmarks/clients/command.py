"""``ors-server bench clients``: our client beside the ``openreward`` client, against our server, in one run.

``python -m ors_benchmarks.clients`` is the same. Each measurement is a process of its own on one core, the server has
the other. The same episodes, the same calls; every answer is verified. The exit code says whether every answer was
right, never how fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ors_benchmarks.harness.candidates import CANDIDATES as SERVERS
from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.candidates import packages
from ors_benchmarks.harness.commands import choose
from ors_benchmarks.harness.machine import Observer, describe
from ors_benchmarks.harness.processes import ServerProcess, cores, raise_file_limit
from ors_benchmarks.harness.results import Gathered, Report, Summary, free_path
from ors_benchmarks.harness.table import CALM, shown
from ors_benchmarks.server.scenarios import Measured

__all__ = ["FIGURES", "benchmark", "main"]

_DRIVER = Path(__file__).with_name("script_driver.py")
#: Seconds that one measurement may take before it counts as hung.
MEASUREMENT_LIMIT = 600.0
#: The candidates that a client's figures are held against: of its own kind.
_AGAINST = {"ours": "openreward", "ours-sync": "openreward-sync", "ours-httpx": "openreward"}


@dataclass(frozen=True)
class Client:
    """A client to measure."""

    name: str
    title: str
    ours: bool
    #: The most sessions that are tried: a synchronous one needs a thread for each, and httpx takes minutes for more.
    most: int = 4096

    def python(self) -> str:
        """The Python to run it with; openreward's is the one that its server is measured in."""
        if self.ours:
            return sys.executable
        return next(candidate for candidate in SERVERS if candidate.name == "openreward").prepare()


CLIENTS: Sequence[Client] = (
    Client("ours", "ors-clients", ours=True),
    Client("openreward", "openreward", ours=False),
    Client("ours-httpx", "ors-clients over httpx", ours=True, most=64),
    Client("ours-sync", "ors-clients, sync", ours=True, most=64),
    Client("openreward-sync", "openreward, sync", ours=False, most=64),
)


@dataclass(frozen=True)
class Row:
    """A measurement."""

    name: str
    title: str
    sessions: int


ROWS: Sequence[Row] = (
    Row("start", "a process that imports the client and makes one call", 0),
    Row("one", "one session that calls", 1),
    Row("some", "64 sessions that call at once", 64),
    Row("many", "4,096 sessions that call at once", 4096),
)
#: Key, title and unit of each figure; all but the last are better when they are less.
FIGURES: Sequence[tuple[str, str, str]] = (
    ("start_wall", "from the process's start to its first result", "ms"),
    ("start_cpu", "CPU until then", "ms"),
    ("start_memory", "memory then", "MiB"),
    ("cpu_1", "CPU per call, 1 session", "µs"),
    ("rate_1", "calls a second, 1 session", "1/s"),
    ("cpu_64", "CPU per call, 64 sessions", "µs"),
    ("rate_64", "calls a second, 64 sessions", "1/s"),
    ("memory_64", "memory per session, 64 sessions", "KiB"),
    ("cpu_4096", "CPU per call, 4,096 sessions", "µs"),
    ("rate_4096", "calls a second, 4,096 sessions", "1/s"),
    ("memory_4096", "memory per session, 4,096 sessions", "KiB"),
)


_EPILOG = "\n".join(
    [
        "[bold]Rows[/bold]",
        *(f"  {row.name:<6} {row.title}" for row in ROWS),
        "",
        "[bold]Candidates[/bold]",
        *(f"  {client.name:<16} {client.title}" for client in CLIENTS),
        "",
        "[bold]Examples[/bold]",
        "  ors-server bench clients --quick          once pip has run, within 90 s",
        "  ors-server bench clients                  everything, about ten minutes",
        "  ors-server bench clients --candidates ours,openreward --rows one,some",
    ]
)

application = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@application.command(epilog=_EPILOG)
def benchmark(
    rounds: Annotated[int | None, typer.Option(min=1, help="How often everything is measured. Default 3.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Seconds of each stretch of calls. Default 4.")] = None,
    candidates: Annotated[
        str, typer.Option(metavar="NAME,...", help="The clients to measure, in this order.")
    ] = ",".join(client.name for client in CLIENTS),
    rows: Annotated[str | None, typer.Option(metavar="NAME,...", help="What to measure. Default: all rows.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round, 1 s stretches, no 4,096 sessions.")] = False,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where the JSON goes.", file_okay=False)] = Path(
        "benchmarks/results"
    ),
) -> None:
    """Measure our client beside the one of openreward: CPU, rate, memory and start, every answer verified.

    \b
    Each client is a process on one core, our server has another. They take
    turns, round after round, and the table shows medians with their spread.
    It ends with 1 if any answer was wrong or missing, and never because
    something was slow.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    default = [row.name for row in ROWS if not quick or row.sessions <= 64]
    chosen = choose(candidates, CLIENTS, "--candidates")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        report = _run(
            chosen,
            choose(rows or ",".join(default), ROWS, "--rows"),
            rounds or (1 if quick else 3),
            seconds or (1.0 if quick else 4.0),
            Path(folder),
            console,
        )
    path = free_path(output, f"clients-{report.started:%Y-%m-%d}")
    report.write(path)
    console.print()
    _print_report(report, console)
    console.print(f"written: {path}", soft_wrap=True)
    if report.failures:
        raise typer.Exit(1)


def _run(
    clients: Sequence[Client], rows: Sequence[Row], rounds: int, seconds: float, folder: Path, console: Console
) -> Report:
    started, clock = datetime.now(UTC), time.monotonic()
    pythons = {client.name: client.python() for client in clients}
    observer = Observer()
    gathered = Gathered()
    raise_file_limit()
    placed = cores()
    for number in range(1, rounds + 1):
        # A new one each round, so that no round has another's garbage.
        command = OUR_SERVER.command(OUR_SERVER.prepare())
        server = ServerProcess.start(command, folder, placed.server, name="server")
        try:
            with _on_core(placed.load):
                for row in rows:
                    for client in clients:
                        if row.sessions <= client.most:
                            _measure(number, row, client, pythons[client.name], server, seconds, gathered, console)
        finally:
            server.stop()
    return Report(
        started=started.replace(microsecond=0),
        seconds=round(time.monotonic() - clock, 1),
        rounds=rounds,
        window_seconds=seconds,
        rows=[row.name for row in rows],
        machine=observer.finish(describe()),
        titles={client.name: client.title for client in clients},
        packages={name: packages(python) for name, python in pythons.items()},
        figures=gathered.figures("ours"),
        curves={},
        failures={name: dict(failures) for name, failures in gathered.failures.items()},
        notes={},
    )


def _measure(
    number: int,
    row: Row,
    client: Client,
    python: str,
    server: ServerProcess,
    seconds: float,
    gathered: Gathered,
    console: Console,
) -> None:
    url = f"http://{server.address.host}:{server.address.port}"
    # What is measured is each client as it comes: no setting may leak in from this shell.
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("ORS_", "OPENREWARD_"))}
    if client.ours:
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    clock = time.monotonic()
    command = [python, "-P", str(_DRIVER), client.name, url, str(row.sessions), str(seconds), str(time.monotonic())]
    measured, failures = Measured(), dict[str, int]()
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=MEASUREMENT_LIMIT)
    except subprocess.TimeoutExpired:
        failures[f"not done after {MEASUREMENT_LIMIT:g} s"] = 1
    else:
        try:
            answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            failures[(done.stderr.strip().splitlines() or ["no figures"])[-1][:200]] = 1
        else:
            measured.figures, failures = answer["figures"], answer["failures"]
    gathered.add(client.name, row.name, measured, failures)
    found = ", ".join(
        f"{title}: {shown(measured.figures[key])} {unit}" for key, title, unit in FIGURES if key in measured.figures
    )
    if failures:
        found = f"[red]failed: {next(iter(failures))}[/red]"
    console.print(
        f"[dim]{number}[/dim] {row.name:<6} {client.title:<24} {found}  [dim]({time.monotonic() - clock:.0f} s)[/dim]",
        soft_wrap=True,
    )


@contextlib.contextmanager
def _on_core(core: int | None) -> Generator[None]:
    """Confine this process, and those it starts, to a core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# --- the report ----------------------------------------------------------------------------------


def _print_report(report: Report, console: Console) -> None:
    table = Table(show_lines=False, pad_edge=False, header_style="bold")
    table.add_column("", ratio=3, min_width=28)
    for name, title in report.titles.items():
        table.add_column(title, justify="right", min_width=12, style="bold" if name == "ours" else "")
    for key, title, unit in FIGURES:
        summaries = report.figures.get(key)
        if summaries:
            table.add_row(f"{title}, {unit}", *(_cell(name, summaries) for name in report.titles))
    console.print(table)
    console.print(
        Text("Median of the rounds (lowest–highest); × is over the openreward client of the same kind.", style="dim")
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
    if (machine.others or 0) + (machine.stolen or 0) > CALM:
        console.print(Text("The machine was busy: compare within the run only, or measure again.", "yellow"))
    for name, failures in report.failures.items():
        for text, count in failures.items():
            console.print(Text(f"{report.titles[name]} failed {count} times: {text}", style="bold red"))


def _cell(name: str, summaries: dict[str, Summary]) -> Text:
    summary = summaries.get(name)
    if summary is None:
        return Text("–", style="dim")
    cell = Text(shown(summary.median))
    if len(summary.values) > 1:
        cell.append(f"\n({shown(summary.low)}–{shown(summary.high)})", style="dim")
    base = summaries.get(_AGAINST.get(name, ""))
    if base is not None and base.median:
        cell.append(f"\n{shown(summary.median / base.median)}×", style="dim")
    return cell


def main(arguments: Sequence[str] | None = None, program: str = "python -m ors_benchmarks.clients") -> None:
    """Run the command with these arguments, or those of this process, and end the process.

    Raises ``OrsError`` where something has to be corrected first.
    """
    application(arguments, prog_name=program)
