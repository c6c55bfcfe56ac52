"""Fallbacks for chat templates: ChatML, and messages in terms that every template knows.

Tool results become user messages in Qwen's form, system messages the head of the first user message, and images a
remark in their place. Nothing is left out silently.
"""

from __future__ import annotations

from typing import Any

from ors_clients.rollouts.messages import ChatMessage, Content, text_of

__all__ = ["chatml", "merge_system", "part_text", "parts_of", "without_images", "wrapped"]


def chatml(message: ChatMessage) -> str:
    """Return a message as ChatML."""
    return f"<|im_start|>{message['role']}\n{text_of(message['content'])}<|im_end|>"


def parts_of(content: Content) -> list[dict[str, Any]]:
    """Return a content as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def part_text(part: dict[str, Any]) -> str:
    """Return a part as text; an image is named."""
    return part["text"] if part["type"] == "text" else "[an image that this model cannot see]"


def without_images(content: list[dict[str, Any]]) -> str:
    """Parts as one text, with the place of each image named."""
    return "\n".join(map(part_text, content))


def wrapped(content: Content) -> Content:
    """Return a tool's result as a part of a user message (Qwen's form)."""
    if isinstance(content, str):
        return f"<tool_response>\n{content}\n</tool_response>"
    return [*parts_of("<tool_response>\n"), *content, *parts_of("\n</tool_response>")]


def merge_system(messages: list[ChatMessage]) -> list[ChatMessage]:
    """System messages at the head of the first user message, for templates that know none."""
    system = [text_of(message["content"]) for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if not system:
        return rest
    head = "\n\n".join(system)
    if rest and rest[0]["role"] == "user":
        content: Content = rest[0]["content"]
        merged = f"{head}\n\n{content}" if isinstance(content, str) else [*parts_of(f"{head}\n\n"), *content]
        return [{**rest[0], "content": merged}, *rest[1:]]
    return [{"role": "user", "content": head}, *rest]
