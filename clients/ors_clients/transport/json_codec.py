"""JSON from outside, as values that later code can handle.

Python decodes two things silently that make a rollout fail long after the answer: a lone surrogate, which no
tokenizer and no file takes, and lists in lists in lists, which cannot be written again further up the stack. The first
becomes U+FFFD, as our server has it (protocol, section 0.1); the second is refused.
"""

from __future__ import annotations

import json
from typing import Any

from ors_server.wire.texts import without_surrogates

__all__ = ["read_json"]

#: Lists and objects in each other.
_DEPTH = 200


def read_json(content: bytes) -> Any:
    """Return the value of a JSON text. Raises ``ValueError`` for other text, and for over 200 levels of nesting."""
    text = content.decode("utf-8-sig", "replace")
    try:
        value = json.loads(text)
        # Most answers hold neither, and are not walked through.
        if "\\ud" in text or "\\uD" in text or text.count("[") + text.count("{") > _DEPTH:
            return without_surrogates(value, _DEPTH)
        return value
    except RecursionError:
        raise ValueError("nested too deeply") from None
