"""Positions of a model's thinking: nothing in it is a call or an answer.

It stands at the beginning of a turn, between ``<think>`` and ``</think>``, once or several times. A chat template may
have written the opening mark into the prompt, so text up to a ``</think>`` without one before it is thinking too.
Thinking without an end goes on to the end of the text. Marks further on, in the answer or in a call, are words like any
other: an answer about the mark ``<think>`` must not hide the calls behind it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from ors_clients.tool_calls.calls import Unreadable, decode_value

__all__ = [
    "END_OF_THINKING",
    "MOST_VALUES",
    "json_values",
    "places",
    "skip_opened_thinking",
    "skip_thinking",
    "split_thinking",
]

_BEGIN = "<think>"
_END = END_OF_THINKING = "</think>"
#: Values that are looked at: each may be a walk to the end of the text.
MOST_VALUES = 16


def skip_opened_thinking(text: str, calls: Iterable[tuple[int, int]] = ()) -> int:
    """Return the end of the thinking that the prompt began; 0 if there is none.

    ``calls``: begin and end of each readable call; a ``</think>`` inside of a call belongs to the call.
    """
    end = text.find(_END)
    if end < 0 or text.find(_BEGIN, 0, end) >= 0:
        return 0
    if any(begin < end < behind for begin, behind in calls):
        return 0
    return end + len(_END)


def json_values(text: str, begins: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of the JSON values at these places, of the first few and of those that can be read."""
    for begin in itertools.islice(begins, MOST_VALUES):
        try:
            yield begin, decode_value(text, begin)[1]
        except Unreadable:
            continue


def places(text: str, mark: str) -> Iterator[int]:
    """Yield the end of each ``mark`` in the text."""
    position = text.find(mark)
    while position >= 0:
        yield position + len(mark)
        position = text.find(mark, position + 1)


def skip_thinking(text: str, calls: Iterable[tuple[int, int]] = ()) -> int:
    """Return the end of the thinking at a turn's beginning, opened by prompt or model; ``calls`` as above."""
    position = skip_opened_thinking(text, calls)
    while (begin := _begun(text, position)) is not None:
        end = text.find(_END, begin)
        if end < 0:
            return len(text)
        position = end + len(_END)
    return position


def _begun(text: str, position: int) -> int | None:
    """Return the position behind a ``<think>`` that comes next at ``position``; None without one."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position + len(_BEGIN) if text.startswith(_BEGIN, position) else None


def split_thinking(text: str) -> tuple[str, str]:
    """Return the thinking at the beginning of a turn, without its marks, and the rest."""
    end = skip_thinking(text)
    if not end:
        return "", text
    thoughts = (thought.strip().removeprefix(_BEGIN).strip() for thought in text[:end].split(_END))
    return "\n\n".join(filter(None, thoughts)), text[end:].lstrip()
