"""Replace the values of secrets in what leaves the memory of the process: records of sessions, and the log.

In JSON only strings, names of members and numbers are replaced, and never those that give a record its shape: a
session's secret may be ``text`` or ``1795``, and its record is read all the same, with the rewards that were given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic_core import to_json

__all__ = ["finds", "forms_of", "redact_json", "redact_text", "redact_value"]

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
    return (_KEY_PREFIX in data and _KEYS.search(data) is not None) or any(form in data for form in forms)


def redact_text(text: str, forms: Sequence[bytes]) -> str:
    """Replace the forms of secrets, and keys of ors-servers, in a text."""
    data = text.encode("utf-8", "replace")
    if _KEY_PREFIX in data:
        data = _KEYS.sub(_REDACTED, data)
    for form in forms:
        if form in data:
            data = data.replace(form, _REDACTED)
    return data.decode()


def redact_json(data: bytes, forms: Sequence[bytes], otherwise: bytes) -> bytes:
    """Replace the forms of secrets, and keys of ors-servers, in a JSON value, which stays one.

    The rewards of a call's result and of scores stay. Return ``otherwise`` where Python does not read the value.
    """
    if not finds(data, forms):
        return data
    try:
        value = json.loads(data)
        found = redact_value(value, forms)
        for given, shown in _rewarded(value, found):
            shown["reward"] = given["reward"]
        return to_json(found)
    except (ValueError, RecursionError):
        return otherwise


def redact_value(value: Any, forms: Sequence[bytes]) -> Any:
    """Replace the forms of secrets, and keys of ors-servers, in the texts, names and numbers of a JSON value."""
    return _without(value, forms, frozenset(filter(None, map(_number, forms))), "")


def _rewarded(value: Any, found: Any) -> Iterable[tuple[Any, Any]]:
    """Yield the objects in which the environment gave a reward, before and after."""
    if isinstance(value, dict):
        before, after = cast("dict[str, Any]", value), cast("dict[str, Any]", found)
        pairs: list[tuple[Any, Any]] = [(before.get("output"), after.get("output"))]
        if isinstance(before.get("scores"), list):
            pairs += zip(before["scores"], after["scores"], strict=True)
        for given, shown in pairs:
            if isinstance(given, dict) and "reward" in given:
                yield cast("dict[str, Any]", given), shown


def _number(form: bytes) -> float | None:
    """Return the number that a secret is; None for one of few digits, which would be found everywhere."""
    try:
        number = abs(float(form))
    except ValueError:
        return None
    digits = sum(map(str.isdigit, repr(number).removesuffix(".0")))
    return number if digits >= _SHORTEST else None


def _without(value: Any, forms: Sequence[bytes], numbers: Collection[float], member: str) -> Any:
    if isinstance(value, str):
        return value if value in _KINDS.get(member, ()) else redact_text(value, forms)
    if isinstance(value, Mapping):
        kept: dict[str, Any] = {}
        for name, each in cast("Mapping[str, Any]", value).items():
            shown = name if name in _MEMBERS else redact_text(str(name), forms)
            number = 2
            while shown in kept:  # two names that hold secrets
                shown, number = f"{_REDACTED.decode()} {number}", number + 1
            kept[shown] = _without(each, forms, numbers, name)
        return kept
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_without(each, forms, numbers, "") for each in cast("Sequence[Any]", value)]
    if numbers and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) in numbers:
        return _REDACTED.decode()
    return value
