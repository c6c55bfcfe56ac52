"""``ors-server bench clients``: our client beside the ``openreward`` client, against our server, in one run.

``python -m ors_benchmarks.clients`` is the same. Each measurement is a process of its own on one core, the server has
the other. The same episodes, the same calls; every answer is verified.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ors_benchmarks.harness.benchmark import Benchmark, Measuring
from ors_benchmarks.harness.candidates import OURS as OUR_SERVER
from ors_benchmarks.harness.candidates import SDKS, packages
from ors_benchmarks.harness.processes import ServerProcess, cores, on_core, without_settings
from ors_benchmarks.harness.reports.figures import Figure, Measured, Row
from ors_benchmarks.harness.reports.table import Layout
from ors_benchmarks.harness.runs import MEASUREMENT_LIMIT, Run, Size

__all__ = ["BENCHMARK", "FIGURES", "main"]

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


@contextmanager
def _measuring(
    clients: Sequence[Client], size: Size, folder: Path, run: Run
) -> Generator[Measuring[ClientRow, Client]]:
    assigned = cores()
    server = ServerProcess.start(OUR_SERVER.command(sys.executable), folder, assigned.server, name="server")
    try:
        with on_core(assigned.load):
            yield Measuring(clients, lambda turn: _measure(turn.row, turn.candidate, server, size.seconds))
    finally:
        server.stop()


def _measure(
    row: ClientRow, client: Client, server: ServerProcess, seconds: float
) -> tuple[Measured, Mapping[str, int]]:
    url = f"http://{server.address.host}:{server.address.port}"
    variables = without_settings()
    if client.ours:
        variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [
        client.python(),
        "-P",
        str(_DRIVER),
        client.name,
        url,
        str(row.sessions),
        str(seconds),
        str(time.monotonic()),
    ]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=MEASUREMENT_LIMIT)
    except subprocess.TimeoutExpired:
        return Measured(), {f"not done after {MEASUREMENT_LIMIT:g} s": 1}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return Measured(), {(done.stderr.strip().splitlines() or ["no figures"])[-1][:200]: 1}
    return Measured(answer["figures"]), answer["failures"]


BENCHMARK = Benchmark(
    name="clients",
    help="""Measure our client beside openreward's: CPU, rate, memory and start, every answer verified.

    \b
    Each client is a process on one core, our server has another. They take
    turns, round after round, and the table shows medians with their spread.
    It ends with 1 if any answer was wrong or missing, and never because
    something was slow.
    """,
    examples=[
        "ors-server bench clients --quick          once pip has run, within 90 s",
        "ors-server bench clients                  everything, about ten minutes",
        "ors-server bench clients --candidates ours,openreward --rows one,some",
    ],
    quick_help="One round, 1 s stretches, no 4,096 sessions.",
    quick_rows=[row.name for row in ROWS if row.sessions <= 64],
    rows=ROWS,
    candidates=CLIENTS,
    figures=FIGURES,
    full=Size(rounds=3, seconds=4.0),
    quick=Size(rounds=1, seconds=1.0),
    measuring=_measuring,
    applies=lambda _, row, client: row.sessions <= client.most,
    prepare=Client.python,
    packages=lambda client: packages(client.python()),
    layout=lambda _: Layout(
        ours=["ours"],
        bases={name: {base: ""} for name, base in _BASES.items()},
        legend="× is over the openreward client of the same kind.",
    ),
)
main = BENCHMARK.program()
