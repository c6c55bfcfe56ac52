"""The rollout benchmark in this process, against an engine that has only the wire format."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_benchmarks.rollout import command as rollout
from ors_benchmarks.rollout.reports.report import RolloutReport

from tests.benchmarks.engine_stand_in import EngineStandIn

__all__ = ["at", "bench", "run_bench"]


def at(engine: EngineStandIn, concurrency: int = 2, episodes: int = 4) -> list[str]:
    """Return arguments of a small run with an engine, without charts."""
    return [
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", str(concurrency)),
        *("--episodes", str(episodes), "--no-charts"),
    ]


def run_bench(folder: Path, *arguments: str) -> int:
    """Run ``ors-server bench rollout``: one round, by default without a warm-up. Return the exit code."""
    with pytest.raises(SystemExit) as end:
        rollout.main(["--rounds", "1", "--warm-up", "0", *arguments, "--output", str(folder)])
    assert isinstance(end.value.code, int)
    return end.value.code


def bench(folder: Path, *arguments: str) -> tuple[int, RolloutReport]:
    """Run the benchmark. Return its exit code and its report."""
    code = run_bench(folder, *arguments)
    [path] = folder.glob("*.json")
    return code, RolloutReport.model_validate_json(path.read_text())
