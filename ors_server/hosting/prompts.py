"""Flatten a conversation to prompt blocks, for clients that only know ``/prompt``.

A single user message of text and images is unchanged. Otherwise each message gets a ``[role]`` header block, and
reasoning, tool calls and tool results become text (protocol, section 5). The messages may be of either SDK: the
``type`` of a block says what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ors_server.protocol import ImageBlock, TextBlock

__all__ = ["flatten_messages"]


def flatten_messages(messages: Sequence[Any]) -> list[TextBlock | ImageBlock]:
    """Convert messages for ``/messages`` to blocks for ``/prompt``."""
    if len(messages) == 1 and messages[0].role == "user":
        only: list[Any] = list(messages[0].blocks)
        if all(block.type in ("text", "image") for block in only):
            return only
    blocks: list[TextBlock | ImageBlock] = []
    for message in messages:
        blocks.append(TextBlock(text=f"[{message.role}]", detail={"role": message.role}))
        for block in message.blocks:
            blocks.extend(_flatten_block(block))
    return blocks


def _flatten_block(block: Any) -> Iterator[Any]:
    if block.type == "reasoning":
        yield TextBlock(text=f"<think>{block.text}</think>", detail={"type": "reasoning"})
    elif block.type == "tool_call":
        text = f"[tool_call {block.name}] {json.dumps(dict(block.input))}"
        yield TextBlock(text=text, detail={"type": "tool_call", "id": block.id})
    elif block.type == "tool_result":
        text = "[tool_result (error)]" if block.is_error else "[tool_result]"
        yield TextBlock(text=text, detail={"type": "tool_result", "tool_call_id": block.tool_call_id})
        yield from block.blocks
    else:
        yield block
