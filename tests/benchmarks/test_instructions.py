"""Counting of a server's instructions, where the machine allows it."""

from __future__ import annotations

import os

import pytest
from ors_benchmarks.harness.instructions import counting, rate_of


@pytest.mark.parametrize(
    ("output", "rate"),
    [
        ("3000000;;instructions;1;100.00;1.5;insn per cycle\n2.00;msec;task-clock;2;100.00;0.9;CPUs utilized\n", 1.5e9),
        ("3000000;;instructions:u;1000000;100.00;;\n2.00;msec;task-clock;2000000;100.00;;\n", 1.5e9),
        ("<not supported>;;instructions;0;100.00;;\n2.00;msec;task-clock;2000000;100.00;;\n", None),
        ("<not counted>;;instructions;0;0.00;;\n<not counted>;msec;task-clock;0;0.00;;\n", None),
        ("Error: No permission\n", None),
        ("", None),
    ],
)  # fmt: skip
def test_what_perf_writes(output: str, rate: float | None) -> None:
    assert rate_of(output) == rate


def test_a_machine_without_perf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with counting(os.getpid()) as counted:
        pass
    assert counted.rate is None


def test_a_process_that_has_ended() -> None:
    with counting(2**22 + 1) as counted:  # above the greatest possible id
        pass
    assert counted.rate is None
