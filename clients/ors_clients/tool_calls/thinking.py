"""Where a model's thinking is, so that nothing in it is taken for a call, nor for an answer.

``<think>`` begins it and ``</think>`` ends it. A chat template may have written the opening one into the prompt, so
text up to a ``</think>`` without one before it is thinking too. Thinking without an end goes on to the end of the text.
Marks inside a call are the call's own: who reads a call skips over it whole.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

from ors_clients.tool_calls.calls import Unreadable, decode_value

__all__ = ["find_outside_thinking", "places", "skip_opened_thinking", "split_thinking"]

_BEGIN = "<think>"
_END = "</think>"
#: Values that are looked at: each may be a walk to the end of the text.
_MOST_VALUES = 16


def skip_opened_thinking(text: str, values: Iterable[int] = ()) -> int:
    """Where thinking ends that the prompt began; 0 if there is none.

    ``values`` are the places where the JSON of a call may begin: a ``</think>`` in a value is that call's own.
    """
    end = text.find(_END)
    if end < 0 or text.find(_BEGIN, 0, end) >= 0:
        return 0
    for begin in itertools.islice(values, _MOST_VALUES):
        if begin >= end:
            break
        with contextlib.suppress(Unreadable):
            if decode_value(text, begin)[1] > end:
                return 0
    return end + len(_END)


def places(text: str, mark: str) -> Iterator[int]:
    """Where each ``mark`` in the text ends."""
    position = text.find(mark)
    while position >= 0:
        yield position + len(mark)
        position = text.find(mark, position + 1)


def find_outside_thinking(text: str, mark: str, position: int) -> int:
    """The next ``mark`` from ``position`` that is not thought; -1 if there is none."""
    while True:
        found = text.find(mark, position)
        if found < 0:
            return -1
        thinking = text.find(_BEGIN, position, found)
        if thinking < 0:
            return found
        end = text.find(_END, thinking)
        if end < 0:
            return -1
        position = end + len(_END)


def split_thinking(text: str) -> tuple[str, str]:
    """The thinking at the beginning of a turn, without its marks, and the rest."""
    end = skip_opened_thinking(text)
    if end:
        return text[: end - len(_END)].strip(), text[end:].lstrip()
    begin = len(text) - len(text.lstrip())
    if not text.startswith(_BEGIN, begin):
        return "", text
    begin += len(_BEGIN)
    end = text.find(_END, begin)
    if end < 0:
        return text[begin:].strip(), ""
    return text[begin:end].strip(), text[end + len(_END) :].lstrip()
