"""``scripts/*-venv`` are the first commands on a machine: a Python without any package runs them."""

from __future__ import annotations

import pytest

from tests.support.virtualenvs import SCRIPTS, run_bare


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_bare_python_runs_them(script: str) -> None:
    """They imported a package that asks for the installed version of this project."""
    done = run_bare(script, "--help")
    assert done.returncode == 0, done.stderr
    assert f"scripts/{script} " in done.stdout


def test_all_are_tried() -> None:
    assert {"openreward-venv", "trainers-venv", "trl-venv", "upstream-venv", "vllm-venv"} <= set(SCRIPTS)
