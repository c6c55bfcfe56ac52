"""Replace the values of secrets in texts that leave the memory of the process: records of sessions, and the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

__all__ = ["forms_of", "redact"]

#: A shorter secret is not redacted: it would be found everywhere.
_SHORTEST = 4
#: A secret is found in JSON within JSON so deep: a tool may encode twice what is then encoded as its result.
_DEPTH = 3
_REDACTED = b"[redacted]"
#: Keys of this server or of another (``keys.key.make_secret``).
_KEY_PREFIX = b"ors_"
_KEYS = re.compile(rb"ors_[A-Za-z0-9_-]{43}")


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


def redact(data: bytes, forms: Sequence[bytes]) -> bytes:
    """Replace the forms of secrets, and keys of ors-servers."""
    if _KEY_PREFIX in data:
        data = _KEYS.sub(_REDACTED, data)
    for form in forms:
        if form in data:
            data = data.replace(form, _REDACTED)
    return data
