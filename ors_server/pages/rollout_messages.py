"""Messages of a rollout as a page shows them: who says it, its text, its reward, and when it was said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ors_server.pages.markdown import has_markdown
from ors_server.pages.tokens import Tokens, read_tokens

__all__ = ["MOST_MARKDOWN", "ShownMessage", "shown_messages"]

_TITLES = {
    "system_message": "System",
    "user_message": "User",
    "assistant_message": "Assistant",
    "reasoning": "Thinking",
    "tool_call": "Tool call",
    "tool_result": "Output",
}
_FAILED = "Error"
#: Messages that people and models write; what tools print is not Markdown.
_SAID = frozenset(("system_message", "user_message", "assistant_message", "reasoning"))
#: Characters of a page that are read as Markdown, which takes about 1.5 s for a million.
MOST_MARKDOWN = 60_000
#: Keys of metadata that a page shows by themselves.
_SHOWN = ("tokens", "seconds", "inside_ms", "waiting_ms")


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message of a rollout."""

    number: int
    type: str
    title: str
    #: The tool of a call, or of a result.
    tool: str
    text: str
    reward: float | None
    finished: bool
    #: Seconds since the first message.
    after: float | None
    #: Seconds that the tool or the model took, and that a call waited before, where the rollout has them.
    took: float | None
    waited: float | None
    #: Whether it is the result of a call that failed, or was refused.
    failed: bool
    #: Whether its text is shown as Markdown.
    markdown: bool
    tokens: Tokens | None
    metadata: dict[str, Any]


def shown_messages(messages: Iterable[Mapping[str, Any]], *, most: int = MOST_MARKDOWN) -> list[ShownMessage]:
    """Return the messages of a rollout in their order; at most so many characters are shown as Markdown."""
    shown: list[ShownMessage] = []
    tools: dict[str, str] = {}
    first: datetime | None = None
    for number, message in enumerate(messages):
        sent = _moment(message.get("sent_at"))
        first = first or sent
        call, name = message.get("call_id"), message.get("name") or ""
        if call and name:
            tools[call] = name
        metadata: dict[str, Any] = dict(message.get("metadata") or {})
        tokens = read_tokens(metadata)
        failed = message["type"] == "tool_result" and bool(metadata.get("error") or metadata.get("refused"))
        text = message.get("content") or message.get("summary") or message.get("content_reference") or ""
        markdown = message["type"] in _SAID and len(text) <= most and has_markdown(text)
        most -= len(text) if markdown else 0
        shown.append(
            ShownMessage(
                number,
                message["type"],
                _FAILED if failed else _TITLES.get(message["type"], "Message"),
                name or tools.get(call or "", ""),
                text,
                message.get("reward"),
                bool(message.get("is_finished")),
                (sent - first).total_seconds() if sent is not None and first is not None else None,
                _seconds(metadata, "seconds", 1) or _seconds(metadata, "inside_ms", 1000),
                _seconds(metadata, "waiting_ms", 1000),
                failed,
                markdown,
                tokens,
                {key: value for key, value in metadata.items() if key not in _SHOWN},
            )
        )
    return shown


def _seconds(metadata: Mapping[str, Any], name: str, parts: int) -> float | None:
    """Return a time of metadata, of which ``parts`` make a second."""
    value = metadata.get(name)
    return value / parts if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
