"""Progress reports of imports and builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Progress", "Step", "line_progress"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an import or build, or a line of a build's output."""

    text: str
    #: Whether ``text`` is a line that a script has written.
    output: bool = False
    #: Bytes so far; 0 where bytes are not counted.
    done: int = 0


Progress = Callable[[Step], None]


def line_progress(progress: Progress | None) -> Callable[[str], None] | None:
    """Return a function that reports a line of a script's output to ``progress``."""
    if progress is None:
        return None
    return lambda line: progress(Step(line, output=True))
