"""Toolsets that a client names in ``/create`` (``toolset_name``): the built-in toolsets of ``openreward``.

A session toolset is built with the environment's instance when the session is created. Its tools replace those of the
environment with the same names, and its terminal tool replaces the environment's. Toolsets are openreward's code, so
only its classes can have them: the package is then installed, and the instance has what a toolset needs, above all
``sandbox``.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any, cast

from ors_server.hosting.dialects import Dialect, dialect_of
from ors_server.hosting.errors import InvalidToolset
from ors_server.hosting.tools import ToolTable, compile_tools, compile_toolset
from ors_server.protocol import ListToolsOutput
from ors_server.settings import ReturnErrors

__all__ = ["build_toolset", "find_toolset", "listing_with", "tools_with"]


def find_toolset(cls: type, name: str) -> type:
    """Find the toolset of this name for sessions of an environment class. Raises ``InvalidToolset``."""
    if dialect_of(cls) is not Dialect.OPENREWARD:
        raise InvalidToolset(
            f"unknown toolset {name!r}; valid options are []",
            f"{cls.__name__} is not a class of openreward, whose toolsets these are; give the class its toolsets.",
        )
    toolsets = cast("dict[str, type]", importlib.import_module("openreward.toolsets").BUILTIN_TOOLSETS)
    found = toolsets.get(name)
    if found is None:
        raise InvalidToolset(f"unknown toolset {name!r}; valid options are {sorted(toolsets)}")
    return found


def build_toolset(toolset: type, instance: Any, return_errors: ReturnErrors) -> Any:
    """Build a toolset for an instance. Raises ``InvalidToolset`` where the instance lacks what it needs."""
    try:
        return toolset(instance)
    except ValueError as error:  # the base class's check for `sandbox`
        reason = "the environment has no `sandbox`" if return_errors == "none" else str(error)
        raise InvalidToolset(f"toolset {toolset.__name__} cannot be used with this environment: {reason}") from error


@functools.cache
def tools_with(cls: type, toolset: type) -> ToolTable:
    """Compile the tools of an environment class for sessions with a toolset. Raises ``DefinitionError``."""
    table = compile_tools(cls)
    added, terminal = compile_toolset(cls, toolset)
    kept = {
        name: tool
        for name, tool in table.tools.items()
        if name not in added and not (terminal is not None and tool.is_terminal)
    }
    return dataclasses.replace(
        table,
        tools=kept | added,
        terminal=terminal or table.terminal,
        collisions={name: where for name, where in table.collisions.items() if name not in added},
    )


def listing_with(listing: ListToolsOutput, table: ToolTable, toolset: type) -> ListToolsOutput:
    """Add the tools of a session's toolset, from ``table``, to the listing of its environment."""
    added = [tool for tool in table.tools.values() if tool.owner is toolset and tool.shared and not tool.is_terminal]
    hidden = {tool.name for tool in added}
    if table.terminal is not None:
        hidden.add(table.terminal.name)
    tools = [spec for spec in listing.tools if spec.name not in hidden]
    return listing.model_copy(
        update={"tools": [*tools, *(tool.spec for tool in added)], "terminal_tool": table.terminal}
    )
