"""Marks on the verdicts of rollouts: reservations that an environment has about a reward.

An environment puts ``verdict_mark`` into the metadata of the result that ends an episode; ``terminal`` does where the
agent's code ran in the process of its tests. It is a text for readers: no number changes with it. A list of rollouts
has the mark of each (``queries.listed``).
"""

from __future__ import annotations

import json
from typing import Any, cast

from ors_server.wire.sse import read_frames

__all__ = ["MARK", "mark_of_frames", "mark_of_metadata"]

#: The key in the metadata of a result, and of a rollout.
MARK = "verdict_mark"
_LONGEST = 200


def mark_of_frames(frames: bytes) -> str:
    """Return the mark in the frames of a call's answer; empty for none."""
    error, data = read_frames(frames)
    if error or MARK.encode() not in data:
        return ""
    try:
        return _text(json.loads(data)["output"]["metadata"].get(MARK))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def mark_of_metadata(metadata: str) -> str:
    """Return the mark in the stored metadata of a rollout or a message; empty for none."""
    try:
        value: Any = json.loads(metadata)
    except (ValueError, RecursionError):
        return ""
    return _text(cast("dict[str, Any]", value).get(MARK)) if isinstance(value, dict) else ""


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""
