"""Record of the programs that tests start, and of the agent's places among their arguments.

``ors-server tasks verify`` asks for it: a program that reads a place of the agent does what the agent left there tells
it to, as far as the program can be told. Nothing is recorded when an episode is graded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["Programs"]

#: Rows of a record, and characters of a word, at most: the grader keeps 64 KiB of the output.
_MOST_ROWS = 80
_LONGEST = 120
#: Position of the working directory in the arguments of ``fork_exec``.
_FOLDER = 4


class Programs:
    """The programs of one run, by test."""

    def __init__(self, scratch: str, is_trusted_folder: Callable[[str], bool]) -> None:
        self._scratch = scratch
        self._is_trusted_folder = is_trusted_folder
        self._rows: dict[tuple[str, str, tuple[str, ...]], None] = {}
        #: The name of the test that runs; empty while the module is imported.
        self.test = ""

    def started(self, arguments: tuple[Any, ...]) -> None:
        """Record a program that is started with these arguments of ``fork_exec``."""
        words = [os.fsdecode(word) for word in arguments[0]]
        named = os.fsdecode(arguments[_FOLDER]) if arguments[_FOLDER] is not None else ""
        folder = named or "."
        places = {named} if named and self._is_agents(named) else set[str]()
        pieces = {piece.strip("'\"<>;|&()") for word in words[1:] for piece in (word, *word.split())}
        for piece in filter(None, pieces):
            path = os.path.expanduser(piece) if piece.startswith(("/", "~")) else f"{folder}/{piece}"  # noqa: PTH111 - pathlib is one import more
            if "\0" not in path and os.path.lexists(path) and self._is_agents(path):
                places.add(piece)
        row = (self.test[:_LONGEST], words[0][:_LONGEST], tuple(sorted(place[:_LONGEST] for place in places)))
        if len(self._rows) < _MOST_ROWS:
            self._rows[row] = None

    def rows(self) -> list[list[Any]]:
        """Return test, program and places of each program that was given a place of the agent."""
        return [[test, program, list(places)] for test, program, places in self._rows if places]

    def _is_agents(self, path: str) -> bool:
        real = os.path.realpath(path)
        if f"{real}/".startswith((f"{self._scratch}/", "/proc/", "/dev/")) and not real.startswith("/dev/shm/"):  # noqa: S108 - of the sandbox
            return False
        return not (self._is_trusted_folder(real) and self._is_trusted_folder(os.path.dirname(real)))  # noqa: PTH120 - as above
