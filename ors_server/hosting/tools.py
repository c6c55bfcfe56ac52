"""Compile an environment class's tools to a table, once.

``compile_tools`` finds and checks every tool, with its input validator, schema and marks. Calls introspect nothing;
``tool_runner`` runs them.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

from pydantic import BaseModel

from ors_server.errors import DefinitionError
from ors_server.hosting.dialects import Dialect, dialect_of, overrides
from ors_server.protocol import (
    SUPPORTED_MESSAGE_BLOCK_TYPES,
    JSONObject,
    ListToolsOutput,
    TerminalToolSpec,
    ToolSpec,
)

__all__ = ["Tool", "ToolTable", "compile_tools", "compile_toolset", "is_tool_output"]


@dataclass(slots=True, frozen=True)
class Tool:
    """One compiled tool."""

    name: str
    description: str
    #: The toolset class the method lives on; None for the environment itself.
    owner: type | None
    #: The pydantic model of the input; None for a tool without input.
    model: type[BaseModel] | None
    schema: JSONObject | None
    is_async: bool
    shared: bool
    concurrent: bool
    exclusive: bool
    is_terminal: bool

    @property
    def spec(self) -> ToolSpec:
        """The tool as clients see it."""
        return ToolSpec(name=self.name, description=self.description, input_schema=self.schema)


@dataclass(slots=True)
class ToolTable:
    """All tools of a class, in listing order: the environment's by name, then each toolset's by name."""

    tools: dict[str, Tool]
    terminal: TerminalToolSpec | None
    supports_score_group: bool
    #: Names that a class of another SDK defines twice, with the toolset: those SDKs report it when the tool is called.
    collisions: dict[str, str]
    #: Reasons why tools of a class of another SDK were left out, for the log.
    dropped: list[str]
    #: The result of the author's own ``list_tools()``, if there is one.
    own_listing: ListToolsOutput | None
    #: Whether a session has only those ``shared=False`` tools that the author's own ``list_tools`` or
    #: ``list_task_tools`` names. True in a class of another SDK that has one of these methods.
    only_listed: bool = False
    has_task_tools: bool = False
    #: Types of tool results that were checked to be a ``ToolOutput``.
    output_types: set[type] = field(default_factory=set[type])

    def listing(self, *, session: bool = False) -> ListToolsOutput:
        """List the shared tools, and for a session the ``shared=False`` tools unless the author's method lists them.

        The terminal tool is in neither list.
        """
        unshared = session and not self.only_listed
        tools = [tool.spec for tool in self.tools.values() if not tool.is_terminal and (unshared or tool.shared)]
        if self.own_listing is not None:
            listed = {spec.name for spec in self.own_listing.tools}
            hidden = [spec for spec in tools if spec.name not in listed and not self.tools[spec.name].shared]
            tools = [*self.own_listing.tools, *hidden]
        return ListToolsOutput(
            tools=tools,
            terminal_tool=self.terminal,
            supports_score_group=self.supports_score_group,
            message_block_types=list(SUPPORTED_MESSAGE_BLOCK_TYPES),
        )


@functools.cache
def compile_tools(cls: type) -> ToolTable:
    """Compile the tools of an environment class.

    Raises ``DefinitionError`` with the right signature for a malformed tool. In a class written for another SDK a
    malformed tool is left out instead, as in that SDK, and named in ``dropped``: the class must work unchanged.
    """
    lenient = dialect_of(cls) is not Dialect.OWN
    tools: dict[str, Tool] = {}
    collisions: dict[str, str] = {}
    dropped: list[str] = []
    declared: Any = getattr(cls, "toolsets", None) or ()
    toolsets: list[Any] = list(cast("list[Any]", declared)) if isinstance(declared, (list, tuple)) else [declared]
    for toolset in toolsets:
        if not inspect.isclass(toolset):
            raise DefinitionError(f"{cls.__name__}.toolsets: {toolset!r} is not a class", "List the classes.")
    owners: list[type | None] = [None, *toolsets]
    terminal: Tool | None = None
    for owner in owners:
        scope = owner or cls
        for name in dir(scope):
            function = inspect.getattr_static(scope, name, None)
            function = getattr(function, "__func__", function)
            if not callable(function) or not _is_marked(function):
                continue
            label = f"{scope.__name__}.{name}"
            try:
                found = _compile_tool(cls, owner, name, function, label)
            except DefinitionError as error:
                if not lenient or getattr(function, "_env_tool_terminal", False):
                    raise
                dropped.append(str(error))
                continue
            if name in tools:
                other = tools[name].owner
                where = "the environment" if other is None else f"toolset {other.__name__!r}"
                if not lenient or found.shared:
                    raise DefinitionError(
                        f"Tool name collision: {name!r} is defined in both {where} and toolset {scope.__name__!r}",
                        "Rename one of them.",
                    )
                collisions[name] = scope.__name__
                continue
            if found.is_terminal:
                if terminal is not None:
                    raise DefinitionError(
                        f"{cls.__name__} has two terminal tools: {terminal.name!r} and {name!r}",
                        "Keep @terminal on one of them.",
                    )
                terminal = found
            tools[name] = found
    return ToolTable(
        tools=tools,
        terminal=None if terminal is None else _terminal_spec(terminal),
        supports_score_group=overrides(cls, "score_group"),
        collisions=collisions,
        dropped=dropped,
        own_listing=_own_listing(cls),
        only_listed=lenient and (overrides(cls, "list_task_tools") or overrides(cls, "list_tools")),
        has_task_tools=overrides(cls, "list_task_tools"),
    )


def compile_toolset(cls: type, toolset: type) -> tuple[dict[str, Tool], TerminalToolSpec | None]:
    """Compile the tools that a toolset adds to sessions of an environment class, and its terminal tool.

    Raises ``DefinitionError`` for a malformed terminal tool; other malformed tools are left out, as in openreward.
    """
    tools: dict[str, Tool] = {}
    terminal: TerminalToolSpec | None = None
    for name in dir(toolset):
        function = inspect.getattr_static(toolset, name, None)
        function = getattr(function, "__func__", function)
        if not callable(function) or not _is_marked(function):
            continue
        try:
            tools[name] = _compile_tool(cls, toolset, name, function, f"{toolset.__name__}.{name}")
        except DefinitionError:
            if getattr(function, "_env_tool_terminal", False):
                raise
            continue
        if tools[name].is_terminal:
            terminal = _terminal_spec(tools[name])
    return tools, terminal


def _is_marked(function: Any) -> bool:
    return bool(getattr(function, "_env_tool", False) or getattr(function, "_env_tool_terminal", False))


def _compile_tool(cls: type, owner: type | None, name: str, function: Any, label: str) -> Tool:
    signature = (
        f"`def {name}(self, params: YourModel) -> ToolOutput` (YourModel a pydantic BaseModel), or without params"
    )
    is_terminal = bool(getattr(function, "_env_tool_terminal", False))
    if not getattr(function, "_env_tool", False):
        raise DefinitionError(f"{label} is marked @terminal but is not a tool", "Put @tool above it as well.")
    real = inspect.unwrap(function)
    try:
        hints = get_type_hints(real, include_extras=True)
    except NameError as error:
        raise DefinitionError(
            f"{label} has an annotation that cannot be resolved: {error}",
            "Define or import the name at the top of the module, not under TYPE_CHECKING or inside a function.",
        ) from error
    parameters = list(inspect.signature(real).parameters.values())
    if parameters and not isinstance(inspect.getattr_static(owner or cls, name), staticmethod):
        parameters = parameters[1:]
    if not is_tool_output(hints.get("return")):
        got = "has no return annotation" if "return" not in hints else f"returns {_show(hints['return'])}"
        raise DefinitionError(f"Tool {label} {got}; a tool returns ToolOutput", f"Write {signature}.")
    if len(parameters) > 1:
        names = ", ".join(parameter.name for parameter in parameters)
        raise DefinitionError(
            f"Tool {label} takes {len(parameters)} parameters ({names}); a tool takes one pydantic model or nothing",
            f"Make them fields of one model. Write {signature}.",
        )
    model: type[BaseModel] | None = None
    if parameters:
        annotation = hints.get(parameters[0].name)
        if not (inspect.isclass(annotation) and issubclass(annotation, BaseModel)):
            got = "no annotation" if annotation is None else f"type {_show(annotation)}"
            raise DefinitionError(
                f"Parameter {parameters[0].name!r} of tool {label} has {got}; it must be a pydantic model",
                f"Write {signature}.",
            )
        model = annotation
    concurrent = bool(getattr(function, "_env_tool_concurrent", False))
    if is_terminal and concurrent:
        raise DefinitionError(
            f"Terminal tool {label} is concurrent, but it grades the episode and must run alone",
            "Remove concurrent=True.",
        )
    if is_terminal and model is not None and len(model.model_fields) > 1:
        raise DefinitionError(
            f"Terminal tool {label} takes {len(model.model_fields)} fields, but it only gets the assistant's message",
            "Give its model one field, or none.",
        )
    exclusive = is_terminal or bool(getattr(function, "_env_tool_exclusive", False))
    return Tool(
        name=name,
        description=(function.__doc__ or "").strip(),
        owner=owner,
        model=model,
        schema=None if model is None else model.model_json_schema(),
        is_async=inspect.iscoroutinefunction(function),
        shared=bool(getattr(function, "_env_tool_shared", True)),
        # ors-sdk has no locks: its authors expect that asynchronous tools overlap.
        concurrent=(concurrent or dialect_of(cls) is Dialect.ORS) and not exclusive,
        exclusive=exclusive,
        is_terminal=is_terminal,
    )


def _terminal_spec(tool: Tool) -> TerminalToolSpec:
    fields = list(tool.model.model_fields) if tool.model is not None else []
    return TerminalToolSpec(name=tool.name, arg=fields[0] if fields else None, description=tool.description)


def _own_listing(cls: type) -> ListToolsOutput | None:
    if not overrides(cls, "list_tools"):
        return None
    listing = cast(Any, cls).list_tools()
    return ListToolsOutput(tools=[ToolSpec.model_validate(dict(tool)) for tool in listing.tools])


def is_tool_output(annotation: Any) -> bool:
    """Return whether this is the ``ToolOutput`` of one of the three packages, or derived from it."""
    return (
        inspect.isclass(annotation)
        and issubclass(annotation, BaseModel)
        and any(base.__name__ == "ToolOutput" for base in annotation.__mro__)
        and {"blocks", "metadata", "reward", "finished"} <= set(annotation.model_fields)
    )


def _show(annotation: Any) -> str:
    return annotation.__name__ if inspect.isclass(annotation) else str(annotation)
