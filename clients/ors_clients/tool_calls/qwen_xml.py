"""Qwen's XML calls: ``<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>``.

The form of Qwen3-Coder and Qwen3.5. Values are text, made into what the tool's schema says (``coercion``). A value goes
on to the ``</parameter>`` that another parameter or the end of the call follows, so that code with such a mark in it
arrives whole. The outer mark may be missing, and so may closing marks at the end of the text, but not all of them: a
value that nothing ends was cut off, and half a command is another command. What begins a call without the outer mark is
``<function=`` with a whole name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ors_clients.tool_calls.calls import FoundCall, MalformedCall, ToolCall, Unreadable, call_id, clean
from ors_clients.tool_calls.coercion import coerce, properties_of
from ors_clients.tool_calls.thinking import END_OF_THINKING, MOST_VALUES, places, skip_thinking
from ors_server import ToolSpec

__all__ = ["QwenXmlFormat", "named_function", "readable_calls"]

_BEGIN = "<function="
_END = "</function>"
_OUTER_BEGIN = "<tool_call>"
_OUTER_END = "</tool_call>"
_PARAMETER = "<parameter="
# Where a value ends: at its closing mark; before another parameter whose name is the tool's; at the end of the call.
# The last two are for a closing mark that was forgotten. Possessive: a run of white space is read once.
_VALUE_END = re.compile(
    r"(?P<closed></parameter>\s*+(?=<parameter=|</function>|</tool_call>|\Z))"
    r"|\n<parameter=(?P<next>[^<>\n]+)>"
    r"|</function>\s*+(?:</tool_call>|\Z)"
    r"|</tool_call>\s*+(?:<tool_call>|\Z)"
)
_SPACE = re.compile(r"\s*+")
# Without an outer mark before it: the bare mark is a word of prose like any other.
_NAMED = re.compile(r"<function=[^<>\n]+>")


class QwenXmlFormat:
    """One element a parameter."""

    name = "qwen_xml"
    end_of_call = _OUTER_END
    instructions = (
        "To call a tool, write its name and each of its parameters in this form, values as plain text:\n"
        "<tool_call>\n<function=tool-name>\n<parameter=parameter-name>\nvalue\n</parameter>\n</function>\n</tool_call>"
    )

    def parse(self, text: str, tools: Sequence[ToolSpec], *, turn: int = 0) -> list[FoundCall]:
        """Every call in ``text``, in order."""
        found: list[FoundCall] = []
        position = skip_thinking(text, readable_calls(text, tools))
        while True:
            outer = text.find(_OUTER_BEGIN, position)
            begin = named_function(text, position, outer if outer >= 0 else len(text))
            if begin < 0 and outer < 0:
                return found
            if begin >= 0:
                outer = begin  # written without the outer mark
            elif not text.startswith(_BEGIN, begin := _skip(text, outer + len(_OUTER_BEGIN))):
                end = text.find(_OUTER_END, outer)
                position = len(text) if end < 0 else end + len(_OUTER_END)
                found.append(MalformedCall(text[outer:position], f"a call begins with {_BEGIN}tool-name>"))
                continue
            call, position = read_call(text, outer, begin, tools, call_id(turn, len(found)))
            found.append(call)


def named_function(text: str, position: int, end: int) -> int:
    """Return the begin of the first ``<function=name>`` between ``position`` and ``end``; -1 if there is none."""
    match = _NAMED.search(text, position, end)
    return -1 if match is None else match.start()


def readable_calls(text: str, tools: Sequence[ToolSpec]) -> Iterator[tuple[int, int]]:
    """Begin and end of the first few calls, of those that can be read: for ``skip_thinking``.

    A draft in the model's thoughts may be read on into the call behind them, which is not its own.
    """
    for place in itertools.islice(places(text, _BEGIN), MOST_VALUES):
        begin = place - len(_BEGIN)
        call, end = read_call(text, begin, begin, tools, "")
        thought = text.find(END_OF_THINKING, begin, end)
        if isinstance(call, ToolCall) and (thought < 0 or text.find(_BEGIN, thought, end) < 0):
            yield begin, end


def read_call(text: str, outer: int, begin: int, tools: Sequence[ToolSpec], id: str) -> tuple[FoundCall, int]:
    """Return the call whose ``<function=`` is at ``begin`` and whose text begins at ``outer``, and where to go on."""
    limit = len(text)
    try:
        name, position = _name(text, begin + len(_BEGIN), "function")
        properties, root = properties_of(tools, name)
        input: dict[str, Any] = {}
        while True:
            position = _skip(text, position)
            if not text.startswith(_PARAMETER, position):
                break
            key, position = _name(text, position + len(_PARAMETER), "parameter")
            value, position = _value(text, position, properties)
            input[key] = coerce(clean(value), properties.get(key), root)
        if position < len(text) and not text.startswith((_END, _OUTER_END, _BEGIN, _OUTER_BEGIN), position):
            if not input and (following := text.find(_OUTER_BEGIN, position)) >= 0:
                limit = following  # words that name a function do not hide the call behind them
            raise Unreadable(f"unexpected text where {_PARAMETER}parameter-name> or {_END} should be")
    except Unreadable as problem:
        end = text.find(_END, begin, limit)
        end = _end(text, end if end >= 0 else text.find(_OUTER_END, begin, limit), limit)
        return MalformedCall(text[outer:end], str(problem)), end
    closed = position < len(text)
    end = _end(text, position, limit)
    return ToolCall(name, input, text[outer:end], id, closed), end


def _end(text: str, position: int, limit: int) -> int:
    """Return the position after the closing marks that begin at ``position``; ``limit`` where there are none."""
    if position < 0:
        return limit
    if text.startswith(_END, position):
        position += len(_END)
    after = _skip(text, position)
    return after + len(_OUTER_END) if text.startswith(_OUTER_END, after) else position


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _name(text: str, position: int, kind: str) -> tuple[str, int]:
    end = text.find(">", position)
    name = clean(text[position:end]).strip() if end >= 0 else ""
    if not name or "\n" in name or "<" in name:
        raise Unreadable(f"the {kind}'s name is missing or not closed with >")
    return name, end + 1


def _value(text: str, position: int, parameters: Collection[str]) -> tuple[str, int]:
    """Return the value that begins at ``position``, and where to go on. One line break on either side is the form's.

    Raises ``Unreadable`` for a value without an end.
    """
    for mark in _VALUE_END.finditer(text, position):
        following = mark["next"]
        if following is None or not parameters or following in parameters:
            value = text[position : mark.start()].removeprefix("\n").removesuffix("\n")
            return value, mark.end() if mark["closed"] else mark.start()
    raise Unreadable("a parameter's value does not end with </parameter>")
