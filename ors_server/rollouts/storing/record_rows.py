"""Rows of recorded sessions, written; and sessions whose server has died.

Each process that records says every few seconds that it lives, and holds a lock while it does (``recorder_locks``).
What a dead one recorded is marked as lost by the others, and by the next one in its place. A process that was only
stopped for a while takes its sessions back: its next write says how they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, literal_column, null, select, update
from sqlalchemy.sql.elements import ColumnElement

from ors_server.rollouts.aggregates.derived_columns import LOST, session_of
from ors_server.rollouts.storing.additions import inserting, run_id
from ors_server.rollouts.tables import batches, recorders, rollouts, runs

__all__ = ["SILENT_AFTER", "mark_lost", "write_rows"]

#: Seconds without a sign of life after which a process that records counts as dead.
SILENT_AFTER = 60
_REASON = "The server's process ended without ending its sessions"

_STATE = (
    update(rollouts)
    .where(rollouts.c.id == bindparam("of"))
    .values(
        {
            name: bindparam(name)
            for name in (
                "num_messages",
                "max_reward",
                "total_reward",
                "finished",
                "last_message_at",
                "response_characters",
                "dropped",
                "outcome",
                "outcome_reason",
            )
        }
    )
)
_MARK = update(rollouts).where(rollouts.c.id == bindparam("of")).values(metadata=bindparam("metadata"))


def write_rows(connection: Connection, recorder: str, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Store rows of ``Batches`` in one transaction; those that are stored already change nothing.

    Raises ``SQLAlchemyError``.
    """
    insert = inserting(connection)
    with connection.begin():
        _sign_of_life(connection, recorder)
        if begun := rows["begun"]:
            names = sorted({row["run_name"] for row in begun})
            connection.execute(
                insert(runs).on_conflict_do_nothing(), [{"id": run_id(name), "name": name} for name in names]
            )
            given = [
                {name: value for name, value in row.items() if name != "run_name"}
                | {"run_id": run_id(row["run_name"]), "session": session_of(row["metadata"])}
                for row in begun
            ]
            connection.execute(insert(rollouts).on_conflict_do_nothing(), given)
        if events := rows["batches"]:
            connection.execute(insert(batches).on_conflict_do_nothing(), events)
        if rows["states"]:
            connection.execute(_STATE, rows["states"])
        if marks := rows.get("marks"):  # an earlier version kept rows without them
            connection.execute(_MARK, marks)


def _now(connection: Connection) -> ColumnElement[int]:
    # The database's clock: the recorders may be on several machines.
    if connection.dialect.name == "sqlite":
        return literal_column("CAST(strftime('%s', 'now') AS INTEGER)")
    return literal_column("CAST(extract(epoch FROM now()) AS bigint)")


def _sign_of_life(connection: Connection, recorder: str) -> None:
    statement = inserting(connection)(recorders).values(id=recorder, seen_at=_now(connection))
    connection.execute(
        statement.on_conflict_do_update(index_elements=[recorders.c.id], set_={"seen_at": statement.excluded.seen_at})
    )


def mark_lost(connection: Connection, recorder: str, known_dead: Sequence[str]) -> int:
    """Mark the sessions of dead processes as lost, and say that ``recorder`` lives; return how many there were.

    Dead are those that are known to be, and those that are silent. Raises ``SQLAlchemyError``.
    """
    with connection.begin():
        _sign_of_life(connection, recorder)
        silent = recorders.c.seen_at < _now(connection) - SILENT_AFTER
        dead = list(connection.scalars(select(recorders.c.id).where(silent, recorders.c.id != recorder)))
        dead += known_dead
        if not dead:
            return 0
        counted = (
            select(func.coalesce(func.sum(batches.c.num_messages), 0))
            .where(batches.c.rollout_id == rollouts.c.id)
            .scalar_subquery()
        )
        marked = connection.execute(
            update(rollouts)
            .where(rollouts.c.recorder.in_(dead), rollouts.c.outcome.is_(None), rollouts.c.finished == 0)
            .values(outcome=LOST, outcome_reason=_REASON, max_reward=null(), total_reward=null(), num_messages=counted)
        )
        # Its reward was given before the process died.
        connection.execute(
            update(rollouts)
            .where(rollouts.c.recorder.in_(dead), rollouts.c.outcome.is_(None), rollouts.c.finished == 1)
            .values(outcome="finished", outcome_reason=_REASON, num_messages=counted)
        )
        connection.execute(delete(recorders).where(recorders.c.id.in_(dead)))
        return marked.rowcount
