"""Columns of a rollout that are derived from what clients sent: its task and its outcome.

They depend on the events and not on their order, so they are computed again whenever one is added.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

__all__ = ["LOST", "TASK_TOKEN", "Outcome", "Task", "ended", "merged", "session_of", "task_of"]

#: How a rollout ended. ``finished``: a tool returned ``finished=True``; ``deleted``: its client ended it before that;
#: ``expired``: its client sent nothing for too long; ``stopped``: its server was stopped; ``failed``: the environment's
#: set-up failed; ``lost``: the infrastructure failed, so it has no reward.
Outcome = Literal["finished", "deleted", "expired", "stopped", "failed", "lost"]
LOST: Outcome = "lost"
_OUTCOMES = frozenset(get_args(Outcome))
_LONGEST_REASON = 500
_LONGEST_LABEL = 100
_LONGEST_SESSION = 200

#: The key of a task's token (``hosting.task_source``), which says nothing about the task.
TASK_TOKEN = "_ors_task"  # noqa: S105 - the key, not a token


@dataclass(frozen=True, slots=True)
class Task:
    """A rollout's task: the same key for the same task, and the name that people call it."""

    key: str | None
    label: str | None
    index: int | None


def merged(updates: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """Merge what updates say, each a time and a JSON object: of several that say the same thing the latest counts."""
    said: dict[str, Any] = {}
    for _, info in sorted(updates, key=lambda update: (update[0], update[1].encode("utf-8", "replace"))):
        said |= _object(info)
    return said


def task_of(
    environment: str | None, variant: str | None, split: str | None, task_spec: str | None, info: Mapping[str, Any]
) -> Task:
    """Identify the task of a rollout by its content, else by its index (``task_index`` of an update)."""
    said = info.get("task_index")
    index = said if type(said) is int and -(2**63) <= said < 2**63 else None
    spec = {name: value for name, value in _object(task_spec).items() if name != TASK_TOKEN}
    label = f"#{index}" if index is not None else None
    if spec:
        for name in ("id", "task_id", "name"):
            value = spec.get(name)
            if isinstance(value, (str, int)) and value != "":
                label = str(value)[:_LONGEST_LABEL]
                break
        return Task(_digest([environment, spec]), label, index)
    return Task(None if index is None else _digest([environment, variant, split, index]), label, index)


def session_of(metadata: str | None) -> str | None:
    """Return the id of the session that the metadata of a rollout names."""
    # Metadata may be long, and most of it names no session.
    session = _object(metadata).get("session") if metadata is not None and '"session"' in metadata else None
    return session if isinstance(session, str) and 0 < len(session) <= _LONGEST_SESSION else None


def ended(info: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the outcome that a client's updates name, and its reason."""
    outcome, reason = info.get("outcome"), info.get("outcome_reason")
    if outcome not in _OUTCOMES:
        return None, None
    return str(outcome), reason[:_LONGEST_REASON] if isinstance(reason, str) else None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):  # nested deeper than Python reads
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
