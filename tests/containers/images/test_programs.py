"""Programs of the machine that fetch images: their output, line by line, however it arrives."""

from __future__ import annotations

import sys

import pytest
from ors_containers import BuildFailed
from ors_containers.images.programs import run_program

_PROBLEM = "it cannot be fetched"


def _printing(expression: str, status: int = 0) -> list[str]:
    """Return the command of a program that writes an expression's bytes in one go."""
    return [sys.executable, "-c", f"import os, sys; os.write(1, {expression}); sys.exit({status})"]


async def test_lines_are_whole_wherever_a_read_ends() -> None:
    """A line that crossed two reads was reported as two, and a letter there as two replacement characters."""
    lines: list[str] = []
    command = [sys.executable, "-c", "print('\\n'.join(f'{n} ' + 'é' * 37 for n in range(5000)), end='')"]
    await run_program(command, _PROBLEM, on_line=lines.append)
    assert lines == [f"{number} {'é' * 37}" for number in range(5000)]


async def test_a_progress_bar_is_its_last_state() -> None:
    lines: list[str] = []
    await run_program(
        _printing(r"b'begin\n10 %\r55 %\r100 %\r\nform\x0cfeed\xe2\x80\xa8\n\nend'"), _PROBLEM, on_line=lines.append
    )
    assert lines == ["begin", "100 %", "form\x0cfeed\u2028", "", "end"]


async def test_an_error_has_the_last_lines_whole() -> None:
    command = [sys.executable, "-c", "import sys; print('x' * 40_000); print('reason ' + 'é' * 20_000); sys.exit(3)"]
    with pytest.raises(BuildFailed, match="ended with 3") as failed:
        await run_program(command, _PROBLEM)
    assert failed.value.output.splitlines()[-1] == "reason " + "é" * 20_000
