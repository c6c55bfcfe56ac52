"""Chat completions as values: read whole or put together from a stream, and never guessed.

A completion is read strictly where a wrong reading would change a score: half a stream, an error instead of an answer,
and text or calls of another shape are ``BadAnswer``, for which the model is not to blame. The arguments of a call stay
the text the model wrote, JSON or not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from ors_clients.evaluation.endpoints.message_fields import arguments_text, content_text, id_text, string
from ors_clients.evaluation.endpoints.streamed_calls import StreamedCalls
from ors_clients.transport.json_codec import read_json
from ors_clients.transport.sse import EventParser

__all__ = ["BadAnswer", "Completion", "StreamedAnswer", "read_completion"]

#: Names under which endpoints send the model's thinking.
_REASONING = ("reasoning_content", "reasoning")
#: Reasons for the end of a generation that are the engine's.
_BROKEN_OFF = ("abort", "error")
#: Tokens of a request beyond which a count is a mistake of the endpoint.
_MOST_TOKENS = 10**9
#: Characters of an answer that an error repeats, before secrets are taken out of it and it is shortened.
_LONGEST_TEXT = 10_000


class BadAnswer(Exception):
    """An answer that is not a chat completion; ``kind`` is a word for the report."""

    status = 200

    def __init__(self, kind: str, text: str, error: Any = None) -> None:
        super().__init__(text)
        self.kind = kind
        #: The answer, if it is an error.
        self.error = error


@dataclass(frozen=True)
class Completion:
    """One message of the model."""

    text: str
    #: The model's thinking, and the name under which the endpoint sent it.
    reasoning: str
    reasoning_name: str
    #: ``{"id", "type", "function": {"name", "arguments"}}``; an id may be empty.
    tool_calls: list[dict[str, Any]]
    finish: str
    #: None where the endpoint did not say.
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int


def read_completion(answer: Any) -> Completion:
    """Read the answer of a request without streaming. Raises ``BadAnswer``."""
    try:
        choice = answer["choices"][0]
        message = choice["message"]
        _ = message.items()
        failed = answer.get("error")
    except (LookupError, TypeError, AttributeError):
        raise _unusable(answer) from None
    if failed:
        raise _unusable(answer)
    return _completion(message, choice.get("finish_reason"), answer.get("usage"))


def _unusable(answer: Any) -> BadAnswer:
    text = json.dumps(answer)[:_LONGEST_TEXT]
    if isinstance(answer, dict) and "error" in answer:
        return BadAnswer("error as answer", text, cast("dict[str, Any]", answer))
    return BadAnswer("no completion", text)


def _completion(message: dict[str, Any], finish: Any, usage: Any) -> Completion:
    if finish in _BROKEN_OFF:
        raise BadAnswer("broken off", f"finish_reason is {finish!r}")
    name = next((name for name in _REASONING if message.get(name)), "")
    calls: list[Any] = message.get("tool_calls") or []
    try:
        text, reasoning = content_text(message.get("content")), content_text(message.get(name)) if name else ""
        read = [_call(call) for call in calls]
        finish = string(finish) or "stop"
    except (LookupError, TypeError, AttributeError, ValueError):
        raise BadAnswer("no completion", f"a message of another shape: {json.dumps(message)}"[:_LONGEST_TEXT]) from None
    counts = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    prompt, completion = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    details = counts.get("prompt_tokens_details")
    cached = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else None
    return Completion(text, reasoning, name, read, finish, prompt, completion, _count(cached) or 0)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    name, arguments = function["name"], arguments_text(function.get("arguments"))
    if not isinstance(name, str):
        raise TypeError
    return {
        "id": id_text(call.get("id")),
        "type": "function",
        # No arguments are written as no text by some servers.
        "function": {"name": name, "arguments": arguments if arguments.strip() else "{}"},
    }


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None


class StreamedAnswer:
    """A completion that arrives in pieces."""

    def __init__(self) -> None:
        self._events = EventParser()
        self._message: dict[str, list[str]] = {}
        self._calls = StreamedCalls()
        self._finish: Any = None
        self._usage: Any = None

    def feed(self, piece: bytes) -> None:
        """Read a piece of the stream. Raises ``BadAnswer``."""
        for event in self._events.feed(piece):
            if event.data.strip() == b"[DONE]":
                continue
            try:
                chunk: Any = read_json(event.data)
            except ValueError:
                raise BadAnswer("no JSON", f"no JSON in the stream: {event.data[:_LONGEST_TEXT]!r}") from None
            try:
                self._add(chunk)
            except (LookupError, TypeError, AttributeError, ValueError):
                raise _unusable(chunk) from None

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            raise _unusable(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            if choice.get("index") not in (None, 0):
                continue  # another answer to the same request, as --extra n=2 asks for
            delta: dict[str, Any] = choice.get("delta") or {}
            for name in ("content", *_REASONING):
                if text := content_text(delta.get(name)):
                    self._message.setdefault(name, []).append(text)
            pieces: list[Any] = delta.get("tool_calls") or []
            for piece in pieces:
                self._calls.add(piece)
            self._finish = choice.get("finish_reason") or self._finish

    def completion(self) -> Completion:
        """Return the whole message. Raises ``BadAnswer`` for a stream that ended before it."""
        if self._finish is None:
            raise BadAnswer("half a stream", "the stream ended before the message did")
        texts = {name: "".join(parts) for name, parts in self._message.items()}
        return _completion({**texts, "tool_calls": self._calls.whole()}, self._finish, self._usage)
