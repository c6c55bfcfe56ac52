"""The benchmark of several workers as a command: a small run, its quotients, and its failures."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import ors_cli
import pytest
from ors_benchmarks.harness.client import Client
from ors_benchmarks.harness.reports.figures import Measured, Quotient
from ors_benchmarks.harness.reports.results import Gathered
from ors_benchmarks.scale.candidates import CANDIDATES, Candidate
from ors_benchmarks.scale.command import BENCHMARK, main
from ors_benchmarks.scale.rows import FIGURES, ROWS

from tests.benchmarks.bench import ended, only_report


def bench(*arguments: str | Path) -> int:
    return ended(main, *arguments)


def candidate(name: str) -> Candidate:
    [found] = [each for each in CANDIDATES if each.name == name]
    return found


@pytest.mark.long
def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = os.sched_getaffinity(0)
    code = bench(
        "--quick", "--seconds", "0.2", "--rows", "calls,output,killed", "--candidates", "gateway,direct,floor",
        "--output", tmp_path,
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert os.sched_getaffinity(0) == allowed
    for part in ("gateway or proxy ÷ bare uvicorn", "one worker", "≤ 0.700", "written: "):
        assert part in shown
    text = next(tmp_path.glob("*.json")).read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text
    report = only_report(tmp_path)
    assert report.failures == {}
    figures = {key: {name: found.median for name, found in each.items()} for key, each in report.figures.items()}
    assert set(figures["call_worker"]) == {"gateway", "direct", "floor"}
    assert 1 < figures["call_front"]["gateway"] < 5000
    ratio = figures["call_front"]["gateway"] / figures["call_worker"]["floor"]
    assert figures["front_floor"] == {"gateway": pytest.approx(ratio)}
    assert figures["output_front_worker"]["gateway"] > 0
    assert 0 < figures["killed"]["gateway"] < 10_000
    assert "front_nginx" not in figures


@pytest.mark.long
def test_the_short_form_with_all_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = bench("--quick", "--output", tmp_path)
    assert code == 0, capsys.readouterr().out
    report = only_report(tmp_path)
    present = {each.name for each in CANDIDATES if each.here}
    assert set(report.figures["call_worker"]) == present
    assert report.figures["fullest"]["gateway"].median < 1.1
    assert report.figures["stopped"]["gateway"].median < 20
    expected = {figure.key for figure in FIGURES} - {"p50_64_direct"}
    if {"nginx", "haproxy"} <= present:
        assert expected <= set(report.figures)


@pytest.mark.long
def test_a_wrong_answer_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Bare uvicorn returns 200 for everything, and always the same response: as a server it is wrong.
    liar = replace(candidate("floor"), name="direct", client=Client)
    monkeypatch.setattr(BENCHMARK, "candidates", (liar,))
    code = bench("--quick", "--seconds", "0.5", "--rows", "calls,one", "--candidates", "direct", "--output", tmp_path)
    assert code == 1
    assert "failed" in capsys.readouterr().out
    report = only_report(tmp_path)
    assert list(report.failures) == ["direct"]
    assert report.figures == {}


def test_a_proxy_that_is_not_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = replace(candidate("nginx"), program="no-such-proxy")
    monkeypatch.setattr(BENCHMARK, "candidates", (missing, candidate("floor")))
    code = bench("--quick", "--seconds", "0.5", "--rows", "calls", "--candidates", "nginx,floor", "--output", tmp_path)
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert "not measured: no-such-proxy is not installed" in shown
    assert list(only_report(tmp_path).figures["call_worker"]) == ["floor"]


def test_quotients_are_within_a_round() -> None:
    gathered = Gathered(FIGURES)
    measured = {
        "gateway": {"call_front": 30.0, "call_worker": 90.0, "p50_1": 1.5},
        "nginx": {"call_front": 20.0},
        "direct": {"call_worker": 100.0, "p50_1": 1.0},
        "floor": {"call_worker": 40.0},
    }
    for name, figures in measured.items():
        gathered.add(name, "calls", Measured(figures), {})
    gathered.end_round()
    quotients = {figure.key for figure in FIGURES if isinstance(figure, Quotient)}
    found = {key: {name: each.values for name, each in of.items()} for key, of in gathered.figures().items()}
    assert {key: values for key, values in found.items() if key in quotients} == {
        "front_floor": {"gateway": [0.75], "nginx": [0.5]},
        "front_nginx": {"gateway": [1.5]},
        "worker_direct": {"gateway": [0.9]},
        "added_1": {"gateway": [0.5]},
    }


def test_rows_and_figures_name_each_other() -> None:
    names = {each.name for each in CANDIDATES}
    assert {figure.row for figure in FIGURES} == {row.name for row in ROWS}
    for row in ROWS:
        assert set(row.candidates) <= names


@pytest.mark.parametrize("option", [["--candidates", "theirs"], ["--rows", "all"], ["--rounds", "0"]])
def test_invalid_options(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*option) == 2
    assert option[0] in capsys.readouterr().err


def test_it_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ors-server", "bench", "scale", "--help"])
    with pytest.raises(SystemExit) as end:
        ors_cli.main()
    assert end.value.code == 0
    assert "Usage: ors-server bench scale" in capsys.readouterr().out
