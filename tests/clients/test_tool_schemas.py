"""Tools in the form of OpenAI's API."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ors_clients.client.tool_schemas import openai_tools

from ors_server.protocol import ToolSpec


def test_a_schema_is_passed_on_as_a_copy() -> None:
    properties: dict[str, Any] = {"p": {"$ref": "#/$defs/Point"}}
    schema: dict[str, Any] = {"$defs": {"Point": {}}, "required": ["p"], "properties": properties, "type": "object"}
    spec = ToolSpec(name="use", description="Use it.", input_schema=schema)
    before = copy.deepcopy(spec)
    (made,) = openai_tools([spec])
    function = made["function"]
    assert made == {"type": "function", "function": function}
    assert function == {"name": "use", "description": "Use it.", "parameters": schema}
    assert list(function["parameters"]) == list(schema)  # templates write the keys in this order
    function["parameters"]["$defs"].clear()
    assert spec == before


@pytest.mark.parametrize("schema", [None, {}])
def test_a_tool_without_input_has_an_empty_object(schema: Any) -> None:
    spec = ToolSpec(name="use", description="", input_schema=schema)
    assert openai_tools([spec])[0]["function"]["parameters"] == {"type": "object", "properties": {}}
