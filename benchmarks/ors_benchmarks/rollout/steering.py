"""Steering: constrain the model's output, so that random weights play real episodes.

Every turn is a regular expression that an engine with structured output samples within: some free text, if asked for,
and one call in the Hermes form. The call is fixed where the environment needs a certain one (the word of an echo task
in the last turn, ``done`` in a terminal), and otherwise any that the tool's JSON schema allows. Each turn also has one
text that matches its expression, for engines without structured output. The engine still samples every token; what is
steered is only which tokens it may choose from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ors_clients.errors import ConfigurationError

from ors_server import ToolSpec

__all__ = ["REPLAYED", "Turn", "Unsteerable", "literal", "steer"]

#: For a replay, whose tokens are not read: any length, and as much work for the engine as a call. On a busy CPU vLLM's
#: core process, which keeps to the expression, took 152 µs a token of a call, 145 of this, 127 of one that allows any
#: text, and 97 without an expression.
REPLAYED = "[a-z ]*"

#: Commands of a terminal's turns before the last; they change nothing that a task's tests look at.
COMMANDS = ("ls -la", "pwd && df -h .", "cat /etc/hostname; date", "ps -e | head -n 20", "env | sort | head -n 20")

_MEANING = set(r"\.^$*+?()[]{}|")
_WORD = "[a-z]{3,9}"


class Unsteerable(ConfigurationError):
    """No call of a tool can be constructed from its schema."""


@dataclass(frozen=True)
class Turn:
    """One turn of the model."""

    regex: str
    #: One of the texts that match.
    example: str


def steer(tools: Sequence[ToolSpec], task: Mapping[str, Any], turns: int, free_characters: int = 0) -> list[Turn]:
    """Return the turns of an episode of this task; the last turn ends it, for environments that are known.

    ``free_characters`` is how much free text stands before each call. An echo task is known by its ``echo`` tool and
    ``target``, a terminal by ``bash`` and ``done``; of any other environment each tool is called in its turn.

    Raises ``Unsteerable``.
    """
    names = {tool.name for tool in tools}
    made: list[Turn] = []
    for number in range(turns):
        last = number == turns - 1
        if "echo" in names and isinstance(task.get("target"), str):
            call = _fixed("echo", {"text": task["target"]}) if last else _echo_of_another_word()
        elif {"bash", "done"} <= names:
            call = _fixed("done", {}) if last else _fixed("bash", {"command": COMMANDS[number % len(COMMANDS)]})
        else:
            call = _any_call(tools[number % len(tools)])
        made.append(_with_free_text(call, free_characters))
    return made


def literal(text: str) -> str:
    """Return an expression that matches exactly this text."""
    return "".join("\\n" if sign == "\n" else f"\\{sign}" if sign in _MEANING else sign for sign in text)


def _fixed(name: str, arguments: Mapping[str, Any]) -> Turn:
    text = _call_text(name, json.dumps(arguments))
    return Turn(literal(text), text)


def _echo_of_another_word() -> Turn:
    # No task's word ends like this.
    return Turn(
        _call_regex("echo", literal('{"text": "') + "[a-z]{6}zq" + literal('"}')),
        _call_text("echo", '{"text": "abcdefzq"}'),
    )


def _any_call(tool: ToolSpec) -> Turn:
    try:
        value = _value(tool.input_schema or {"type": "object"}, tool.input_schema or {})
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Unsteerable(
            f"No call of the tool {tool.name!r} can be constructed from its schema: {type(error).__name__}: {error}",
            "Random weights cannot play it: --model PATH with real weights, which is not steered.",
        ) from None
    return Turn(_call_regex(tool.name, value.regex), _call_text(tool.name, value.example))


def _value(schema: Mapping[str, Any] | bool, root: Mapping[str, Any]) -> Turn:
    """Return some value that a JSON schema allows, lengths and patterns aside; optional properties are left out."""
    if isinstance(schema, bool):  # true allows anything
        schema = {}
    if "$ref" in schema:
        found: Any = root
        for part in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return _value(found, root)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(schema[key][0], root)
    if "const" in schema:
        return _json(schema["const"])
    if schema.get("enum"):
        return _json(schema["enum"][0])
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        kind = kind[0]  # pyright: ignore[reportUnknownVariableType]
    if kind == "object":
        properties = schema.get("properties", {})
        members = [(name, _value(properties.get(name, {}), root)) for name in schema.get("required", ())]
        return Turn(
            literal("{") + ", ".join(literal(f'"{name}": ') + value.regex for name, value in members) + literal("}"),
            "{" + ", ".join(f'"{name}": {value.example}' for name, value in members) + "}",
        )
    if kind == "array":
        return _json([])
    if kind == "integer" or kind == "number":
        return Turn("[1-9]", "1")
    if kind == "boolean":
        return Turn("(true|false)", "true")
    if kind == "null":
        return _json(None)
    return Turn(f'"{_WORD}( {_WORD}){{0,5}}"', '"some text"')


def _json(value: Any) -> Turn:
    text = json.dumps(value)
    return Turn(literal(text), text)


def _call_regex(name: str, arguments: str) -> str:
    return literal(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ') + arguments + literal("}\n</tool_call>")


def _call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def _with_free_text(call: Turn, characters: int) -> Turn:
    if not characters:
        return call
    return Turn(f"[a-z ,]{{{characters}}}\\n{call.regex}", ("a word, " * characters)[:characters] + "\n" + call.example)
