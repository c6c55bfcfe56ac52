"""The same episode by hand: a sandbox of the plain tools, commands, and tests called by a line of shell.

The tests run in the Python that our graders have, without any protection from the agent.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ors_containers.graders.portable_python import AT, python_toolset

from ors_benchmarks.harness.checks import WrongAnswer
from ors_benchmarks.sandboxes.by_hand import BubblewrapByHand, ByHand, PodmanExec
from ors_benchmarks.sandboxes.candidates import Box
from ors_benchmarks.terminal.candidates import Candidate, Stage, check_verdict
from ors_benchmarks.terminal.task import COMMANDS, SOLUTION, SOLVED, fill

__all__ = ["EpisodesByHand", "by_hand"]

_PYTHON = f"{AT}/bin/python3 -I -S -B"
_PLAIN = f"{_PYTHON} /tests/plain.py"
_PYTEST = (
    f'{_PYTHON} -c \'import sys; sys.path.insert(0, "{AT}/packages"); import pytest; '
    'sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "/tests/test_final_state.py"]))\''
)


class EpisodesByHand(Candidate):
    """Episodes in sandboxes by hand."""

    def __init__(self, name: str, title: str, sandboxes: ByHand, tests: str, *, fewer: int = 1) -> None:
        self.name = name
        self.title = title
        self.fewer = fewer
        self.few = self.beside = isinstance(sandboxes, PodmanExec)
        self._sandboxes = sandboxes
        self._tests = f"{tests} > /dev/null 2>&1; echo $?"

    @asynccontextmanager
    async def open(self, folder: Path) -> AsyncGenerator[None]:
        """Put the task's files into the root of all sandboxes, and bind the tests and their Python into each."""
        toolset = await python_toolset(folder.parent / "toolsets")
        tests = folder / "tests"
        tests.mkdir()
        async with self._sandboxes.open():
            self._sandboxes.add_binds(toolset.bind, (tests, "/tests"))
            fill(self._sandboxes.layer, tests)
            await self.play(True, Stage.GRADED)
            yield

    async def play(self, solved: bool, stage: Stage) -> float:
        """Play one episode in a sandbox of its own."""
        begun = time.perf_counter()
        box = await self._sandboxes.start()
        waited = time.perf_counter() - begun
        try:
            if stage >= Stage.COMMANDED:
                for command, line in (*COMMANDS, *([(SOLUTION, SOLVED)] if solved else [])):
                    await _check(box, command, line)
            if stage is Stage.GRADED:
                check_verdict(await box.run(self._tests) == b"0\n", solved)
        finally:
            await box.stop()
        return waited

    def version(self) -> Mapping[str, str]:
        """Return the version of the program that starts the sandboxes."""
        return {self._sandboxes.program: self._sandboxes.version()}


async def _check(box: Box, command: str, line: str) -> None:
    answer = await box.run(command)
    if answer != f"{line}\n".encode():
        raise WrongAnswer(f"a command answered {answer[:60]!r}")


def by_hand() -> list[Candidate]:
    """Return the floor, with tests called plainly and by pytest, and podman."""
    return [
        EpisodesByHand("plain", "by hand", BubblewrapByHand(), _PLAIN),
        EpisodesByHand("pytest", "by hand, pytest", BubblewrapByHand(), _PYTEST),
        EpisodesByHand("podman", "podman exec, pytest", PodmanExec(), _PYTEST, fewer=4),
    ]
