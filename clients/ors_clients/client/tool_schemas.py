"""Tools in the form of OpenAI's API, which vLLM and chat templates take as well."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ors_server.protocol import ToolSpec

__all__ = ["openai_tools"]


def openai_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return ``{"type": "function", "function": {"name", "description", "parameters"}}`` for each tool.

    The JSON Schema of a tool is copied; the tools themselves are not changed.
    """
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": _schema(tool)},
        }
        for tool in tools
    ]


def _schema(tool: ToolSpec) -> dict[str, Any]:
    schema: dict[str, Any] = copy.deepcopy(dict(tool.input_schema or {}))
    schema.setdefault("type", "object")  # behind the other keys: templates write them in this order
    schema.setdefault("properties", {})
    return schema
