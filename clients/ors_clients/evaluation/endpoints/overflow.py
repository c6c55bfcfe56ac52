"""A conversation that no longer fits into the model's context, told from an endpoint's error.

An overflow scores the episode, so nothing else may be taken for one: not a busy endpoint, not a crash, and not an error
that repeats a prompt in which these words stand. Three forms count:

- ``code`` or ``type`` of the error is ``context_length_exceeded`` (OpenAI, Azure, Groq) or
  ``exceed_context_size_error`` (llama.cpp, with status 400 or 500). The status does not matter, unless it is about a
  key, a quota or load.
- The status is 400, 413 or 422, and the message has words for it that are not repeated from the request. vLLM, SGLang,
  TGI, OpenRouter, Anthropic, Gemini, Mistral, DeepSeek, xAI, LM Studio and Ollama answer so.
- An error stands in an answer of status 200, and its ``code`` is such a status: a stream of SGLang, OpenRouter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any, cast

__all__ = ["FINAL", "PASSING", "error_text", "is_overflow"]

#: Statuses of a request that may succeed later, besides 5xx; and of those that none will.
PASSING, FINAL = (408, 409, 425, 429), (401, 402, 403, 404)
#: Statuses with which endpoints refuse one request for what it holds.
_UNFIT = (400, 413, 422)
_CODES = ("context_length_exceeded", "exceed_context_size_error")
_WORDS = re.compile(
    r"context_length_exceeded|(maximum|max|model'?s?) (context|prompt) (length|window)|context (length|window|size) "
    r"(is |was )?(exceed|too)|exceeds? (the )?(model'?s? )?(maximum |available |allowed )*(context|input) ?(length|"
    r"window|size|limit|tokens)|input length .{0,40}exceeds the maximum allowed length|prompt is too long|"
    r"input (is )?too long|input token count .{0,80}exceeds|longer than the (model|maximum model length)|"
    r"greater than the context length|max_model_len|`inputs` (must have less than|tokens \+ `max_new_tokens` must be)",
    re.IGNORECASE,
)
#: Characters of a message that are searched.
_SEARCHED = 20_000
#: Letters and digits around those words that an error has from the request only if it repeats it.
_AROUND = 20
#: What repeating a text may add to it or take from it: escapes, quotes, spaces.
_NO_LETTERS = re.compile(r"\\+(?:u[0-9a-f]{4}|[nrtbf])?|[^a-z0-9\\]+")


def is_overflow(status: int, error: Any, request: Any = None) -> bool:
    """Return whether an error says that the conversation of ``request`` is longer than the model's context.

    ``error`` is the value of the answer's JSON, or its text.
    """
    named = _error_object(error)
    if isinstance(named, dict):
        named = cast("dict[str, Any]", named)
        if status == 200:
            status = _own_status(named.get("code"))
        if status not in (*FINAL, *PASSING, 503) and any(named.get(name) in _CODES for name in ("code", "type")):
            return True
    if status not in _UNFIT:
        return False
    text = (_message(named) or error_text(error))[:_SEARCHED]
    own: list[str] | None = None
    for found in _WORDS.finditer(text):
        if own is None:
            own = [_letters(string) for string in _strings(request)]
        before, after = _letters(text[: found.start()]), _letters(text[found.end() :])
        if not _is_repeated(before, _letters(found[0]), after, own):
            return True
    return False


def error_text(error: Any) -> str:
    """Return the code and the message of an error, or all of it as text."""
    named = _error_object(error)
    if isinstance(named, str):
        return named
    if isinstance(named, dict):
        fields = cast("dict[str, Any]", named)
        if text := " ".join(str(fields[name]) for name in ("code", "message") if fields.get(name)):
            return text
    return json.dumps(named)


def _error_object(error: Any) -> Any:
    return cast("dict[str, Any]", error).get("error", cast("Any", error)) if isinstance(error, dict) else error


def _message(named: Any) -> str:
    message = cast("dict[str, Any]", named).get("message") if isinstance(named, dict) else None
    return message if isinstance(message, str) else ""


def _own_status(code: Any) -> int:
    """Return the status that an error in an answer of status 200 has itself; 200 if it has none."""
    return int(code) if str(code) in map(str, range(400, 600)) else 200


def _letters(text: str) -> str:
    """Return a text's letters and digits, which are the same however it is quoted."""
    return _NO_LETTERS.sub("", text.lower())


def _is_repeated(before: str, words: str, after: str, own: list[str]) -> bool:
    """Return whether the words of an error stand in one of these strings as they stand in the error."""
    least, most = max(0, _AROUND - len(after)), min(_AROUND, len(before))
    whole = before + words + after
    parts = [before[len(before) - left :] + words + after[: _AROUND - left] for left in range(least, most + 1)]
    return any(
        words in string and (string in whole or any(part in string for part in parts or [whole])) for string in own
    )


def _strings(value: Any) -> Generator[str]:
    """Yield the strings of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in cast("dict[str, Any]", value).values():
            yield from _strings(item)
