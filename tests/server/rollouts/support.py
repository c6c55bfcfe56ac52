"""Events as clients send them, and the content of the rollouts' database."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ors_server.rollouts.aggregates.derived_columns import Outcome
from ors_server.rollouts.location import Location
from ors_server.rollouts.queries.conversations import every_rollout
from ors_server.rollouts.recorder import Recorder
from ors_server.rollouts.recording.batches import End
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.sessions.calls.call import Call
from ors_server.wire.encoding import encode
from ors_server.wire.sse import result_frames

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


def at(folder: Path) -> Location:
    """Return the database of a test: the file of a folder, or the PostgreSQL that the fixture ``database`` has set."""
    return Location(folder, os.environ.get("ORS_ROLLOUTS"))


async def record(
    folder: Path,
    session: str = "s",
    *,
    owner: str | None = None,
    rewards: Sequence[float] = (),
    outcome: Outcome | None = "finished",
    metadata: Mapping[str, object] | None = None,
) -> str:
    """Store a session as a server records it, with one result that has metadata; return the id of its rollout."""
    writer = RolloutWriter(at(folder))
    recorder = Recorder(writer)
    place: dict[str, Any] = {"environment": "me/it", "split": "train", "index": 0, "task": {"id": "one"}}
    recording = recorder.begin(sid=session, **place, secrets=(), owner=owner)
    if metadata is not None:
        output: Any = {"blocks": [], "metadata": metadata, "reward": None, "finished": False}
        recording.result(0.0, Call("done", {}, None), result_frames(encode({"ok": True, "output": output})))
    if rewards:
        recording.max_reward, recording.total_reward = max(rewards), sum(rewards)
    if outcome is not None:
        recorder.end(recording, End(outcome, ""))
    recorder.close()
    await writer.close()
    return recording.stored.rollout_id


def stored(folder: Path) -> list[dict[str, Any]]:
    """Return every stored rollout with its conversation."""
    with RolloutStore(at(folder)).reading() as connection:
        return [] if connection is None else list(every_rollout(connection, None))


def emptied() -> None:
    """Remove all rows of the PostgreSQL that the test uses, if it uses one."""
    url = os.environ.get("ORS_ROLLOUTS")
    if url is not None:
        psycopg: Any = importlib.import_module("psycopg")
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            for (table,) in found:
                if table != "alembic_version":
                    connection.execute(f"TRUNCATE {table} CASCADE")


def rows(folder: Path, query: str, *values: object) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a query on the database."""
    url = os.environ.get("ORS_ROLLOUTS")
    if url is not None:
        psycopg: Any = importlib.import_module("psycopg")
        with psycopg.connect(url) as connection:
            return connection.execute(query.replace("?", "%s"), values).fetchall()
    with closing(sqlite3.connect(folder / "rollouts.sqlite3")) as connection:
        return connection.execute(query, values).fetchall()
