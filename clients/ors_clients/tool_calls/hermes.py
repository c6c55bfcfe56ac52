"""Hermes calls: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number of them in a turn.

The form of the Hermes models and of Qwen2.5 and Qwen3. The JSON value ends where it ends, not at the first
``</tool_call>`` in it, so that an argument may hold that text. A last call whose closing mark is missing is taken all
the same: engines stop right before or right after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ors_clients.tool_calls.calls import (
    FoundCall,
    MalformedCall,
    ToolCall,
    Unreadable,
    call_id,
    decode_value,
    named_call,
)
from ors_clients.tool_calls.thinking import json_values, places, skip_thinking
from ors_server import ToolSpec

__all__ = ["HermesFormat"]

_BEGIN = "<tool_call>"
_END = "</tool_call>"


class HermesFormat:
    """JSON in ``<tool_call>`` marks."""

    name = "hermes"
    end_of_call = _END
    instructions = (
        "To call a tool, write a JSON object with its name and its arguments between <tool_call> marks:\n"
        '<tool_call>\n{"name": "tool-name", "arguments": {"argument": "value"}}\n</tool_call>'
    )

    def parse(self, text: str, tools: Sequence[ToolSpec], *, turn: int = 0) -> list[FoundCall]:
        """Every call in ``text``, in order."""
        found: list[FoundCall] = []
        position = skip_thinking(text, json_values(text, places(text, _BEGIN)))
        while (begin := text.find(_BEGIN, position)) >= 0:
            call, position = read_call(text, begin, call_id(turn, len(found)))
            found.append(call)
        return found


def read_call(text: str, begin: int, id: str) -> tuple[FoundCall, int]:
    """Return the call whose mark is at ``begin``, and where to go on."""
    body = begin + len(_BEGIN)
    try:
        value, end = decode_value(text, body)
        mark = text.find(_END, end)
        following = text.find(_BEGIN, end)
        if mark >= 0 and not 0 <= following < mark:
            if text[end:mark].strip():
                raise Unreadable(f"unexpected text between the JSON object and {_END}")
            end = mark + len(_END)
        name, arguments = named_call(value)
        return ToolCall(name, arguments, text[begin:end], id), end
    except Unreadable as problem:
        end = text.find(_END, body)
        following = text.find(_BEGIN, body)
        end = len(text) if end < 0 else end + len(_END)
        if 0 <= following < end:
            end = following
        return MalformedCall(text[begin:end], str(problem)), end
