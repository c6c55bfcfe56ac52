"""Queries of the file: runs and rollouts in pages, and one rollout with its conversation.

Each function takes a connection of ``file.open_to_read`` and returns plain dictionaries, which are also the JSON of the
routes and of the command line. Times are ISO 8601, UTC, by the clients' clocks. A rollout's ``max_reward`` is the
highest reward of its messages, its ``total_reward`` their sum, both None where none has one.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ors_server.rollouts.errors import RolloutError, UnknownRun

__all__ = ["Page", "count_rollouts", "every_rollout", "find_rollout", "find_run", "list_rollouts", "list_runs"]


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a listing, and how many there are in all."""

    rows: list[dict[str, Any]]
    total: int


# --- runs ----------------------------------------------------------------------------------------

_RUNS = """
SELECT runs.id, runs.name, count(*) AS num_rollouts, avg(max_reward) AS avg_rollout_reward,
    avg(num_messages) AS avg_rollout_length, min(created_at) AS created_at,
    max(max(started_at, coalesce(last_message_at, started_at))) AS updated_at
FROM runs JOIN rollouts ON rollouts.run_id = runs.id
"""


def list_runs(connection: sqlite3.Connection, *, search: str, limit: int, offset: int) -> Page:
    """List the runs whose name contains ``search`` (in any case), the newest first."""
    pattern = f"%{search.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
    where = "WHERE runs.name LIKE ? ESCAPE '!'"
    rows = connection.execute(
        f"{_RUNS} {where} GROUP BY runs.id ORDER BY created_at DESC, runs.name LIMIT ? OFFSET ?",
        (pattern, limit, offset),
    )
    total = connection.execute(f"SELECT count(*) FROM runs {where}", (pattern,)).fetchone()[0]  # noqa: S608 - a constant
    return Page([_run(row) for row in rows], total)


def find_run(connection: sqlite3.Connection, run: str) -> dict[str, Any]:
    """Find a run by its id or its name. Raises ``UnknownRun``."""
    row = connection.execute(f"{_RUNS} WHERE runs.id = ? GROUP BY runs.id", (_run_id(connection, run),)).fetchone()
    return _run(row)


def _run_id(connection: sqlite3.Connection, run: str) -> str:
    query = "SELECT id FROM runs WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC"
    row = connection.execute(query, (run,)).fetchone()
    if row is None:
        raise UnknownRun(run)
    return row["id"]


def _run(row: sqlite3.Row) -> dict[str, Any]:
    return {**dict(row), "created_at": _time(row["created_at"]), "updated_at": _time(row["updated_at"])}


# --- rollouts ------------------------------------------------------------------------------------

_ROLLOUTS = """
SELECT rollouts.id, runs.name AS run_name, rollouts.name AS rollout_name, environment, variant, split, max_reward,
    num_messages, finished, created_at
FROM rollouts LEFT JOIN runs ON rollouts.run_id = runs.id
"""


def list_rollouts(connection: sqlite3.Connection, *, run: str | None, limit: int, offset: int) -> Page:
    """List the rollouts of a run (id or name), or all rollouts, the newest first. Raises ``UnknownRun``.

    All of them means also those whose own event has not come, which belong to no run yet.
    """
    where, values = _of_run(connection, run)
    rows = connection.execute(
        f"{_ROLLOUTS} {where} ORDER BY created_at DESC, rollouts.id LIMIT ? OFFSET ?", (*values, limit, offset)
    )
    found = [{**dict(row), "finished": bool(row["finished"]), "created_at": _time(row["created_at"])} for row in rows]
    return Page(found, count_rollouts(connection, run))


def count_rollouts(connection: sqlite3.Connection, run: str | None) -> int:
    """Count the rollouts of a run (id or name), or all rollouts. Raises ``UnknownRun``."""
    where, values = _of_run(connection, run)
    return connection.execute(f"SELECT count(*) FROM rollouts {where}", values).fetchone()[0]  # noqa: S608 - a constant


def _of_run(connection: sqlite3.Connection, run: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if run is None else ("WHERE rollouts.run_id = ?", (_run_id(connection, run),))


def find_rollout(connection: sqlite3.Connection, rollout: str) -> dict[str, Any]:
    """Find a rollout with its conversation, by its id or the beginning of its id. Raises ``RolloutError``."""
    # The id itself, where there is one, comes before everything that begins with it.
    query = "SELECT id FROM rollouts WHERE id BETWEEN ?1 AND ?1 || char(1114111) ORDER BY id LIMIT 2"
    ids = [row["id"] for row in connection.execute(query, (rollout,))]
    if not ids:
        raise RolloutError(f"There is no rollout {rollout!r}", "`ors-server rollouts list` shows their ids.")
    if len(ids) > 1 and ids[0] != rollout:
        raise RolloutError(f"Several rollouts begin with {rollout!r}", f"Give more of the id, for example {ids[0]}.")
    row = connection.execute(f"{_WHOLE} WHERE rollouts.id = ?", (ids[0],)).fetchone()
    return _rollout(connection, row)


def every_rollout(connection: sqlite3.Connection, run: str | None) -> Generator[dict[str, Any]]:
    """Yield the rollouts of a run, or all rollouts, with their conversations, the oldest first, as of this moment."""
    where, values = _of_run(connection, run)
    # One transaction, so that what is written meanwhile does not change the answer half-way.
    connection.execute("BEGIN")
    try:
        for row in connection.execute(f"{_WHOLE} {where} ORDER BY created_at, rollouts.id", values):
            yield _rollout(connection, row)
    finally:
        connection.execute("COMMIT")


_WHOLE = """
SELECT rollouts.*, runs.name AS run_name FROM rollouts LEFT JOIN runs ON rollouts.run_id = runs.id
"""


def _rollout(connection: sqlite3.Connection, row: sqlite3.Row) -> dict[str, Any]:
    messages = [_message(message) for message in connection.execute(_MESSAGES, (row["id"],))]
    rewards = [message["reward"] for message in messages if message["reward"] is not None]
    return {
        "id": row["id"],
        "run_id": row["run_id"],
        "run_name": row["run_name"],
        "rollout_name": row["name"],
        "environment": row["environment"],
        "variant": row["variant"],
        "split": row["split"],
        "step": row["step"],
        "created_at": _time(row["created_at"]),
        "num_messages": len(messages),
        "finished": bool(row["finished"]),
        "max_reward": max(rewards, default=None),
        "total_reward": math.fsum(rewards) if rewards else None,
        "task_spec": _object(row["task_spec"]),
        "metadata": _object(row["metadata"]),
        "run_info": _object(row["run_info"]),
        "rollout_info": _rollout_info(connection, row["id"]),
        "messages": messages,
    }


def _rollout_info(connection: sqlite3.Connection, rollout: str) -> dict[str, Any] | None:
    query = "SELECT rollout_info FROM updates WHERE rollout_id = ? ORDER BY sent_at, rollout_info"
    merged: dict[str, Any] = {}
    for row in connection.execute(query, (rollout,)):
        merged |= json.loads(row["rollout_info"])
    return merged or None


_MESSAGES = """
SELECT position, type, content, summary, content_reference, name, call_id, reward, finished, metadata, sent_at
FROM messages WHERE rollout_id = ? ORDER BY position, sent_at, id
"""


def _message(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "index": row["position"],
        "type": row["type"],
        "content": row["content"],
        "summary": row["summary"],
        "content_reference": row["content_reference"],
        "name": row["name"],
        "call_id": row["call_id"],
        "reward": row["reward"],
        "is_finished": bool(row["finished"]),
        "metadata": _object(row["metadata"]),
        "sent_at": _time(row["sent_at"]),
    }


# --- values --------------------------------------------------------------------------------------


def _time(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def _object(text: str | None) -> dict[str, Any] | None:
    return None if text is None else json.loads(text)
