"""Results of parsing a model's text: calls, and calls that cannot be read. No parser raises.

A call that cannot be read is a ``MalformedCall`` that keeps the text it came from and says what is wrong with it; the
rollout answers it with a message to the model, and the episode goes on. A parser that raised instead would end rollouts
at the first slip of the model, and a run would train on the survivors only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

from ors_server import ToolSpec
from ors_server.wire.texts import replace_surrogates

__all__ = ["FoundCall", "MalformedCall", "ToolCall", "ToolCallFormat", "describe_tools"]


@dataclass(frozen=True)
class ToolCall:
    """A call the model wrote: ``input`` holds JSON values only, ``raw`` is the text it was read from."""

    name: str
    input: dict[str, Any]
    raw: str
    #: Unique within the rollout: made of the turn and the call's place in it.
    id: str
    #: Whether the text says where the call ends. One that does not may have gone on behind a token limit.
    closed: bool = True


@dataclass(frozen=True)
class MalformedCall:
    """Text that begins like a call and is none; ``problem`` says why in words the model can act on."""

    raw: str
    problem: str


FoundCall: TypeAlias = ToolCall | MalformedCall


class ToolCallFormat(Protocol):
    """One way in which models write tool calls."""

    @property
    def name(self) -> str:
        """The name configurations use."""
        ...

    @property
    def instructions(self) -> str:
        """Instructions for writing a call, for a system prompt where the chat template has none."""
        ...

    @property
    def end_of_call(self) -> str:
        """The text that ends a call: a stop string for runs that want one call a turn; empty if there is none."""
        ...

    def parse(self, text: str, tools: Sequence[ToolSpec], *, turn: int = 0) -> list[FoundCall]:
        """Every call in ``text``, in order. Thinking is not searched. Never raises, whatever the text."""
        ...


def call_id(turn: int, position: int) -> str:
    """Return the id of the call at ``position`` (from 0) of a turn (from 0)."""
    return f"call_{turn}_{position}"


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """One JSON object a line and tool: what ``{tools}`` in a system prompt stands for (openreward-cookbook's form)."""
    return "\n".join(
        json.dumps(
            {"name": tool.name, "arguments_schema": tool.input_schema, "description": tool.description},
            ensure_ascii=False,
            default=dict,
        )
        for tool in tools
    )


#: Lists and objects in each other. What can be read a little deeper could not be written again further up the stack.
_DEPTH = 100


class Unreadable(Exception):
    """Raised inside a parser by text that is not a call; the message names the problem."""


def _refuse_constant(name: str) -> Any:
    raise Unreadable(f"{name} is not a JSON value")


# Control characters in strings are let through: models write code with bare line breaks in it.
_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


def decode_value(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at ``position`` and where it ends. Raises ``Unreadable``."""
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        value, end = _decoder.raw_decode(text, position)
        return clean(value), end
    except json.JSONDecodeError as error:
        raise Unreadable(f"invalid JSON: {error.msg} at character {error.pos - position}") from None
    except ValueError:  # an integer of more digits than Python converts
        raise Unreadable("invalid JSON: a number is too long") from None
    except RecursionError:
        raise Unreadable("invalid JSON: nested too deeply") from None


def clean(value: Any, depth: int = 0) -> Any:
    """Return a decoded value without what cannot be sent on: lone surrogates become U+FFFD. Raises ``Unreadable``."""
    if depth > _DEPTH:
        raise Unreadable("invalid JSON: nested too deeply")
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise Unreadable("invalid JSON: a number is out of range")  # 1e999
    if isinstance(value, list):
        return [clean(item, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {clean(key): clean(item, depth + 1) for key, item in cast("dict[str, Any]", value).items()}
    return value


def named_call(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of ``{"name": …, "arguments": {…}}``. Raises ``Unreadable``.

    ``parameters`` (Llama) means the same as ``arguments``; so does an object written as a string; none means ``{}``.
    """
    if not isinstance(value, dict):
        raise Unreadable('a call is a JSON object with the keys "name" and "arguments"')
    call = cast("dict[str, Any]", value)
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Unreadable('the key "name" is missing or no tool\'s name')
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        text = arguments
        arguments, end = decode_value(text, 0)
        if text[end:].strip():
            raise Unreadable('"arguments" is not a JSON object')
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Unreadable('"arguments" is not a JSON object')
    return name.strip(), cast("dict[str, Any]", arguments)
