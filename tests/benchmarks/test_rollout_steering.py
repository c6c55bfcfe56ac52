"""Steering of the model's output: expressions, their examples, and the calls in them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ors_benchmarks.rollout.steering import Turn, Unsteerable, literal, steer
from ors_clients.tool_calls import ToolCall, find_format

from ors_server import ToolSpec

ECHO = ToolSpec(
    name="echo",
    description="",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
BASH = ToolSpec(
    name="bash",
    description="",
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
DONE = ToolSpec(name="done", description="", input_schema=None)


def call_of(turn: Turn, tools: list[ToolSpec]) -> ToolCall:
    """Return the only call of the turn's example, which must match the turn's expression."""
    assert re.fullmatch(turn.regex, turn.example), turn
    [call] = find_format("hermes").parse(turn.example, tools)
    assert isinstance(call, ToolCall)
    return call


@given(st.text())
def test_a_literal_matches_its_text_and_no_other(text: str) -> None:
    assert re.fullmatch(literal(text), text)
    assert not re.fullmatch(literal(text), text + "x")


def test_an_echo_ends_with_the_tasks_word_and_not_before() -> None:
    turns = steer([ECHO, DONE], {"target": "hello"}, 3)
    assert [call_of(turn, [ECHO]).input["text"] == "hello" for turn in turns] == [False, False, True]
    assert not any(re.fullmatch(turn.regex, turns[-1].example) for turn in turns[:-1])


def test_a_terminal_ends_with_done() -> None:
    calls = [call_of(turn, [BASH, DONE]) for turn in steer([BASH, DONE], {"id": "x"}, 4)]
    assert [call.name for call in calls] == ["bash", "bash", "bash", "done"]
    assert all(call.input["command"] for call in calls[:3])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": "array", "items": {"type": "string"}}, []),
        ({"enum": ["a.b", "c"]}, "a.b"),
        ({"const": {"x": [1]}}, {"x": [1]}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({"type": ["string", "null"]}, "some text"),
        ({"$ref": "#/$defs/Inner"}, {"inner": 1}),
        ({"$ref": "#/$defs/a~1b"}, None),
        (True, "some text"),
        ({"type": []}, "some text"),
        ({"type": "object", "required": ["undescribed"]}, {"undescribed": "some text"}),
    ],
)
def test_any_other_tool_gets_what_its_schema_allows(schema: dict[str, Any] | bool, value: Any) -> None:
    inner = {"type": "object", "properties": {"inner": {"type": "number"}}, "required": ["inner"]}
    whole = {
        "type": "object",
        "properties": {"value": schema, "left_out": {"type": "string"}},
        "required": ["value"],
        "$defs": {"Inner": inner, "a/b": {"type": "null"}},
    }
    tool = ToolSpec(name="submit", description="", input_schema=whole)
    [turn] = steer([tool], {}, 1)
    assert call_of(turn, [tool]).input == {"value": value}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "elsewhere.json"},
        {"type": "object", "properties": {"x": 1}, "required": ["x"]},
        {"type": "object", "required": 1},
        {"anyOf": {"0": {}}},
    ],
)
def test_a_schema_without_a_possible_call_is_reported(schema: dict[str, Any]) -> None:
    with pytest.raises(Unsteerable, match="'odd'"):
        steer([ToolSpec(name="odd", description="", input_schema=schema)], {}, 1)


def test_every_tool_of_another_environment_has_its_turn() -> None:
    tools = [ToolSpec(name=name, description="", input_schema=None) for name in ("one", "two")]
    assert [call_of(turn, tools).name for turn in steer(tools, {}, 3)] == ["one", "two", "one"]


def test_free_text_stands_before_the_call() -> None:
    for turn in steer([ECHO], {"target": "hello"}, 2, free_characters=40):
        assert turn.example.index("\n") == 40
        assert call_of(turn, [ECHO]).name == "echo"
