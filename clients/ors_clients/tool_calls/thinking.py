"""Where a model's thinking is, so that nothing in it is taken for a call, nor for an answer.

It stands at the beginning of a turn, between ``<think>`` and ``</think>``, once or several times. A chat template may
have written the opening mark into the prompt, so text up to a ``</think>`` without one before it is thinking too.
Thinking without an end goes on to the end of the text. Marks further on, in the answer or in a call, are words like any
other: an answer about the mark ``<think>`` must not hide the calls behind it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator

from ors_clients.tool_calls.calls import Unreadable, decode_value

__all__ = ["places", "skip_opened_thinking", "skip_thinking", "split_thinking"]

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


def skip_thinking(text: str, values: Iterable[int] = ()) -> int:
    """Where the thinking at the beginning of a turn ends, whoever began it; ``values`` as ``skip_opened_thinking``."""
    position = skip_opened_thinking(text, values)
    while (begin := _begun(text, position)) is not None:
        end = text.find(_END, begin)
        if end < 0:
            return len(text)
        position = end + len(_END)
    return position


def _begun(text: str, position: int) -> int | None:
    """Where thinking goes on whose mark is the next thing at ``position``."""
    while position < len(text) and text[position].isspace():
        position += 1
    return position + len(_BEGIN) if text.startswith(_BEGIN, position) else None


def split_thinking(text: str) -> tuple[str, str]:
    """The thinking at the beginning of a turn, without its marks, and the rest."""
    end = skip_thinking(text)
    if not end:
        return "", text
    thoughts = (thought.strip().removeprefix(_BEGIN).strip() for thought in text[:end].split(_END))
    return "\n\n".join(filter(None, thoughts)), text[end:].lstrip()
