"""`openreward.environments`, typed: the SDK has no types of its own, and its authoring surface is the one of ours."""

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
