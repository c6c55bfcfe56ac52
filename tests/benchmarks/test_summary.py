"""The summary page of all benchmarks: its content, and that a failing benchmark does not affect the others."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ors_benchmarks import summary
from ors_benchmarks.harness.machine import describe
from ors_benchmarks.harness.reports.results import Summary
from ors_benchmarks.rollout.figures import Cell
from ors_benchmarks.rollout.reports.report import RolloutReport
from ors_benchmarks.summary import BENCHMARKS, Benchmark, page, run, vllm_python
from rich.console import Console

from tests.support.paths import ROOT
from tests.support.processes import is_alive

RESULTS = ROOT / "benchmarks" / "results"


def rollout_report(path: Path) -> None:
    cell = Cell(
        server="ors-server",
        client="ors_clients",
        concurrency=64,
        think_time=0.0,
        ratio=Summary.of([0.91, 0.93, 0.95]),
        figures={"generated_per_second": Summary.of([900.0]), "environment_share": Summary.of([0.031])},
        breakdown={"engine": 0.9, "http": 0.1},
        outcomes={"finished": 64},
    )
    RolloutReport(
        ratio=0.93,
        ended_early=None,
        started=datetime.now(UTC),
        seconds=1.0,
        machine=describe().model_copy(update={"pinned": True}),
        model="tiny",
        engine="vllm",
        engine_description={"device": "cpu"},
        packages={},
        options={"env": "echo"},
        rounds=3,
        cells=[cell],
        timeline=[],
    ).write(path)


def test_every_part_is_shown(tmp_path: Path) -> None:
    server, sandboxes, _, clients, _, rollout = BENCHMARKS
    existing = RESULTS / "server-2026-11-21.json"
    of_clients = RESULTS / "clients-2026-11-21.json"
    prepared = tmp_path / "prepared.json"
    rollout_report(prepared)

    def copying(source: Path, name: str) -> list[str]:
        return [
            sys.executable,
            "-c",
            f"import shutil, sys; shutil.copy({str(source)!r}, sys.argv[2] + '/{name}.json')",
        ]

    parts = [
        Benchmark("server", server.title, lambda: copying(existing, "server-1"), server.show),
        Benchmark(
            "sandboxes", sandboxes.title, lambda: [sys.executable, "-c", "import sys; sys.exit(3)"], sandboxes.show
        ),
        Benchmark("rollout", rollout.title, lambda: copying(prepared, "rollout-echo-1"), rollout.show),
        Benchmark("clients", clients.title, lambda: copying(of_clients, "clients-1"), clients.show),
        Benchmark("other", "Other", lambda: "there is no such program here", rollout.show),
    ]
    folder = tmp_path / "bench"
    folder.mkdir()
    (folder / "rollout-echo-1-breakdown.png").write_bytes(b"")
    written = page(run(parts, folder, Console(quiet=True)))
    assert "| CPU per /call, 32 sessions, µs | ≤ 80.0" in written
    assert "| ors-server | ors-sdk |" in written
    assert "**Ratio 0.930** (budget ≥ 0.90)" in written
    assert "| ors-server | ors_clients | 64 | 900 |  | 0.930 | 3.1% | engine 90%, HTTP 10% |" in written
    assert "![rollout-echo-1-breakdown](rollout-echo-1-breakdown.png)" in written
    assert "[server-1.json](server-1.json)" in written
    assert "it ended with 3" in written
    assert "| CPU per call, 64 sessions, µs |  |" in written
    assert "**Failed or not run:** there is no such program here" in written


#: Starts a child that outlives it unless the child is ended, too, and records a request to stop.
HANGS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[2], "child").write_text(str(child.pid))
while {hangs}:
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pathlib.Path(sys.argv[2], "asked").touch()
"""


@pytest.mark.parametrize("hangs", [True, False])
def test_a_part_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    monkeypatch.setattr(summary, "LIMIT", 1.5 if hangs else 60.0)
    monkeypatch.setattr(summary, "GRACE", 0.5)
    part = Benchmark(
        "server", "Server", lambda: [sys.executable, "-S", "-c", HANGS.format(hangs=hangs)], BENCHMARKS[0].show
    )
    [outcome] = run([part], tmp_path, Console(quiet=True))
    assert outcome.results is None
    if hangs:
        assert outcome.problem is not None
        assert "not done after" in outcome.problem
        # It was asked for its results so far.
        assert (tmp_path / "asked").exists()
    else:
        assert outcome.problem is None
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 20
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(child)


def test_without_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_ROOT", tmp_path)
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    assert "a checkout has" in str(vllm_python())
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "vllm-venv").write_text("import sys; sys.exit(1)")
    assert "cannot be made" in str(vllm_python())
    (tmp_path / "scripts" / "vllm-venv").write_text("print('/python')")
    assert list(vllm_python())[:3] == ["/python", "-m", "ors_benchmarks.rollout"]


def test_make_bench_runs_the_summary() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    told = subprocess.run(["make", "--dry-run", "bench"], cwd=RESULTS.parents[1], capture_output=True, text=True)
    assert "-m ors_benchmarks.summary" in told.stdout
