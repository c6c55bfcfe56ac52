"""Events as clients send them, and the content of the rollouts' file."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ors_server.rollouts.file import open_to_read
from ors_server.rollouts.queries import every_rollout

Event = dict[str, Any]
#: A moment in 2023, in milliseconds.
NOON = 1_700_000_000_000


def rollout(rollout_id: str = "", run: str = "run", *, at: int = NOON, **others: Any) -> Event:
    return {
        "eventType": "rollout",
        "eventId": rollout_id or str(uuid.uuid4()),
        "timestamp": at,
        "runName": run,
        **others,
    }


def message(rollout_id: str, index: int, content: object = "words", **others: Any) -> Event:
    return {
        "eventType": "message",
        "eventId": str(uuid.uuid4()),
        "timestamp": NOON + index,
        "index": index,
        "rolloutEventId": rollout_id,
        "type": "assistant_message",
        "content": content,
        "isFinished": False,
        "metadata": {},
        **others,
    }


def update(rollout_id: str, *, at: int = NOON, **info: Any) -> Event:
    return {"eventType": "rollout_update", "eventId": rollout_id, "timestamp": at, "rollout_info": info}


def body(*events: object) -> bytes:
    return json.dumps({"events": events}).encode()


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return every stored rollout with its conversation."""
    connection = open_to_read(folder)
    if connection is None:
        return []
    with closing(connection):
        return list(every_rollout(connection, None))


def rows(folder: Path, query: str, *values: object) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a query on the file."""
    with closing(sqlite3.connect(folder / "rollouts.sqlite3")) as connection:
        return connection.execute(query, values).fetchall()
