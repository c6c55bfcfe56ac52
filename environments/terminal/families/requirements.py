"""Requirements of a prompt: each sentence with the tests that check it and the solutions that break only this sentence.

A ``Way`` is a whole solution of a task. A breach is a way that one sentence forbids: it names the final tests that
fail, and every other test passes. An honest way passes all of them. Ways lie in the package, which no sandbox sees, and
never in a task's files. ``tests/environments/terminal_families`` plays them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import GeneratedTask

__all__ = ["Requirement", "Way", "breach", "matching", "table", "words"]


@dataclass(frozen=True)
class Way:
    """One way to do a task: exactly one of ``after``, ``instead`` and ``swap`` is given.

    ``checks`` are the names of the final tests that fail, in words. ``*`` stands for anything (``* has the right
    lines``); of the tests that such a pattern matches, at least one fails.
    """

    what: str
    checks: tuple[str, ...] = ()
    #: Bash that runs in the project's folder after the oracle; ``$root`` is that folder.
    after: str = ""
    #: Bash that runs in /home/user instead of the oracle.
    instead: str = ""
    #: A passage of the oracle, and its replacement.
    swap: tuple[str, str] = ("", "")

    def script(self, oracle: str) -> str:
        """Return the Bash to run; ``after`` runs after the oracle. Raises ``ValueError`` for an invalid ``swap``."""
        old, new = self.swap
        if (bool(self.after), bool(self.instead), bool(old)).count(True) != 1:
            raise ValueError(f"{self.what!r} is not one of `after`, `instead` and `swap`")
        if old and (old not in oracle or old == new):
            raise ValueError(f"{self.what!r}: the oracle cannot be changed from {old!r} to {new!r}")
        return self.after or self.instead or oracle.replace(old, new)


def breach(what: str, *checks: str, after: str = "", instead: str = "", swap: tuple[str, str] = ("", "")) -> Way:
    """Return a false solution that fails exactly these final tests."""
    return Way(what, tuple(map(words, checks)), after, instead, swap)


@dataclass(frozen=True)
class Requirement:
    """A sentence of the prompt and the ways to break it."""

    sentence: str
    breaches: tuple[Way, ...]


def words(text: str) -> str:
    """Return a check's name as it appears in the name of its test; ``*`` is kept."""
    return re.sub(r"[^a-z0-9*]+", "_", text.lower()).strip("_")


def matching(pattern: str, tests: Iterable[str]) -> list[str]:
    """Return the tests that a breach's pattern matches, by their names without ``test_``."""
    return [test for test in tests if fnmatchcase(test, pattern)]


def table(task: GeneratedTask) -> str:
    """Return a table in Markdown: the prompt's sentences with their checks and false solutions; then honest ways."""
    demanded = {requirement.sentence: requirement.breaches for requirement in task.requirements}
    tests = re.findall(r"^def test_(\w+)\(", task.final_tests, re.MULTILINE)
    rows: list[Sequence[str]] = []
    for sentence in task.sentences:
        if sentence not in demanded:
            rows.append((sentence, "(context)", ""))
        for number, way in enumerate(demanded.get(sentence, ())):
            checks = ", ".join(f"`{name}`" for check in way.checks for name in matching(check, tests))
            rows.append(("″" if number else sentence, checks, way.what))
    lines = ["| sentence | checks | false solution |", "|---|---|---|"]
    lines += ["| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([*lines, "", "Honest: " + "; ".join(way.what for way in task.honest) + ".", ""])
