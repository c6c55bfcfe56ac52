"""Tools as methods: the result of the trainer's schema reader, and the input that a call sends."""

from __future__ import annotations

import inspect
import json
import keyword
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ors_clients.trainers.trl.tools import tool_method, tool_name, tool_parameters

from ors_server.protocol import ToolSpec

transformers_utils: Any = pytest.importorskip("transformers.utils", reason="transformers reads the tools' schemas")


def specification(
    properties: dict[str, Any],
    required: list[str] | None = None,
    *,
    text: str = "Act.",
    definitions: dict[str, Any] | None = None,
) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": required or [], "$defs": definitions or {}}
    return ToolSpec(name="act", description=text, input_schema=schema)


class Recorder:
    """The class that gets the tools; records the input that a call would send."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def record(self, name: str, input: dict[str, Any]) -> str:
        self.sent.append((name, input))
        return "done"


def bound(tool: ToolSpec, name: str | None = None) -> Any:
    """Return the tool as the trainer finds it: a function of the object's class, bound to the object."""
    name = name or tool.name
    environment = type("Environment", (Recorder,), {name: tool_method(tool, name, Recorder.record)})()
    assert name in [found for found, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    return getattr(environment, name)


def shown(tool: ToolSpec) -> dict[str, Any]:
    """Return a tool as the model sees it."""
    return cast("dict[str, Any]", transformers_utils.get_json_schema(bound(tool))["function"])


def properties(tool: ToolSpec) -> dict[str, Any]:
    return shown(tool)["parameters"]["properties"]


def sent(tool: ToolSpec, *values: Any, **arguments: Any) -> dict[str, Any]:
    """Return the tool's input that a call sends."""
    method = bound(tool)
    assert method(*values, **arguments) == "done"
    (name, input), *more = method.__self__.sent
    assert name == tool.name
    assert not more
    return input


# --- the model's view -----------------------------------------------------------------------------


def test_types_of_a_schema_arrive() -> None:
    tool = specification(
        {
            "text": {"type": "string", "description": "A text."},
            "times": {"type": "integer"},
            "share": {"type": "number", "title": "Share"},
            "loud": {"type": "boolean", "default": False},
            "words": {"type": "array", "items": {"type": "string"}},
            "table": {"type": "object"},
            "unit": {"enum": ["m", "km"], "type": "string"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "either": {"type": ["string", "integer"]},
            "anything": {},
        },
        ["text", "times"],
    )
    parameters = shown(tool)["parameters"]
    assert parameters["required"] == ["text", "times"]
    descriptions = {name: value.pop("description") for name, value in parameters["properties"].items()}
    assert parameters["properties"] == {
        "text": {"type": "string"},
        "times": {"type": "integer"},
        "share": {"type": "number"},
        "loud": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "table": {"type": "object"},
        "unit": {"type": "string", "enum": ["m", "km"]},
        "maybe": {"type": "integer", "nullable": True},
        "either": {"type": ["integer", "string"]},
        "anything": {},
    }
    assert descriptions["text"] == "A text."
    assert descriptions["times"] == "times"
    assert descriptions["share"] == "Share"
    assert descriptions["loud"] == "loud Default: false."


def test_constraints_that_types_cannot_express_are_in_the_description() -> None:
    point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tool = specification(
        {
            "code": {"type": "string", "pattern": "^[a-z]+$", "description": "A code."},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "point": {"$ref": "#/$defs/Point", "description": "Where."},
            "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
        },
        definitions={"Point": point},
    )
    described = {name: value["description"] for name, value in properties(tool).items()}
    assert described["code"] == 'A code. JSON schema: {"type": "string", "pattern": "^[a-z]+$"}'
    assert '"minimum": 1, "maximum": 9' in described["count"]
    assert described["point"] == f"Where. JSON schema: {json.dumps(point)}"
    assert json.dumps(point) in described["points"]
    assert properties(tool)["points"]["type"] == "array"


def test_a_recursive_schema_ends() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    assert (
        properties(specification({"node": {"$ref": "#/$defs/Node"}}, definitions={"Node": node}))["node"]["type"]
        == "object"
    )


def test_the_list_of_arguments_in_a_description_moves_to_the_arguments() -> None:
    text = """Submit a text.

        It is compared.

        Args:
            text: The text, one word.
            note (str): A note."""
    tool = specification({"text": {"type": "string"}, "note": {"type": "string", "description": "Its own."}}, text=text)
    assert shown(tool)["description"] == "Submit a text.\n\nIt is compared."
    assert [value["description"] for value in properties(tool).values()] == ["The text, one word.", "Its own."]


@pytest.mark.parametrize(
    "text",
    ["", "  \n ", "Adds. Returns: a sum", "Args:\n  nothing like it", "Raises: never", '"""); import os #', "\\n{}%s"],
)
def test_any_description_is_read(text: str) -> None:
    tool = specification({"text": {"type": "string", "description": text}, "b": {"type": "integer"}}, text=text)
    read = shown(tool)
    assert read["description"].strip()
    assert all(value["description"].strip() for value in read["parameters"]["properties"].values())
    for said in text.replace(":", " ").split():  # nothing was cut off
        assert said in str(read) or repr(said)[1:-1] in str(read)


def test_choices_in_a_description_are_not_taken_for_a_list() -> None:
    assert properties(specification({"a": {"type": "string", "description": "one (choices: x, y)"}}))["a"] == {
        "type": "string",
        "description": "one (choices: x, y).",
    }


def test_a_tool_without_a_schema_has_no_parameters() -> None:
    tool = ToolSpec(name="hint", description="Get a hint.", input_schema=None)
    assert shown(tool)["parameters"] == {"type": "object", "properties": {}}
    assert sent(tool) == {}


# --- names ---------------------------------------------------------------------------------------


def test_names_that_are_not_python_identifiers_are_kept_or_replaced() -> None:
    assert tool_name("get-weather", ()) == "get-weather"
    assert tool_name("class", ()) == "class"
    assert tool_name("files/read text", ()) == "files_read_text"
    assert tool_name("_private", ()) == "private"
    assert tool_name("__", ()) == "tool"
    assert tool_name("reset", {"reset"}) == "reset_tool"
    assert tool_name("reset", {"reset", "reset_tool"}) == "reset_tool_tool"


@pytest.mark.parametrize("name", ["class", "None", "in-file", "2nd", "self", "return", "größe", "a b", "", "données·x"])
def test_a_parameter_of_any_name_can_be_given(name: str) -> None:
    tool = specification({name: {"type": "string"}, "other": {"type": "string"}}, [name])
    (alias, _), _ = properties(tool).items()
    assert sent(tool, **{alias: "x"}) == {name: "x"}
    assert sent(tool, **{name: "x"}) == {name: "x"} or name == "self"
    assert sent(tool, "x", other="y") == {name: "x", "other": "y"}


def test_names_that_become_the_same_are_kept_apart() -> None:
    tool = specification({"a-b": {"type": "integer"}, "a b": {"type": "integer"}, "a_b": {"type": "integer"}})
    assert sent(tool, *range(3)) == {"a-b": 0, "a b": 1, "a_b": 2}
    assert len(properties(tool)) == 3


# --- what a call sends ---------------------------------------------------------------------------

OPTIONAL = {
    "text": {"type": "string"},
    "note": {"type": "string"},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "level": {"type": "integer", "default": 3},
}


def test_omitted_arguments_are_not_sent() -> None:
    assert sent(specification(OPTIONAL, ["text"]), text="x") == {"text": "x"}


def test_null_is_sent_only_where_the_schema_has_it() -> None:
    tool = specification(OPTIONAL, ["text"])
    assert sent(tool, text=None, note=None, limit=None, level=None) == {"text": None, "limit": None}


def test_unknown_arguments_are_left_to_the_server() -> None:
    assert sent(specification(OPTIONAL), volume=11, text=["no", "text"]) == {"volume": 11, "text": ["no", "text"]}


def test_too_many_values_are_refused() -> None:
    with pytest.raises(TypeError, match="takes 1 arguments but 2 were given"):
        bound(specification({"a": {}}))(1, 2)


# --- any schema ----------------------------------------------------------------------------------

names = st.text(max_size=8) | st.sampled_from([*keyword.kwlist, "self", "cls", "args", "kwargs"])


def test_the_text_of_a_recursive_schema_is_a_schema() -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
        "required": ["name", "children"],
    }
    tool = specification({"tree": {"$ref": "#/$defs/Node"}}, definitions={"Node": node})
    text = properties(tool)["tree"]["description"].partition("JSON schema: ")[2]
    written = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(written)
    assert written == {**node, "properties": {**node["properties"], "children": {"type": "array", "items": OBJECT}}}


def test_the_text_of_a_deep_schema_is_a_schema() -> None:
    schema: dict[str, Any] = {"type": "string", "pattern": "x"}
    for _ in range(6):
        schema = {"type": "object", "properties": {"inner": schema}, "required": ["inner"], "enum": [{"inner": "x"}]}
    text = properties(specification({"deep": schema}))["deep"]["description"].partition("JSON schema: ")[2]
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


OBJECT = {"type": "object"}


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate combinations of schemas."""
    unions = st.dictionaries(st.sampled_from(["anyOf", "oneOf", "allOf"]), st.lists(inner, max_size=3), max_size=1)
    arrays = st.fixed_dictionaries({"type": st.just("array"), "items": inner})
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=1)}
    )
    return unions | arrays | objects


schemas: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "unknown"]),
            "description": st.text(max_size=20),
            "default": st.none() | st.integers() | st.text(max_size=5),
            "enum": st.lists(st.none() | st.booleans() | st.integers() | st.text(max_size=5), max_size=3),
            "$ref": st.sampled_from(["#/$defs/A", "#/$defs/B", "elsewhere"]),
            "minimum": st.integers(),
        },
    ),
    combined,
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=60), st.dictionaries(names, schemas, max_size=4), st.dictionaries(st.sampled_from("AB"), schemas)
)
def test_every_tool_is_read_and_gets_what_was_given(
    text: str, given: dict[str, Any], definitions: dict[str, Any]
) -> None:
    tool = specification(given, list(given), text=text, definitions=definitions)
    read = shown(tool)
    aliases = list(read["parameters"]["properties"])
    assert len(aliases) == len(given)
    assert [parameter.name for parameter in tool_parameters(tool)] == list(given)
    assert sent(tool, **{alias: place for place, alias in enumerate(aliases)}) == {
        name: place for place, name in enumerate(given)
    }
    json.dumps(read)
