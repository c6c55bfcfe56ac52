"""Tools as inference APIs take them: in OpenAI's form (vLLM's and chat templates' too), Anthropic's and Google's.

The first two take JSON Schema as it is. Google's ``Schema`` is a subset of OpenAPI 3.0 without references, so these are
put in place; what it has no word for is left out, which makes the schema allow more and never less: a model's call that
fits the original always fits the copy. The tools themselves are never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ors_server.protocol import ToolSpec

__all__ = ["anthropic_tools", "google_tools", "openai_tools"]

#: What Google's Schema takes (ai.google.dev/api/caching, "Schema"), less what is translated.
_GOOGLE_KEYS = frozenset(
    [
        "default",
        "description",
        "format",
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
        "required",
        "title",
    ]
)
#: Formats that it knows; any other is refused for strings.
_GOOGLE_FORMATS = frozenset(["enum", "date-time", "float", "double", "int32", "int64"])


def openai_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """``{"type": "function", "function": {"name", "description", "parameters"}}`` for each tool."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": _schema(tool)},
        }
        for tool in tools
    ]


def anthropic_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """``{"name", "description", "input_schema"}`` for each tool."""
    return [{"name": tool.name, "description": tool.description, "input_schema": _schema(tool)} for tool in tools]


def google_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """A function declaration, ``{"name", "description", "parameters"}``, for each tool.

    They go into ``{"function_declarations": […]}``. A tool without input has no ``parameters``: an object without
    properties is refused there.
    """
    declarations: list[dict[str, Any]] = []
    for tool in tools:
        declaration: dict[str, Any] = {"name": tool.name, "description": tool.description}
        schema = _schema(tool)
        if schema.get("properties"):
            declaration["parameters"] = _google(schema, cast("dict[str, Any]", schema.get("$defs", {})), ())
        declarations.append(declaration)
    return declarations


def _schema(tool: ToolSpec) -> dict[str, Any]:
    if tool.input_schema is None:
        return {"type": "object", "properties": {}}
    schema: dict[str, Any] = copy.deepcopy(dict(tool.input_schema))
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return schema


def _google(value: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    """A schema in Google's words; ``inside`` are the references it stands in."""
    if not isinstance(value, dict):
        return {}  # true: anything
    schema = cast("dict[str, Any]", value)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        if name in inside or name not in definitions:
            return {"type": "object"}  # a tree: its leaves' shape cannot be said
        own = {key: entry for key, entry in schema.items() if key != "$ref"}
        return _google({**cast("dict[str, Any]", definitions[name]), **own}, definitions, (*inside, name))
    result = {key: copy.deepcopy(entry) for key, entry in schema.items() if key in _GOOGLE_KEYS}
    if result.get("format") not in _GOOGLE_FORMATS:
        result.pop("format", None)
    if result.get("default", ...) is None:
        del result["default"]
    _translate_type(schema, result)
    _translate_values(schema, result)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list):
        _translate_choices(cast("list[Any]", choices), result, definitions, inside)
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(cast("list[Any]", parts)) == 1:
        result = {**_google(parts[0], definitions, inside), **result}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        named = cast("dict[str, Any]", properties)
        result["properties"] = {key: _google(entry, definitions, inside) for key, entry in named.items()}
    if result.get("type") == "array":
        items = schema.get("items")
        result["items"] = _google(items, definitions, inside) if items is not None else {"type": "string"}
    return result


def _translate_type(schema: Mapping[str, Any], result: dict[str, Any]) -> None:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [entry for entry in cast("list[Any]", kind) if entry != "null"]
        if len(kinds) < len(cast("list[Any]", kind)):
            result["nullable"] = True
        if len(kinds) == 1:
            result["type"] = kinds[0]
        elif kinds:
            result["anyOf"] = [{"type": entry} for entry in kinds]
    elif kind is not None:
        result["type"] = kind


def _translate_values(schema: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Enumerations: only strings may be enumerated there."""
    values: Any = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and all(isinstance(entry, str) for entry in cast("list[Any]", values)):
        result["type"] = "string"
        result["enum"] = list(cast("list[str]", values))


def _translate_choices(
    choices: Sequence[Any], result: dict[str, Any], definitions: Mapping[str, Any], inside: tuple[str, ...]
) -> None:
    kept = [choice for choice in choices if choice != {"type": "null"}]
    if len(kept) < len(choices):
        result["nullable"] = True
    translated = [_google(choice, definitions, inside) for choice in kept]
    if len(translated) == 1:
        for key, entry in translated[0].items():
            result.setdefault(key, entry)
    elif translated:
        result["anyOf"] = translated
