"""A benchmark run as a command, and the report that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ors_benchmarks.harness.commands import Program
from ors_benchmarks.harness.reports.results import Report

__all__ = ["ended", "only_report"]


def ended(program: Program, *arguments: str | Path) -> int:
    """Run a benchmark. Return the exit code."""
    with pytest.raises(SystemExit) as end:
        program([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def only_report(folder: Path) -> Report:
    """Return the one report of a folder."""
    [path] = folder.glob("*.json")
    return Report.model_validate_json(path.read_text())
