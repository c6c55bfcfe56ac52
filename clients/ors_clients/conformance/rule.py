"""Rules of a conformance check, and the outcome of trying one.

A rule is a coroutine function that tries one promise of the protocol on a server. It returns what came if the promise
is kept, raises ``Broken`` if it is not, and ``NotTried`` where this server gives no opportunity to try it. A rule that
was not tried has not passed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = [
    "OURS",
    "RECOMMENDED",
    "REQUIRED",
    "Broken",
    "NotTried",
    "Outcome",
    "Result",
    "Rule",
    "Rules",
    "Severity",
    "Warned",
    "kept",
    "plain",
]

#: Longest text of a server in a report, in characters.
_LONGEST = 300


class Severity(StrEnum):
    """The weight of a rule. Only a broken required rule makes the check fail."""

    #: A client of today breaks, or a reward or a result is wrong.
    REQUIRED = "required"
    #: A rollout may be lost or slowed under stress, or something leaks.
    RECOMMENDED = "recommended"
    #: An extension of ors-server, which no other client needs.
    OURS = "ours"


REQUIRED, RECOMMENDED, OURS = Severity


class Outcome(StrEnum):
    """The result of a rule."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"
    NOT_TRIED = "not tried"
    #: The check itself failed.
    ERROR = "error"


class Broken(Exception):
    """The server does not keep the promise; the text is what came."""


class Warned(Exception):
    """Nothing is broken, but the text deserves a look."""


class NotTried(Exception):
    """The server gives no opportunity to try the rule; the text is the reason."""


#: Gets the server under test, a ``Subject``, which lies above this module.
Try = Callable[[Any], Awaitable[str]]


@dataclass(frozen=True)
class Rule:
    """One promise: what is tried, what is expected, which client breaks without it, and the function that tries it."""

    #: Its group, a dot and its name.
    id: str
    severity: Severity
    tried: str
    expected: str
    why: str
    run: Try
    #: Whether it is tried on the probe's environment only.
    probe: bool = False
    #: Seconds it takes, where it is tried with ``--slow`` only; else 0.
    slow: int = 0

    @property
    def group(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]


class Rules(list[Rule]):
    """The rules of a module, in the order in which they are tried. A decorator, which adds a function as a rule."""

    def __call__(self, id: str, severity: Severity, **promise: Any) -> Callable[[Try], Try]:
        """Add the decorated function as a rule; ``promise`` has the other fields of ``Rule``."""

        def add(run: Try) -> Try:
            self.append(Rule(id, severity, run=run, **promise))
            return run

        return add


@dataclass(frozen=True)
class Result:
    """The outcome of one rule on one server."""

    rule: Rule
    outcome: Outcome
    #: What came, or the reason why it was not tried.
    came: str
    seconds: float


def kept(promise: bool, came: object) -> str:
    """Return what came, as text. Raises ``Broken`` with that text where the promise is not kept."""
    if not promise:
        raise Broken(str(came))
    return str(came)


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return a server's text for a report: one line, without control and invisible characters, shortened."""
    shown = "".join(
        character if not unicodedata.category(character).startswith(("C", "Zl", "Zp")) else " "
        for character in text[: 4 * longest]
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= longest else f"{shown[:longest]}…"
