"""`ors`, with our types: its own types reject what its documentation shows (a plain `list_splits`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_server import (
        Environment,
        JSONObject,
        ListToolsOutput,
        Split,
        TextBlock,
        ToolOutput,
        Toolset,
        ToolSpec,
        tool,
    )
else:
    from ors import (
        Environment,
        JSONObject,
        ListToolsOutput,
        Split,
        TextBlock,
        ToolOutput,
        Toolset,
        ToolSpec,
        tool,
    )

__all__ = [
    "Environment",
    "JSONObject",
    "ListToolsOutput",
    "Split",
    "TextBlock",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "tool",
]
