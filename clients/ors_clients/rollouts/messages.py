"""Messages as trainers and chat templates know them, made from the blocks of an ORS environment.

A message is a plain dict in the OpenAI form: ``role`` and ``content``, which is a string, or a list of parts where the
message holds an image: ``{"type": "text", "text": …}`` and ``{"type": "image", "image": <data URL>}``, the form that
the chat templates of vision models read. Nothing is dropped on the way: images stay in their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

from ors_server import ImageBlock, Message, ReasoningBlock, TextBlock, ToolCallBlock

__all__ = ["ChatMessage", "Content", "chat_messages", "content_of", "images_of", "text_of"]

ChatMessage: TypeAlias = dict[str, Any]
Content: TypeAlias = str | list[dict[str, Any]]


def content_of(blocks: Iterable[TextBlock | ImageBlock]) -> Content:
    """Return the blocks as a message's content: text joined by line breaks, or a list of parts if there is an image."""
    parts = [_part(block) for block in blocks]
    if any(part["type"] == "image" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image", "image": f"data:{block.mimeType};base64,{block.data}"}


def text_of(content: Any) -> str:
    """Return the text of a content, without its images."""
    if isinstance(content, str):
        return content
    parts = cast("list[dict[str, Any]]", content or [])
    return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text")


def images_of(messages: Iterable[ChatMessage]) -> list[str]:
    """Every image of the messages as a data URL, in the order in which a template meets them."""
    found: list[str] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = cast("list[dict[str, Any]]", content)
            found.extend(part["image"] for part in parts if part.get("type") == "image")
    return found


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """Return an environment's opening messages as chat messages."""
    converted: list[ChatMessage] = []
    for message in messages:
        if message.role == "assistant":
            converted.append(_assistant_message(message))
            continue
        plain: list[TextBlock | ImageBlock] = []
        for block in message.blocks:
            if isinstance(block, TextBlock | ImageBlock):
                plain.append(block)
            elif block.type == "tool_result":
                converted.append(
                    {"role": "tool", "tool_call_id": block.tool_call_id, "content": content_of(block.blocks)}
                )
        if plain or not message.blocks:
            converted.append({"role": message.role, "content": content_of(plain)})
    return converted


def _assistant_message(message: Message) -> ChatMessage:
    visible = [block for block in message.blocks if isinstance(block, TextBlock | ImageBlock)]
    converted: ChatMessage = {"role": "assistant", "content": content_of(visible)}
    reasoning = [block.text for block in message.blocks if isinstance(block, ReasoningBlock)]
    if reasoning:
        converted["reasoning_content"] = "\n".join(reasoning)
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if calls:
        converted["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(json.dumps(call.input, default=dict))},
            }
            for call in calls
        ]
    return converted
