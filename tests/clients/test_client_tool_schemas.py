"""Tools in the forms of three APIs; Google's allows at least what the original allows."""

from __future__ import annotations

import copy
from enum import Enum
from typing import Any, Literal

import pytest
from ors_clients.tool_schemas import anthropic_tools, google_tools, openai_tools
from pydantic import BaseModel, Field

from ors_server.protocol import ToolSpec

#: The fields of Google's Schema (ai.google.dev/api/caching), and types it knows.
GOOGLE_FIELDS = {
    "anyOf",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "nullable",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
}
GOOGLE_TYPES = {"string", "number", "integer", "boolean", "array", "object"}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: float = Field(ge=0, description="Across.")
    y: float | None = None


class Tree(BaseModel):
    name: str
    branches: list[Tree] = []


class Everything(BaseModel):
    """All of it."""

    text: str = Field(min_length=1, max_length=9, pattern="^a")
    number: int = Field(gt=3, default=4)
    flag: bool = True
    maybe: str | None = None
    choice: int | str = 1
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    only: Literal["this"] = "this"
    level: Literal[1, 2] = 1
    point: Point
    points: list[Point] = []
    pair: tuple[int, int] = (1, 2)
    anything: Any = None
    mapping: dict[str, int] = {}
    tree: Tree | None = None
    when: str = Field(default="", json_schema_extra={"format": "uri"})


def tool(model: type[BaseModel] | None) -> ToolSpec:
    schema = None if model is None else model.model_json_schema()
    return ToolSpec(name="use", description="Use it.", input_schema=schema)


def test_openai_and_anthropic_take_json_schema_as_it_is() -> None:
    schema = Everything.model_json_schema()
    assert openai_tools([tool(Everything)]) == [
        {"type": "function", "function": {"name": "use", "description": "Use it.", "parameters": schema}}
    ]
    assert anthropic_tools([tool(Everything)]) == [{"name": "use", "description": "Use it.", "input_schema": schema}]


def test_a_tool_without_input() -> None:
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    assert openai_tools([tool(None)])[0]["function"]["parameters"] == empty
    assert anthropic_tools([tool(None)])[0]["input_schema"] == empty
    assert google_tools([tool(None)]) == [{"name": "use", "description": "Use it."}]


def test_google_gets_only_what_it_knows() -> None:
    (declaration,) = google_tools([tool(Everything)])
    assert set(declaration) == {"name", "description", "parameters"}

    def check(schema: dict[str, Any]) -> None:
        assert set(schema) <= GOOGLE_FIELDS
        assert schema.get("type", "string") in GOOGLE_TYPES
        assert all(isinstance(value, str) for value in schema.get("enum", []))
        assert schema.get("format") in (None, "enum", "date-time", "float", "double", "int32", "int64")
        if schema.get("type") == "array":
            assert "items" in schema
        for inner in [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]:
            check(inner)
        if "items" in schema:
            check(schema["items"])

    check(declaration["parameters"])


def test_google_says_the_same_where_it_has_words() -> None:
    parameters = google_tools([tool(Everything)])[0]["parameters"]
    properties = parameters["properties"]
    assert parameters["required"] == ["text", "point"]
    assert properties["text"] == {
        "type": "string",
        "title": "Text",
        "minLength": 1,
        "maxLength": 9,
        "pattern": "^a",
    }
    assert properties["number"] == {"type": "integer", "title": "Number", "default": 4}
    assert properties["maybe"] == {"type": "string", "title": "Maybe", "nullable": True}
    assert properties["choice"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert (properties["colour"]["type"], properties["colour"]["enum"]) == ("string", ["red", "blue"])
    assert properties["mode"]["enum"] == ["fast", "slow"]
    assert properties["only"]["enum"] == ["this"]
    assert properties["level"]["type"] == "integer"
    point = {
        "type": "object",
        "title": "Point",
        "required": ["x"],
        "properties": {
            "x": {"type": "number", "title": "X", "minimum": 0, "description": "Across."},
            "y": {"type": "number", "title": "Y", "nullable": True},
        },
    }
    assert properties["point"] == point
    assert properties["points"]["items"] == point
    assert properties["tree"]["properties"]["branches"]["items"] == {"type": "object"}
    assert "format" not in properties["when"]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"allOf": [{"type": "string"}], "description": "d"}, {"type": "string", "description": "d"}),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"$ref": "#/$defs/Missing"}, {"type": "object"}),
        ({"$ref": "#/$defs/Loop"}, {"type": "object"}),
        (True, {}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
    ],
)
def test_schemas_that_others_write(schema: Any, expected: dict[str, Any]) -> None:
    whole = {"properties": {"p": schema}, "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}
    spec = ToolSpec(name="use", description="", input_schema=whole)
    assert google_tools([spec])[0]["parameters"]["properties"]["p"] == expected


def test_the_tools_are_left_as_they_were() -> None:
    spec = tool(Everything)
    before = copy.deepcopy(spec)
    for form in (openai_tools, anthropic_tools, google_tools):
        made = form([spec])
        made[0].clear()
    openai_tools([spec])[0]["function"]["parameters"]["properties"].clear()
    assert spec == before
