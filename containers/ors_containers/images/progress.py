"""What long work on images tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Progress", "Step", "line_progress"]


@dataclass(frozen=True, slots=True)
class Step:
    """What is being done: a sentence, a line of a build's output, or how far it is."""

    text: str
    #: A line that a script has written.
    output: bool = False
    #: Bytes so far; 0 where there is nothing to count.
    done: int = 0


Progress = Callable[[Step], None]


def line_progress(progress: Progress | None) -> Callable[[str], None] | None:
    """What tells ``progress`` the lines of a script."""
    if progress is None:
        return None
    return lambda line: progress(Step(line, output=True))
