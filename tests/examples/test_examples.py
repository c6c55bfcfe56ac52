"""The programs of ``examples/`` run as their README says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ors_server.sandboxes import sandboxes_unavailable
from tests.support.paths import ROOT
from tests.support.servers import served

EXAMPLES = ROOT / "examples"


def output_of(program: str, *arguments: str) -> list[str]:
    """Run an example and return the lines that it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    command = [sys.executable, EXAMPLES / program, *arguments]
    ran = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_every_example_is_in_the_readme_and_tested() -> None:
    programs = {path.name for path in EXAMPLES.glob("*.py")}
    readme, tests = (EXAMPLES / "README.md").read_text("utf-8"), Path(__file__).read_text("utf-8")
    assert programs
    assert all(f"`{name}" in readme and f'"{name}"' in tests for name in programs)


def test_an_environment_without_a_server() -> None:
    lines = output_of("guess_number.py")
    assert lines[-2:] == ["64 Right after 7 guesses.", f"reward {1 / 7}"]


def test_an_environment_and_an_episode_over_http(tmp_path: Path) -> None:
    with served(tmp_path, "echo", EXAMPLES / "guess_number.py") as url:
        lines = output_of("play_episode.py", url)
    assert lines[-2:] == ["answer: match", "reward: 1.0 finished: True"]


def test_a_sandbox_without_a_server() -> None:
    if reason := asyncio.run(sandboxes_unavailable()):
        pytest.skip(reason)
    lines = output_of("run_in_sandbox.py")
    assert "agent in /tmp as user" in lines
    assert "timed out: True status: 124" in lines
    assert "[b'1', b'2', b'3']" in lines


def test_a_scripted_rollout() -> None:
    lines = output_of("scripted_rollout.py")
    assert [line.split()[0] for line in lines[:4]] == ["prompt", "model", "tool", "model"]
    assert lines[-3:] == ["stopped: finished", "tokens in the loss: 158 of 237", "reward: 0.5"]
