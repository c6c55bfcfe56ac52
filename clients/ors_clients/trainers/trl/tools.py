"""Tools as Python methods, for trainers that read a model's tools off a class.

TRL takes the public functions of an environment's class, and ``transformers.utils.get_json_schema`` makes of each what
the model is shown: from its ``__name__``, its signature, its annotations and a docstring in Google's form. Here such
functions are made from a server's tool specifications without generating source code, so nothing a server says can be
run, and nothing it says is refused either: a name is any string, and a text is any text.

Invariant: every tool becomes one method, which the schema reader accepts. A call passes on what the model gave, under
the names of the tool's own schema, and nothing more: a parameter left out is not sent. What the reader's type hints
cannot carry (patterns, bounds, nested objects, defaults) is written into the parameter's description.
"""

from __future__ import annotations

import inspect
import json
import keyword
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from ors_server.protocol import ToolSpec

__all__ = ["Parameter", "tool_method", "tool_name", "tool_parameters"]

#: What a method does with a call: the environment, the tool's own name, the input under the tool's own names.
Call = Callable[[Any, str, dict[str, Any]], Any]
Schema = Mapping[str, Any]

_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
#: Keys that a type hint, or the description itself, carries.
_CARRIED = frozenset(
    "$ref additionalProperties allOf anyOf const default description enum oneOf title type".split()  # noqa: SIM905
)
#: How deep a schema is followed; a recursive one would never end.
_DEPTH = 8
_DOCSTRING_SECTION = re.compile(
    r"^[ \t]*(?:Args|Arguments|Parameters):[ \t]*\n(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE
)
_DOCSTRING_ENTRY = re.compile(r"^[ \t]+(\w+)(?: *\([^)\n]*\))?:[ \t]*(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool, as the method has it."""

    #: Its name in the tool's schema, which is the one sent.
    name: str
    #: A Python identifier: the name itself where that is one.
    alias: str
    annotation: Any
    required: bool
    #: One line, never empty.
    description: str
    #: Whether the schema has null among its values; else a null for an optional parameter means it was left out.
    nullable: bool


def tool_name(name: str, taken: Collection[str]) -> str:
    """Return the name a method for the tool gets: its own, unless a trainer or the class cannot use that one.

    ``taken`` are the class's other names. Names that begin with ``_`` are private to TRL, and letters, digits, ``_``
    and ``-`` are what every tool-call format and engine lets through.
    """
    alias = re.sub(r"[^A-Za-z0-9_-]", "_", name).lstrip("_") or "tool"
    while alias in taken:
        alias += "_tool"
    return alias


def tool_method(tool: ToolSpec, name: str, call: Call) -> Callable[..., Any]:
    """Return a function for a class body, which calls ``call(self, tool.name, input)``.

    Its parameters may be given by position too, and under the names of the tool's schema. Names that the tool does
    not have are passed on: the server's answer tells the model what it got wrong.
    """
    parameters = tool_parameters(tool)
    names = {parameter.alias: parameter.name for parameter in parameters}
    not_null = {parameter.name for parameter in parameters if not (parameter.required or parameter.nullable)}

    def method(self: Any, /, *values: Any, **arguments: Any) -> Any:
        if len(values) > len(names):
            raise TypeError(f"{name}() takes {len(names)} arguments but {len(values)} were given")
        given = dict(zip(names.values(), values, strict=False))
        given |= {names.get(alias, alias): value for alias, value in arguments.items()}
        return call(
            self, tool.name, {key: value for key, value in given.items() if value is not None or key not in not_null}
        )

    method.__name__ = method.__qualname__ = name
    method.__doc__ = _docstring(tool, parameters)
    method.__annotations__ = {parameter.alias: parameter.annotation for parameter in parameters} | {"return": str}
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__dict__["__signature__"] = inspect.Signature(
        [receiver, *map(_signature, parameters)], return_annotation=str
    )
    return method


def tool_parameters(tool: ToolSpec) -> list[Parameter]:
    """Return the parameters of a tool, in the order of its schema."""
    schema = cast("Schema", tool.input_schema or {})
    definitions = {**_mapping(schema.get("definitions")), **_mapping(schema.get("$defs"))}
    required = _sequence(schema.get("required"))
    _, documented = _split_docstring(tool.description)
    aliases: set[str] = {"self"}
    parameters: list[Parameter] = []
    for name, value in _mapping(schema.get("properties")).items():
        property_schema = _mapping(value)
        annotation, exact = _annotation(property_schema, definitions, _DEPTH)
        parameters.append(
            Parameter(
                name=name,
                alias=_identifier(name, aliases),
                annotation=annotation,
                required=name in required,
                description=_description(name, property_schema, definitions, documented.get(name, ""), exact),
                nullable=annotation is Any
                or bool({None, type(None)} & {annotation, *getattr(annotation, "__args__", ())}),
            )
        )
        aliases.add(parameters[-1].alias)
    return parameters


# --- names and texts -----------------------------------------------------------------------------


def _identifier(name: str, taken: Collection[str]) -> str:
    alias = re.sub(r"\W", "_", name)
    if not alias.isidentifier():
        alias = "_" + re.sub(r"[^A-Za-z0-9_]", "_", alias)
    while keyword.iskeyword(alias) or alias in taken:
        alias += "_"
    return alias


def _signature(parameter: Parameter) -> inspect.Parameter:
    default = inspect.Parameter.empty if parameter.required else None
    return inspect.Parameter(
        parameter.alias, inspect.Parameter.KEYWORD_ONLY, annotation=parameter.annotation, default=default
    )


def _docstring(tool: ToolSpec, parameters: Sequence[Parameter]) -> str:
    text, _ = _split_docstring(tool.description)
    text = _without_headings(text) or f"Call the {tool.name} tool."
    if not parameters:
        return text
    return "\n".join(
        [text, "", "Args:", *(f"    {parameter.alias}: {parameter.description}" for parameter in parameters)]
    )


def _split_docstring(description: str) -> tuple[str, dict[str, str]]:
    """Return a tool's description without the list of arguments it may end with, and what that says of each."""
    text = inspect.cleandoc(description)
    section = _DOCSTRING_SECTION.search(text)
    if section is None:
        return text, {}
    documented = dict(_DOCSTRING_ENTRY.findall(section.group(1)))
    return (text[: section.start()].rstrip() + "\n\n" + text[section.end() :].lstrip()).strip(), documented


def _without_headings(text: str) -> str:
    """Return the text without what the schema reader would take for the heading of a section."""
    return re.sub(r"(Args|Returns|Raises):", r"\1 -", text).strip()


def _description(name: str, schema: Schema, definitions: Schema, documented: str, exact: bool) -> str:
    text = str(schema.get("description") or documented or schema.get("title") or name)
    text = " ".join(_without_headings(text).split()) or repr(name)
    if not exact:
        shown = {
            key: value for key, value in _resolve(schema, definitions).items() if key not in ("title", "description")
        }
        text += f" JSON schema: {json.dumps(shown, ensure_ascii=False)}"
    elif schema.get("default") is not None:
        text += f" Default: {json.dumps(schema['default'], ensure_ascii=False)}."
    # The schema reader parses "(choices: …)" at the end of a line as JSON, and fails where it is none.
    return text + "." if re.search(r"\(choices:.*\)\s*$", text, re.IGNORECASE) else text


# --- types ---------------------------------------------------------------------------------------


def _annotation(schema: Schema, definitions: Schema, depth: int) -> tuple[Any, bool]:
    """Return a type hint for values of a schema, and whether it says all that the schema does."""
    schema = _reference(schema, definitions)
    if depth == 0:
        return Any, False
    exact = set(schema) <= _CARRIED
    values = [schema["const"]] if "const" in schema else _sequence(schema.get("enum"))
    if values and all(value is None or isinstance(value, str | int | float) for value in values):
        return cast("Any", Literal)[tuple(values)], exact
    options = [_mapping(option) for key in ("anyOf", "oneOf") for option in _sequence(schema.get(key))]
    if not options and len(together := _sequence(schema.get("allOf"))) == 1:  # how some write a reference with a text
        options = [_mapping(together[0])]
    if options:
        hints = [_annotation(option, definitions, depth - 1) for option in options]
        return _union([hint for hint, _ in hints]), exact and all(whole for _, whole in hints)
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = cast("list[str]", kind)
        hints = [_annotation({**schema, "type": one}, definitions, depth - 1) for one in kinds]
        return _union([hint for hint, _ in hints]), exact and all(whole for _, whole in hints)
    if kind == "array":
        items = _mapping(schema.get("items"))
        hint, whole = _annotation(items, definitions, depth - 1) if items else (None, True)
        return (list if hint is None else list[hint]), whole and set(schema) <= _CARRIED | {"items"}
    if kind == "object":
        return dict, exact and not isinstance(schema.get("additionalProperties"), dict)
    return _TYPES.get(str(kind), Any), exact and kind in (*_TYPES, None)


def _union(hints: Sequence[Any]) -> Any:
    if Any in hints:
        return Any
    united, *others = hints
    for hint in others:
        united = united | hint
    return united


def _reference(schema: Schema, definitions: Schema) -> Schema:
    """Return the schema with what its ``$ref`` names, where that is one of its own definitions."""
    if "$ref" not in schema:
        return schema
    named = _mapping(definitions.get(str(schema["$ref"]).rpartition("/")[2]))
    return {**named, **{key: value for key, value in schema.items() if key != "$ref"}}


def _resolve(value: Any, definitions: Schema, depth: int = _DEPTH, within: frozenset[str] = frozenset()) -> Any:
    """Return the schema with every reference replaced, as deep as schemas are followed.

    A definition that contains itself, and a schema that is deeper, is cut to its type: what is left is a schema.
    ``within``: the references that led here.
    """
    if isinstance(value, list):
        return [_resolve(inner, definitions, depth - 1, within) for inner in cast("list[Any]", value)]
    if not isinstance(value, Mapping):
        return value
    given = cast("Schema", value)
    schema = _reference(given, definitions)
    reference = given.get("$ref")
    named = {reference} if isinstance(reference, str) else set[str]()
    if depth <= 0 or named & within:
        kind = schema.get("type")
        return {"type": kind} if isinstance(kind, str) else {}
    within |= named
    return {key: _resolve(inner, definitions, depth - 1, within) for key, inner in schema.items() if key != "$defs"}


def _mapping(value: Any) -> Schema:
    """Return the value if it is an object; a server may send anything."""
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _sequence(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
