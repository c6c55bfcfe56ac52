"""Fields of a model's message as text, in the shapes in which endpoints send them.

Each function raises ``TypeError``, ``ValueError`` or ``AttributeError`` for another shape.
"""

from __future__ import annotations

import json
from typing import Any, cast

__all__ = ["arguments_text", "content_text", "id_text", "string"]


def string(value: Any) -> str:
    """Return a string, an empty one for None."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def content_text(value: Any) -> str:
    """Return a text that is whole, or in parts, as some servers send it. Parts of other kinds have none."""
    if isinstance(value, list):
        parts = cast("list[dict[str, Any]]", value)
        return "".join(string(part.get("text")) for part in parts)
    return string(value)


def id_text(value: Any) -> str:
    """Return the id of a call; some servers count calls."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else string(value)


def arguments_text(value: Any) -> str:
    """Return a call's arguments as text; some servers (Ollama) send an object."""
    return json.dumps(value, allow_nan=False) if isinstance(value, dict | list) else string(value)
