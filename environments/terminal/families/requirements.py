"""What a prompt demands: each sentence with the tests that check it, and solutions that break this sentence alone.

A ``Way`` is a whole solution of a task. A breach is a way that one sentence forbids: it names the final tests that
fail, and every other one passes. An honest way passes all of them. Ways lie in the package, which no sandbox sees, and
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
    """One way of doing a task: exactly one of ``after``, ``instead`` and ``swap`` is given.

    ``checks`` are the final tests that fail, in words; ``*`` stands for anything (``* has the right lines``), and of
    the tests such a pattern matches at least one fails.
    """

    what: str
    checks: tuple[str, ...] = ()
    #: Bash, run in the project's folder when the oracle has run; ``$root`` is that folder.
    after: str = ""
    #: Bash, run in /home/user in place of the oracle.
    instead: str = ""
    #: The oracle with a passage replaced: what, and by what.
    swap: tuple[str, str] = ("", "")

    def script(self, oracle: str) -> str:
        """The bash that is run; ``after`` runs where the oracle has run. Raises ``ValueError`` for a bad ``swap``."""
        old, new = self.swap
        if (bool(self.after), bool(self.instead), bool(old)).count(True) != 1:
            raise ValueError(f"{self.what!r} is not one of `after`, `instead` and `swap`")
        if old and (old not in oracle or old == new):
            raise ValueError(f"{self.what!r}: the oracle cannot be changed from {old!r} to {new!r}")
        return self.after or self.instead or oracle.replace(old, new)


def breach(what: str, *checks: str, after: str = "", instead: str = "", swap: tuple[str, str] = ("", "")) -> Way:
    """A false solution that fails exactly these final tests."""
    return Way(what, tuple(map(words, checks)), after, instead, swap)


@dataclass(frozen=True)
class Requirement:
    """A sentence of the prompt and what breaks it, in one way or several."""

    sentence: str
    breaches: tuple[Way, ...]


def words(text: str) -> str:
    """A check's name as it is in the name of its test; ``*`` is kept."""
    return re.sub(r"[^a-z0-9*]+", "_", text.lower()).strip("_")


def matching(pattern: str, tests: Iterable[str]) -> list[str]:
    """The tests that a pattern of a breach means, by their names without ``test_``."""
    return [test for test in tests if fnmatchcase(test, pattern)]


def table(task: GeneratedTask) -> str:
    """The prompt's sentences, what checks each of them and what breaks it; then the honest ways. Markdown."""
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
