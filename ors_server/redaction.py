"""Replace the values of secrets in what leaves the memory of the process: records of sessions, and the log.

In JSON only strings, names of members and numbers are replaced, and never those that give a record its shape: a
session's secret may be ``text`` or ``1795``, and its record is read all the same, with the rewards that were given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from pydantic_core import from_json, to_json

__all__ = ["finds", "forms_of", "redact_json", "redact_text"]

#: A shorter secret is not redacted: it would be found everywhere.
_SHORTEST = 4
#: A secret is found in JSON within JSON so deep: a tool may encode twice what is then encoded as its result.
_DEPTH = 3
_REDACTED = b"[redacted]"
#: Keys of this server or of another (``keys.key.make_secret``).
_KEY_PREFIX = b"ors_"
_KEYS = re.compile(rb"ors_[A-Za-z0-9_-]{43}")

#: Names of members that the protocol has.
_MEMBERS = frozenset(
    (
        *("ok", "output", "error", "error_event", "reason", "scores", "reward", "finished", "blocks", "metadata"),
        *("type", "text", "data", "mimeType", "detail", "signature", "role", "messages", "candidates"),
        *("id", "name", "input", "task_id", "tool_call_id", "is_error"),
    )
)
#: Members whose values say what kind of thing something is, and these values.
_KINDS = {
    "type": frozenset(("text", "image", "reasoning", "tool_call", "tool_result")),
    "role": frozenset(("system", "user", "assistant")),
}
#: Members whose numbers are what the environment gave.
_GIVEN = "reward"


def forms_of(secrets: Iterable[str]) -> list[bytes]:
    """Return the values as they may occur in a text, in JSON, and in JSON within JSON; the longest first."""
    forms: set[str] = set()
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            within = {secret, repr(secret)[1:-1]}
            for _ in range(_DEPTH):
                forms |= within
                within = {json.dumps(form, ensure_ascii=only)[1:-1] for form in within for only in (True, False)}
            forms |= within
    return [form.encode("utf-8", "replace") for form in sorted(forms, key=len, reverse=True)]


def finds(data: bytes, forms: Sequence[bytes]) -> bool:
    """Return whether a text may have forms of secrets, or keys of ors-servers."""
    return _KEY_PREFIX in data or any(form in data for form in forms)


def redact_text(text: str, forms: Sequence[bytes]) -> str:
    """Replace the forms of secrets, and keys of ors-servers, in a text."""
    data = text.encode("utf-8", "replace")
    if _KEY_PREFIX in data:
        data = _KEYS.sub(_REDACTED, data)
    for form in forms:
        if form in data:
            data = data.replace(form, _REDACTED)
    return data.decode()


def redact_json(data: bytes, forms: Sequence[bytes]) -> bytes:
    """Replace the forms of secrets, and keys of ors-servers, in a JSON value, which stays one."""
    if not finds(data, forms):
        return data
    try:
        return to_json(_without(from_json(data), forms, ""))
    except ValueError:  # a number that Python does not read
        return to_json(_REDACTED.decode())


def _without(value: Any, forms: Sequence[bytes], member: str) -> Any:
    if isinstance(value, str):
        return value if value in _KINDS.get(member, ()) else redact_text(value, forms)
    if isinstance(value, list):
        return [_without(each, forms, "") for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {
            name if name in _MEMBERS else redact_text(name, forms): _without(each, forms, name)
            for name, each in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, int | float) and not isinstance(value, bool) and member != _GIVEN:
        return _REDACTED.decode() if str(value).encode() in forms else value
    return value
