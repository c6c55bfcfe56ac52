"""Lines that the grader's program (``trusted_runner``) writes, as the server reads them.

Where the operator lets the agent's code run in the tests' process, it can write such a line itself. So each has one of
few shapes, and any other line says nothing.

Invariant: ``read_lines`` raises nothing, whatever the output is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

__all__ = ["Said", "read_lines"]


@dataclass
class Said:
    """The words of all lines with the nonce, and the other lines."""

    words: dict[str, Any] = field(default_factory=dict[str, Any])
    #: A kind of line that comes once came again: not both are the program's.
    twice: bool = False
    others: list[bytes] = field(default_factory=list[bytes])

    @property
    def outcome(self) -> str | None:
        """The outcome; None where there is no verdict."""
        return self.words.get("outcome")

    @property
    def detail(self) -> str:
        """The words beside the outcome."""
        return self.words.get("detail", "")

    @property
    def tests(self) -> list[tuple[str, str, str]]:
        """Name, outcome and words of the tests, as many as are listed."""
        return [(name, outcome, words) for name, outcome, words in self.words.get("tests", ())]

    @property
    def in_all(self) -> Mapping[str, int]:
        """Numbers of all tests by their outcomes."""
        return self.words.get("in_all", {})

    @property
    def failed(self) -> Sequence[str]:
        """Names of tests that failed, where the agent's code may run."""
        return self.words.get("failed", ())

    @property
    def programs(self) -> Sequence[Sequence[Any]]:
        """Programs that the tests have started, where they are recorded."""
        return self.words.get("programs", ())


def read_lines(output: bytes, nonce: str) -> Said:
    """Return what the lines that carry the nonce say."""
    said = Said()
    for line in output.splitlines():
        words = _words(line, nonce)
        if words is None:
            said.others.append(line)
            continue
        said.twice = said.twice or ("ran" not in words and not said.words.keys().isdisjoint(words))
        said.words |= words
    return said


def _words(line: bytes, nonce: str) -> dict[str, Any] | None:
    try:
        decoded: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    words = cast("dict[str, Any]", decoded)
    if words.pop("nonce", None) != nonce:
        return None
    for shape in _SHAPES:
        if shape.keys() == words.keys() and all(is_right(words[name]) for name, is_right in shape.items()):
            return words
    return None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return type(value) is int


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _are_texts(value: Any) -> bool:
    return _is_list(value) and all(map(_is_text, value))


def _are_tests(value: Any) -> bool:
    return _is_list(value) and all(_are_texts(test) and len(test) == 3 for test in value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, cast("dict[str, Any]", value).values()))


def _are_rows(value: Any) -> bool:
    return _is_list(value) and all(map(_is_list, value))


#: The words of each kind of line, and what each has to be.
_SHAPES: Sequence[Mapping[str, Callable[[Any], bool]]] = (
    {"ready": lambda value: value is True},
    {"ran": _is_text},
    {"programs": _are_rows},
    {"tests": _are_tests, "in_all": _are_numbers},
    {"failed": _are_texts, "passed": _is_number, "found": _is_text},
    {"outcome": _is_text, "detail": _is_text},
)
