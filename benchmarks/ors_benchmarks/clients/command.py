"""``ors-server bench clients``: our client beside the ``openreward`` client, against our server, in one run.

``python -m ors_benchmarks.clients`` is the same. Each measurement is a process of its own on one core, the server has
the other. The same episodes, the same calls; every answer is verified. The exit code says whether every answer was
right, never how fast.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.candidates import SDKS, packages
from ors_benchmarks.harness.commands import (
    RESULTS,
    Output,
    Rows,
    as_program,
    choose,
    finish,
    new_console,
    rounds_option,
    seconds_option,
    section,
)
from ors_benchmarks.harness.figures import Figure, Measured, Row
from ors_benchmarks.harness.processes import ServerProcess, cores, on_core, raise_file_limit, without_settings
from ors_benchmarks.harness.results import Report
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT, Run, turns
from ors_benchmarks.harness.table import Layout
from ors_benchmarks.harness.table import print_report as print_table

__all__ = ["FIGURES", "benchmark", "main"]

_DRIVER = Path(__file__).with_name("script_driver.py")
#: By candidate: the client of its own kind that its figures are divided by.
_BASES = {"ours": "openreward", "ours-sync": "openreward-sync", "ours-httpx": "openreward"}


@dataclass(frozen=True)
class Client:
    """A client to measure."""

    name: str
    title: str
    ours: bool
    #: The most sessions that are tried: a synchronous client needs a thread for each, and httpx takes minutes for more.
    most: int = 4096

    def python(self) -> str:
        """Return the Python to run it with; openreward's client runs in the environment of its server."""
        if self.ours:
            return sys.executable
        return next(candidate for candidate in SDKS if candidate.name == "openreward").prepare()


CLIENTS: Sequence[Client] = (
    Client("ours", "ors-clients", ours=True),
    Client("openreward", "openreward", ours=False),
    Client("ours-httpx", "ors-clients over httpx", ours=True, most=64),
    Client("ours-sync", "ors-clients, sync", ours=True, most=64),
    Client("openreward-sync", "openreward, sync", ours=False, most=64),
)


@dataclass(frozen=True)
class ClientRow(Row):
    """A row of the client benchmark."""

    sessions: int


ROWS: Sequence[ClientRow] = (
    ClientRow("start", "a process that imports the client and makes one call", 0),
    ClientRow("one", "one session that calls", 1),
    ClientRow("some", "64 sessions that call at once", 64),
    ClientRow("many", "4,096 sessions that call at once", 4096),
)
FIGURES: Sequence[Figure] = (
    Figure("start_wall", "start", "from the process's start to its first result", "ms"),
    Figure("start_cpu", "start", "CPU until then", "ms"),
    Figure("start_memory", "start", "memory then", "MiB"),
    Figure("cpu_1", "one", "CPU per call, 1 session", "µs"),
    Figure("rate_1", "one", "calls a second, 1 session", "1/s", "more"),
    Figure("cpu_64", "some", "CPU per call, 64 sessions", "µs"),
    Figure("rate_64", "some", "calls a second, 64 sessions", "1/s", "more"),
    Figure("memory_64", "some", "memory per session, 64 sessions", "KiB"),
    Figure("cpu_4096", "many", "CPU per call, 4,096 sessions", "µs"),
    Figure("rate_4096", "many", "calls a second, 4,096 sessions", "1/s", "more"),
    Figure("memory_4096", "many", "memory per session, 4,096 sessions", "KiB"),
)


def benchmark(
    rounds: Annotated[int | None, rounds_option(3)] = None,
    seconds: Annotated[float | None, seconds_option(4)] = None,
    candidates: Annotated[
        str, typer.Option(metavar="NAME,...", help="The clients to measure, in this order.")
    ] = ",".join(client.name for client in CLIENTS),
    rows: Rows = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round, 1 s stretches, no 4,096 sessions.")] = False,
    output: Output = RESULTS,
) -> None:
    """Measure our client beside openreward's: CPU, rate, memory and start, every answer verified.

    \b
    Each client is a process on one core, our server has another. They take
    turns, round after round, and the table shows medians with their spread.
    It ends with 1 if any answer was wrong or missing, and never because
    something was slow.
    """
    console = new_console()
    default = ",".join(row.name for row in ROWS if not quick or row.sessions <= 64)
    chosen = choose(candidates, CLIENTS, "--candidates")
    chosen_rows = choose(rows or default, ROWS, "--rows")
    output.mkdir(parents=True, exist_ok=True)
    report = _run(chosen, chosen_rows, rounds or (1 if quick else 3), seconds or (1.0 if quick else 4.0), console)
    finish(report, "clients", output, console, _print_report)


main = as_program(
    benchmark,
    section("Rows", ROWS),
    section("Candidates", CLIENTS),
    section(
        "Examples",
        [
            "ors-server bench clients --quick          once pip has run, within 90 s",
            "ors-server bench clients                  everything, about ten minutes",
            "ors-server bench clients --candidates ours,openreward --rows one,some",
        ],
    ),
)


def _run(clients: Sequence[Client], rows: Sequence[ClientRow], rounds: int, seconds: float, console: Console) -> Report:
    pythons = {client.name: client.python() for client in clients}
    run = Run(FIGURES, console)
    raise_file_limit()
    assigned = cores()
    order = turns(rounds, rows, clients, lambda _, row, client: row.sessions <= client.most)
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        server = ServerProcess.start(OUR_SERVER.command(sys.executable), Path(folder), assigned.server, name="server")
        try:
            with on_core(assigned.load):
                for turn in run.each(order):
                    run.add(turn, *_measure(turn.row, turn.candidate, pythons[turn.candidate.name], server, seconds))
        finally:
            server.stop()
    return run.report(
        rounds=rounds,
        window_seconds=seconds,
        rows=rows,
        titles={client.name: client.title for client in clients},
        packages={name: packages(python) for name, python in pythons.items()},
        ours="ours",
    )


def _measure(
    row: ClientRow, client: Client, python: str, server: ServerProcess, seconds: float
) -> tuple[Measured, Mapping[str, int]]:
    url = f"http://{server.address.host}:{server.address.port}"
    variables = without_settings()
    if client.ours:
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [python, "-P", str(_DRIVER), client.name, url, str(row.sessions), str(seconds), str(time.monotonic())]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=MEASUREMENT_LIMIT)
    except subprocess.TimeoutExpired:
        return Measured(), {f"not done after {MEASUREMENT_LIMIT:g} s": 1}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return Measured(), {(done.stderr.strip().splitlines() or ["no figures"])[-1][:200]: 1}
    return Measured(answer["figures"]), answer["failures"]


def _print_report(report: Report, console: Console) -> None:
    layout = Layout(
        figures=FIGURES,
        ours=["ours"],
        bases={name: {base: ""} for name, base in _BASES.items()},
        legend="× is over the openreward client of the same kind.",
    )
    print_table(report, layout, console)
