"""Qwen's XML calls: ``<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>``.

The form of Qwen3-Coder and Qwen3.5. Values are text, made into what the tool's schema says (``coercion``). A value goes
on to the ``</parameter>`` that another parameter or the end of the call follows, so that code with such a mark in it
arrives whole. The outer mark may be missing, and so may closing marks at the end of the text, but not all of them: a
value that nothing ends was cut off, and half a command is another command.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from ors_clients.tool_calls.calls import FoundCall, MalformedCall, ToolCall, Unreadable, call_id, clean
from ors_clients.tool_calls.coercion import coerce, properties_of
from ors_clients.tool_calls.thinking import skip_thinking
from ors_server import ToolSpec

__all__ = ["QwenXmlFormat"]

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
        position = skip_thinking(text)
        while True:
            outer = text.find(_OUTER_BEGIN, position)
            begin = text.find(_BEGIN, position)
            if begin < 0 and outer < 0:
                return found
            if outer < 0 or 0 <= begin < outer:
                outer = begin  # written without the outer mark
            elif begin < 0 or text[outer + len(_OUTER_BEGIN) : begin].strip():
                end = text.find(_OUTER_END, outer)
                position = len(text) if end < 0 else end + len(_OUTER_END)
                found.append(MalformedCall(text[outer:position], f"a call begins with {_BEGIN}tool-name>"))
                continue
            call, position = read_call(text, outer, begin, tools, call_id(turn, len(found)))
            found.append(call)


def read_call(text: str, outer: int, begin: int, tools: Sequence[ToolSpec], id: str) -> tuple[FoundCall, int]:
    """The call whose ``<function=`` is at ``begin`` and whose text begins at ``outer``, and where to go on."""
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
            raise Unreadable(f"unexpected text where {_PARAMETER}parameter-name> or {_END} should be")
    except Unreadable as problem:
        end = text.find(_END, begin)
        end = _end(text, end if end >= 0 else text.find(_OUTER_END, begin))
        return MalformedCall(text[outer:end], str(problem)), end
    closed = position < len(text)
    end = _end(text, position)
    return ToolCall(name, input, text[outer:end], id, closed), end


def _end(text: str, position: int) -> int:
    """The position after the closing marks that begin at ``position``."""
    if position < 0:
        return len(text)
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
    """The value that begins at ``position``, and where to go on. One line break on either side is the form's.

    Raises ``Unreadable`` for a value without an end.
    """
    for mark in _VALUE_END.finditer(text, position):
        following = mark["next"]
        if following is None or not parameters or following in parameters:
            value = text[position : mark.start()].removeprefix("\n").removesuffix("\n")
            return value, mark.end() if mark["closed"] else mark.start()
    raise Unreadable("a parameter's value does not end with </parameter>")
