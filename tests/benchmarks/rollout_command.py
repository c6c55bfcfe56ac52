"""The rollout benchmark as tests run it: in this process, against an engine in wire format."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_benchmarks.rollout import command as rollout
from ors_benchmarks.rollout.report import RolloutReport

from tests.benchmarks.engine_stand_in import EngineStandIn

__all__ = ["at", "bench", "run_bench"]


def at(engine: EngineStandIn, concurrency: int = 2, episodes: int = 4) -> list[str]:
    """Arguments of a small run with an engine, without charts."""
    return [
        *("--engine", "url", "--engine-url", engine.url, "--turns", "2", "--concurrency", str(concurrency)),
        *("--episodes", str(episodes), "--no-charts"),
    ]


def run_bench(folder: Path, *arguments: str) -> int:
    """The exit code of ``ors-server bench rollout``, run here: one round, without a warm-up unless asked for."""
    with pytest.raises(SystemExit) as end:
        rollout.main(["--rounds", "1", "--warm-up", "0", *arguments, "--output", str(folder)])
    assert isinstance(end.value.code, int)
    return end.value.code


def bench(folder: Path, *arguments: str) -> tuple[int, RolloutReport]:
    """Its exit code, and its report."""
    code = run_bench(folder, *arguments)
    [path] = folder.glob("*.json")
    return code, RolloutReport.model_validate_json(path.read_text())
