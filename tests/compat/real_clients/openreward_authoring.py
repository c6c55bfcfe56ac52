"""`openreward.environments`, with types: the SDK has none, and its authoring interface is the same as ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_server import (
        Environment,
        GroupCandidate,
        GroupScore,
        JSONObject,
        Message,
        Split,
        TextBlock,
        ToolOutput,
        Toolset,
        terminal,
        tool,
    )
else:
    from openreward.environments import (
        Environment,
        GroupCandidate,
        GroupScore,
        JSONObject,
        Message,
        Split,
        TextBlock,
        ToolOutput,
        Toolset,
        terminal,
        tool,
    )

__all__ = [
    "Environment",
    "GroupCandidate",
    "GroupScore",
    "JSONObject",
    "Message",
    "Split",
    "TextBlock",
    "ToolOutput",
    "Toolset",
    "terminal",
    "tool",
]
