"""The benchmark of the server as a command: a small run of ours and the floor, and its failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ors_benchmarks.harness.candidates import OURS
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.runs import turns
from ors_benchmarks.server import scenarios
from ors_benchmarks.server.closed_loop import Subject
from ors_benchmarks.server.command import BENCHMARK, CANDIDATES, main
from ors_benchmarks.server.floor import FLOOR
from ors_benchmarks.server.observed import OBSERVED, UNOBSERVED, arguments_of
from ors_benchmarks.server.rows import ServerRow
from ors_benchmarks.server.runner import applies

from tests.benchmarks.bench import ended, only_report


def bench(*arguments: str | Path) -> int:
    return ended(main, *arguments)


async def few_calls_at_once(subject: Subject) -> Measured:
    return await scenarios.latency(subject, (1, 16))


async def few_sessions(subject: Subject) -> Measured:
    return await scenarios.live_sessions(subject, (16, 64))


async def few_connections(subject: Subject) -> Measured:
    return await scenarios.connections(subject, (4, 16))


async def few_slow_tools(subject: Subject) -> Measured:
    return await scenarios.slow_tools(subject, 20, 0.2)


async def few_blocking_tools(subject: Subject) -> Measured:
    return await scenarios.blocking_tools(subject, 20, 0.2)


SMALL_ROWS = (
    ServerRow("calls", "calls", scenarios.calls, floor=True),
    ServerRow("connections", "connections", few_connections, floor=True),
    ServerRow("episodes", "episodes", scenarios.episodes, floor=True),
    ServerRow("latency", "latency", few_calls_at_once, floor=True),
    ServerRow("output", "output", scenarios.large_output),
    ServerRow("setup", "setup", scenarios.set_up),
    ServerRow("slow", "slow", few_slow_tools),
    ServerRow("blocking", "blocking", few_blocking_tools, heavy=True),
    ServerRow("tasks", "tasks", scenarios.get_task, fresh=True),
    ServerRow("sessions", "sessions", few_sessions, fresh=True),
)


@pytest.mark.long
def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(BENCHMARK, "rows", SMALL_ROWS)
    allowed = os.sched_getaffinity(0)
    code = bench(
        "--candidates", "ours,floor", "--rounds", "1", "--seconds", "0.5", "--output", tmp_path, "--no-charts"
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert os.sched_getaffinity(0) == allowed
    for part in ("CPU per /call, 32 sessions", "ors-server", "bare uvicorn", "≤ 80.0", "written: "):
        assert part in shown
    assert list(tmp_path.glob("*.png")) == []
    text = next(tmp_path.glob("*.json")).read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text

    report = only_report(tmp_path)
    assert report.failures == {}
    assert report.rows == [row.name for row in SMALL_ROWS]
    figures = {key: {name: found.median for name, found in each.items()} for key, each in report.figures.items()}
    assert 1 < figures["call_cpu"]["floor"] < figures["call_cpu"]["ours"] < 5000
    assert figures["call_rate"]["ours"] > 10
    assert 0.1 < figures["connections_growth_floor"]["ours"] < 10
    assert figures["episode_cpu"]["ours"] > figures["episode_cpu"]["floor"]
    assert 0 < figures["call_p50_16"]["ours"] <= figures["call_p99_16"]["ours"] < 5000
    assert figures["ping_p99_16"]["ours"] > 0
    assert figures["live_sessions"]["ours"] == 64
    assert 0.2 <= figures["slow_wall"]["ours"] < 5
    assert 0.2 <= figures["block_wall"]["ours"] < 2  # one after another they would take 4 s
    assert 1 <= figures["setup_wall"]["ours"] < 10
    assert figures["task_cpu"]["ours"] > 0
    assert figures["output_cpu"]["ours"] > 0
    assert figures["collector_pause"]["ours"] >= 0
    assert [point.x for point in report.curves["latency_p99"]["floor"]] == [1, 16]
    assert [point.x for point in report.curves["memory"]["ours"]] == [0, 16, 64]
    assert report.packages["ours"]["uvicorn"]


@pytest.mark.long
def test_the_row_of_keys_metrics_and_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--candidates", "ours,unobserved,observed", "--rows", "observed", "--rounds", "2", "--seconds", "0.3"]
    assert bench(*options, "--output", tmp_path, "--no-charts") == 0
    assert "with them ÷ without" in capsys.readouterr().out
    report = only_report(tmp_path)
    assert report.failures == {}
    assert report.figures["observed_cpu"].keys() == {"unobserved", "observed"}
    assert 0.5 < report.figures["observed_cost"]["unobserved"].median < 5


def test_the_observed_server_wants_its_key_and_records(tmp_path: Path) -> None:
    settings = json.loads(arguments_of(OBSERVED, tmp_path)[1])
    assert (settings["record"], settings["metrics"], Path(settings["keys_file"]).exists()) == (True, True, True)
    assert arguments_of(OBSERVED, tmp_path) == ["--settings", json.dumps(settings)]
    assert arguments_of(OURS, tmp_path) == []


def test_candidates_take_turns_and_long_rows_are_measured_half_as_often() -> None:
    rows = [row for row in SMALL_ROWS if row.name in ("calls", "blocking")]
    order = [(number, row.name, candidate.name) for number, row, candidate in turns(3, rows, [OURS, FLOOR], applies)]
    assert order == [
        (1, "calls", "ours"),
        (1, "calls", "floor"),
        (1, "blocking", "ours"),
        (2, "calls", "ours"),
        (2, "calls", "floor"),
        (3, "calls", "ours"),
        (3, "calls", "floor"),
        (3, "blocking", "ours"),
    ]


def test_a_wrong_answer_fails_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The floor returns 200 for everything, and always the same response: as a server it is wrong.
    liar = replace(FLOOR, name="liar", title="liar")
    monkeypatch.setattr(BENCHMARK, "candidates", (FLOOR, liar))
    code = bench(
        "--candidates", "floor,liar", "--rows", "calls", "--rounds", "1", "--seconds", "0.5", "--output", tmp_path,
        "--no-charts",
    )  # fmt: skip
    assert code == 1
    assert "liar failed" in capsys.readouterr().out
    report = only_report(tmp_path)
    assert list(report.failures) == ["liar"]
    assert list(report.figures["call_cpu"]) == ["floor"]


@pytest.mark.long
def test_a_server_that_dies_fails_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def kill(subject: Subject) -> Measured:
        os.kill(subject.process.pid, 9)
        return await scenarios.calls(subject)

    monkeypatch.setattr(
        BENCHMARK, "rows", (ServerRow("kill", "kill", kill), ServerRow("output", "output", scenarios.large_output))
    )
    code = bench("--candidates", "ours", "--rounds", "1", "--seconds", "0.5", "--output", tmp_path, "--no-charts")
    assert code == 1, capsys.readouterr().out
    report = only_report(tmp_path)
    assert "kill: the server ended" in report.failures["ours"]
    assert "output_cpu" in report.figures  # the next row has a new process


@pytest.mark.parametrize(
    "arguments",
    [["--candidates", "ours,theirs"], ["--rows", "everything"], ["--rounds", "0"], ["--fast"]],
    ids=lambda arguments: arguments[0],
)
def test_invalid_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*arguments) == 2
    assert "Error" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [[str(Path(sys.executable).with_name("ors-server")), "bench", "server"], ["-m", "ors_benchmarks.server"]]
)
def test_both_ways_to_start_it(command: list[str]) -> None:
    program = command if len(command) == 3 else [sys.executable, *command]
    done = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True)
    assert ("Usage: ors-server bench server" if len(command) == 3 else "Usage: python") in done.stdout


@pytest.mark.long
def test_the_short_form_with_all_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Makes the virtual environments of both SDKs if they do not exist; then at most 90 s on a quiet machine."""
    code = bench("--quick", "--output", tmp_path)
    assert code == 0, capsys.readouterr().out
    report = only_report(tmp_path)
    others = {UNOBSERVED.name, OBSERVED.name}  # of a row of their own, which is not in the short form
    assert set(report.figures["call_cpu"]) == {candidate.name for candidate in CANDIDATES} - others
    assert report.figures["call_cpu_gain_ors-sdk"][OURS.name].median > 1
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".png", ".png"]
