"""Reports of measurements, with their table and their file."""

from __future__ import annotations

import io
import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ors_benchmarks.harness.machine import Machine
from ors_benchmarks.harness.reports.figures import Measured
from ors_benchmarks.harness.reports.results import Gathered, Report, Summary, free_path
from ors_benchmarks.harness.reports.table import met, shown
from ors_benchmarks.server.command import BENCHMARK, CANDIDATES
from ors_benchmarks.server.rows import FIGURES, ROWS
from rich.console import Console

FIGURES_BY_KEY = {figure.key: figure for figure in FIGURES}


def gather() -> Gathered:
    return Gathered(FIGURES)


def report_of(gathered: Gathered) -> Report:
    return Report(
        started=datetime(2026, 1, 2, tzinfo=UTC),
        seconds=1.5,
        rounds=3,
        window_seconds=3.0,
        rows=["calls"],
        machine=Machine(
            cpu="A CPU", cores=2, memory_gib=8, kernel="Linux 6", python="3.11", pinned=True, others=0.25, stolen=0.01
        ),
        titles={candidate.name: candidate.title for candidate in CANDIDATES[:4]},
        packages={"ours": {"uvicorn": "1"}},
        figures=gathered.figures(),
        curves=gathered.curves(),
        failures={name: dict(failures) for name, failures in gathered.failures.items()},
        notes=dict(gathered.notes),
    )


def measured(gathered: Gathered, **values: list[float]) -> None:
    """CPU per call by candidate, round after round."""
    for found in zip(*values.values(), strict=True):
        for name, value in zip(values, found, strict=True):
            gathered.add(name.replace("_", "-"), "calls", Measured({"call_cpu": value}), {})
        gathered.end_round()


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=150)
    BENCHMARK.show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_medians_and_spreads() -> None:
    assert Summary.of([3.0, 1.0, 2.0]).model_dump() == {"median": 2, "low": 1, "high": 3, "values": [3, 1, 2]}


def test_ratios_are_of_the_same_round() -> None:
    gathered = gather()
    # A machine that slows down to half its speed: every round has the same ratio, so the spread is zero.
    measured(gathered, ours=[50, 100, 100], ors_sdk=[600, 1200, 1200])
    ratio = gathered.figures()["call_cpu_gain_ors-sdk"]["ours"]
    assert (ratio.low, ratio.median, ratio.high) == (12, 12, 12)


def test_a_round_that_failed_shifts_no_ratio() -> None:
    gathered = gather()
    gathered.add("ours", "calls", Measured({"call_cpu": 50.0}), {})
    gathered.add("ors-sdk", "calls", Measured(), {"call: status 500": 1})
    gathered.end_round()
    measured(gathered, ours=[100], ors_sdk=[1200])
    assert gathered.figures()["call_cpu_gain_ors-sdk"]["ours"].values == [12]


def test_figures_of_a_measurement_with_failures_do_not_count() -> None:
    gathered = gather()
    measured(gathered, ours=[50])
    gathered.add("ours", "calls", Measured({"call_cpu": 1.0}, {"c": [(1, 1)]}), {"call: another text": 3})
    assert gathered.figures()["call_cpu"]["ours"].values == [50]
    assert gathered.curves() == {}
    assert gathered.failures["ours"] == {"calls: call: another text": 3}


def test_curves() -> None:
    gathered = gather()
    for shift in (0, 4, 1):
        gathered.add("ours", "latency", Measured(curves={"latency_p50": [(1, 5 + shift), (8, 9)]}), {})
    first, second = gathered.curves()["latency_p50"]["ours"]
    assert (first.x, first.low, first.median, first.high) == (1, 5, 6, 9)
    assert (second.x, second.median) == (8, 9)


@pytest.mark.parametrize(
    ("key", "values", "kept"),
    [
        ("call_cpu", [79, 80, 200], True),
        ("call_cpu", [70, 81, 81], False),
        ("call_cpu_gain_ors-sdk", [5, 11, 12], True),
        ("call_cpu_gain_ors-sdk", [10.9], False),
        ("collector_pause", [1, 1, 19], True),
        ("collector_pause", [1, 1, 21], False),
        ("live_sessions", [16384, 16384], True),
        ("live_sessions", [16384, 8192, 16384], False),
    ],
)
def test_budgets(key: str, values: list[float], kept: bool) -> None:
    assert met(FIGURES_BY_KEY[key], Summary.of(values)) is kept


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_numbers(value: float, text: str) -> None:
    assert shown(value) == text


def test_every_figure_has_a_row_and_every_name_is_its_own() -> None:
    names = [row.name for row in ROWS]
    assert {figure.row for figure in FIGURES} <= {*names, "all"}
    for keys in (names, [figure.key for figure in FIGURES], [candidate.name for candidate in CANDIDATES]):
        assert len(set(keys)) == len(keys)
    groups = [row for row, _ in itertools.groupby(figure.row for figure in FIGURES)]
    assert len(set(groups)) == len(groups)  # the table shows a row's figures together


def test_the_table() -> None:
    gathered = gather()
    measured(gathered, ours=[60, 70, 75], ors_sdk=[840, 840, 840], floor=[20, 20, 20])
    gathered.add("openreward", "calls", Measured(), {"call: status 500": 7})
    gathered.add("ors-sdk", "sessions", Measured(notes=["create: status 503"]), {})
    text = printed(report_of(gathered))
    for expected in (
        "CPU per /call, 32 sessions, µs",
        "≤ 80.0 ✓",
        "(60.0–75.0)",
        "3.50× floor",
        "12.0× ours, 42.0× floor",
        "0.286× ours",
        "failed",
        "openreward failed 7 times: calls: call: status 500",
        "ors-sdk: create: status 503",
        "A CPU, 2 cores",
        "others used 25%",
        "The machine was busy",
    ):
        assert expected in text
    assert "memory per idle session" not in text  # nothing was measured


def test_the_file() -> None:
    gathered = gather()
    measured(gathered, ours=[60, 70, 75])
    report = report_of(gathered)
    assert Report.model_validate_json(report.model_dump_json()) == report


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    for name in ("server-2026-01-02", "server-2026-01-02-2", "server-2026-01-02-3"):
        path = free_path(tmp_path, "server-2026-01-02")
        assert path == tmp_path / f"{name}.json"
        report_of(gather()).write(path)


@pytest.mark.parametrize(
    ("floor", "cell"),
    [
        (23.0, "≤ 80.0 ✗"),  # the machine of the budgets: no allowance
        (46.0, "≤ 160 here ✗"),
        (69.0, "≤ 240 here ✓"),
    ],
)
def test_a_budget_of_processor_time_on_a_slower_machine(floor: float, cell: str) -> None:
    gathered = gather()
    measured(gathered, ours=[170], floor=[floor])
    text = printed(report_of(gathered))
    assert "≤ 80.0 ✗" in text
    assert cell in text
    assert ("here" in text) is (floor > 23)


def test_a_budget_that_is_no_processor_time_is_the_same_everywhere() -> None:
    gathered = gather()
    measured(gathered, floor=[69.0])
    gathered.add("ours", "blocking", Measured({"block_wall": 1.5}), {})
    assert "here" not in printed(report_of(gathered)).split("Median of")[0]
