"""Parameter values written as text, made into what the tool's JSON schema says they are.

Qwen's XML has no types: ``<parameter=count>3</parameter>`` is the text ``3``. The schema decides: a text that is a
valid value of the declared type becomes that value, and any other stays the text that was written, so that the
environment says what is wrong with it. Without a schema a value stays text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from ors_clients.tool_calls.calls import Unreadable, decode_value
from ors_server import ToolSpec

__all__ = ["coerce", "properties_of"]

#: How deep references and alternatives are followed.
_DEPTH = 8


def properties_of(tools: Sequence[ToolSpec], name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a tool's parameters by name, and the schema that their references are resolved in; empty if unknown."""
    for tool in tools:
        if tool.name == name and isinstance(tool.input_schema, Mapping):
            properties = tool.input_schema.get("properties")
            if isinstance(properties, Mapping):
                return properties, tool.input_schema
    return {}, {}


def coerce(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """``text`` as a value of ``schema``; ``text`` itself where the schema allows a string, or nothing fits."""
    types = list(dict.fromkeys(_types(schema, root, _DEPTH)))
    if not types:
        return text
    # A word for null in a parameter that may be null means null, also beside "string".
    if "null" in types and text.strip() in ("null", "None"):
        return None
    if "string" not in types:
        for type in types:
            value = _read(text.strip(), type)
            if value is not _NOTHING:
                return value
    return text


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return
    schema = cast("Mapping[str, Any]", schema)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _types(_resolve(reference, root), root, depth - 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        yield declared
    elif isinstance(declared, Sequence):
        yield from (name for name in cast("Sequence[Any]", declared) if isinstance(name, str))
    if schema.get("nullable") is True:
        yield "null"
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        if isinstance(alternatives, Sequence) and not isinstance(alternatives, str):
            for alternative in cast("Sequence[Any]", alternatives):
                yield from _types(alternative, root, depth - 1)
    if "type" not in schema:
        values = schema.get("enum", [schema["const"]] if "const" in schema else ())
        if isinstance(values, Sequence):
            yield from (_type_of(value) for value in cast("Sequence[Any]", values))


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        if not isinstance(found, Mapping):
            return None
        found = cast("Mapping[str, Any]", found).get(part.replace("~1", "/").replace("~0", "~"))
    return found


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case _:
            return "object"


_NOTHING = object()


def _read(text: str, type: str) -> Any:
    """``text`` as a value of one JSON type; ``_NOTHING`` if it is none."""
    if type == "boolean":
        return {"true": True, "false": False}.get(text.lower(), _NOTHING)
    if type == "null":
        return None if text.lower() in ("null", "none") else _NOTHING
    try:
        value, end = decode_value(text, 0)
    except Unreadable:
        return _NOTHING
    if text[end:].strip() or isinstance(value, bool):
        return _NOTHING
    match type:
        case "integer":
            if isinstance(value, float) and value.is_integer():
                return int(value)
            return value if isinstance(value, int) else _NOTHING
        case "number":
            return value if isinstance(value, int | float) else _NOTHING
        case "object":
            return cast("Any", value) if isinstance(value, dict) else _NOTHING
        case "array":
            return cast("Any", value) if isinstance(value, list) else _NOTHING
        case _:
            return _NOTHING
