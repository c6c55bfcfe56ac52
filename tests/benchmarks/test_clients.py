"""The benchmark of the clients as a command: a small run of ours, and its failures."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ors_cli
import pytest
from ors_benchmarks.clients import command as clients

from tests.benchmarks.bench import ended, only_report


def bench(*arguments: str | Path) -> int:
    return ended(clients.main, *arguments)


@pytest.mark.long
def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = os.sched_getaffinity(0)
    names = "ours,ours-sync"
    code = bench(
        "--candidates", names, "--rounds", "1", "--seconds", "0.2", "--rows", "start,some", "--output", tmp_path
    )
    shown = capsys.readouterr().out
    assert code == 0, shown
    assert os.sched_getaffinity(0) == allowed
    for part in ("CPU per call, 64 sessions", "ors-clients, sync", "written: "):
        assert part in shown
    text = next(tmp_path.glob("*.json")).read_text()
    assert os.uname().nodename not in text
    assert str(Path.home()) not in text
    report = only_report(tmp_path)
    assert report.failures == {}
    measured = {figure.key for figure in clients.FIGURES if figure.row in ("start", "some")}
    assert measured <= set(report.figures)
    for key in measured:
        assert set(report.figures[key]) == {"ours", "ours-sync"}
        assert all(summary.median > 0 for summary in report.figures[key].values())


@pytest.mark.long
def test_a_wrong_answer_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text('print(\'{"figures": {"cpu_1": 1.0}, "failures": {"a wrong answer": 3}}\')')
    monkeypatch.setattr(clients, "_DRIVER", driver)
    arguments = ("--candidates", "ours", "--rounds", "1", "--rows", "one")
    assert bench(*arguments, "--output", tmp_path / "wrong") == 1
    assert "failed 3 times: one: a wrong answer" in capsys.readouterr().out
    assert only_report(tmp_path / "wrong").figures == {}
    driver.write_text("raise SystemExit('no such package')")
    assert bench(*arguments, "--output", tmp_path / "none") == 1
    assert "no such package" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--candidates", "theirs"], ["--rows", "all"], ["--rounds", "0"]])
def test_invalid_options(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*option) == 2
    assert option[0] in capsys.readouterr().err


def test_it_is_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ors-server", "bench", "clients", "--help"])
    with pytest.raises(SystemExit) as end:
        ors_cli.main()
    assert end.value.code == 0
    assert "Usage: ors-server bench clients" in capsys.readouterr().out
