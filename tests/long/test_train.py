"""`ors-server train --tiny` as a user runs it: real servers, sandboxes and TRL; killed, and with a full disk."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.long.train_command import Train, train_in
from tests.support.virtualenvs import made_by

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the Python that has TRL. The first run of a machine downloads it."""
    return made_by("trl-venv")


@pytest.fixture
def train(python: Path, tmp_path: Path) -> Train:
    return train_in(tmp_path, python)


def check_report(report: dict[str, Any], *, from_below: float, to_above: float) -> None:
    """Check what a run that went well reports, and that the report's numbers are of each other."""
    rates = report["pass_rates"]
    before, after = rates["before-sampled"]["all"], rates["after-sampled"]["all"]
    assert before < from_below
    assert after > to_above
    assert report["verdict"] == "The model got better."
    low, high = report["difference"]["interval"]
    assert 0 < low <= report["difference"]["difference"] <= high
    assert report["difference"]["difference"] == pytest.approx(after - before)
    assert report["difference"]["p"] < 0.05
    assert report["oracle"] == 1.0
    assert report["constant"] < 0.05
    assert report["tasks"]["held_out"] >= 200
    assert report["failed"] == []
    steps = report["recipe"]["steps"]
    assert [point["step"] for point in report["curve"]] == list(range(1, steps + 1))
    for found in rates.values():
        assert min(found["kinds"].values()) <= round(found["all"], 4) <= max(found["kinds"].values())


@pytest.mark.parametrize("target", ["echo", "terminal"])
def test_a_tiny_model_learns(train: Train, tmp_path: Path, target: str) -> None:
    report = tmp_path / "report.json"
    assert train(target, "--tiny", "--run", "one", "--json", str(report)).wait(3600) == 0, output(tmp_path)
    check_report(json.loads(report.read_text()), from_below=0.4, to_above=0.7)
    said = output(tmp_path)
    assert "The model got better." in said
    assert "/ui/run?run=one" in said
    assert (tmp_path / "data" / "trainings" / "one" / "model" / "model.safetensors").is_file()


def test_a_run_goes_on_after_each_kill(train: Train, tmp_path: Path) -> None:
    """It is killed with SIGKILL in each of its stages; in the end it has every step once."""
    run = tmp_path / "data" / "trainings" / "one"
    marks = ["plan.json", "demonstrations.json", "warm.json", "checkpoints/checkpoint-10", "training.json"]
    begin = ("echo", "--tiny", "--run", "one")
    for mark in marks:
        process = train(*begin)
        deadline = time.monotonic() + 1800
        while not (run / mark).exists():
            assert process.poll() is None, output(tmp_path)
            assert time.monotonic() < deadline, output(tmp_path)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        begin = ("--resume", "one")
    report = tmp_path / "report.json"
    assert train("--resume", "one", "--json", str(report)).wait(1800) == 0, output(tmp_path)
    check_report(json.loads(report.read_text()), from_below=0.4, to_above=0.7)


def test_a_checkpoint_that_cannot_be_written_is_said_and_the_run_goes_on(train: Train, tmp_path: Path) -> None:
    """A file in the place of the checkpoint's folder stands for the full disk."""
    in_the_way = tmp_path / "data" / "trainings" / "one" / "checkpoints" / "checkpoint-10"
    process = train("echo", "--tiny", "--run", "one")
    while "step   1 of" not in output(tmp_path):
        assert process.poll() is None, output(tmp_path)
        time.sleep(0.1)
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("in the way")
    assert process.wait(1800) == 2
    assert f"{in_the_way.parent} cannot be written" in output(tmp_path)
    assert "--resume" in output(tmp_path)
    in_the_way.unlink()
    assert train("--resume", "one").wait(1800) == 0, output(tmp_path)


def output(folder: Path) -> str:
    return (folder / "output").read_text()
