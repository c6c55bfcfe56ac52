"""Queries of runs and rollouts in pages, and of rollouts with their conversations.

Each function takes a connection of ``RolloutStore.reading``, whose queries all see one state of the database, and
returns plain dictionaries, which are also the JSON of the routes and of the command line. Times are ISO 8601, UTC, by
the clients' clocks. A rollout's ``max_reward`` is the highest reward of its messages, its ``total_reward`` their sum,
its ``reward`` what it earned by the rule of its run (``earned``); all are None where no message has a reward and where
the rollout was lost.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, exists, func, select, true

from ors_server.rollouts.additions import run_id
from ors_server.rollouts.derived import LOST, merged
from ors_server.rollouts.earned import DEFAULT, RewardRule, RunRules
from ors_server.rollouts.errors import RolloutError, UnknownRun
from ors_server.rollouts.marks import MARK, mark_of_metadata
from ors_server.rollouts.records import messages_of_notes
from ors_server.rollouts.sums import bounded_total, safe_mean
from ors_server.rollouts.tables import messages, pieces, rollouts, runs, updates

__all__ = [
    "Page",
    "count_rollouts",
    "every_rollout",
    "find_rollout",
    "find_run",
    "iso_time",
    "list_rollouts",
    "list_runs",
    "marks_of",
    "resolve_run",
]

#: Rollouts that an export reads at a time.
_AT_A_TIME = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows of a listing, and how many there are in all."""

    rows: list[dict[str, Any]]
    total: int


# --- runs ----------------------------------------------------------------------------------------


def _of_runs(rule: RewardRule = DEFAULT) -> Any:
    later = case(
        (rollouts.c.last_message_at > rollouts.c.started_at, rollouts.c.last_message_at), else_=rollouts.c.started_at
    )
    return select(
        runs.c.id,
        runs.c.name,
        func.count().label("num_rollouts"),
        safe_mean(rule.column).label("avg_rollout_reward"),
        safe_mean(rollouts.c.num_messages).label("avg_rollout_length"),
        func.min(rollouts.c.created_at).label("created_at"),
        func.max(later).label("updated_at"),
    ).join_from(runs, rollouts, rollouts.c.run_id == runs.c.id)


def list_runs(connection: Connection, *, search: str, limit: int, offset: int, owner: str | None = None) -> Page:
    """List the runs whose name contains ``search`` (in any case), the newest first; ``owner`` sees its own only."""
    named = and_(named_like(search), _owned(owner))
    query = _of_runs().where(named).group_by(runs.c.id, runs.c.name)
    query = query.order_by(func.min(rollouts.c.created_at).desc(), runs.c.name).limit(limit).offset(offset)
    total = select(func.count()).select_from(runs).where(named_like(search))
    if owner is not None:
        total = total.where(exists().where(rollouts.c.run_id == runs.c.id, _owned(owner)))
    rules = RunRules(connection, owner)
    rows = [
        _run(row) if rules.of(row["id"]) == DEFAULT else find_run(connection, row["id"], owner=owner)
        for row in connection.execute(query).mappings().all()
    ]
    return Page(rows, connection.scalar(total) or 0)


def named_like(search: str) -> ColumnElement[bool]:
    """Return the condition that a run's name contains a text, in any case."""
    if not search:
        return true()
    pattern = f"%{search.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
    return runs.c.name.ilike(pattern, escape="!")


def find_run(connection: Connection, run: str, *, owner: str | None = None) -> dict[str, Any]:
    """Find a run by its id or its name. Raises ``UnknownRun``, also where ``owner`` made no rollout of it."""
    found = resolve_run(connection, run)
    query = (
        _of_runs(RunRules(connection, owner).of(found))
        .where(runs.c.id == found, _owned(owner))
        .group_by(runs.c.id, runs.c.name)
    )
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise UnknownRun(run)
    return _run(row)


def _owned(owner: str | None) -> ColumnElement[bool]:
    return true() if owner is None else rollouts.c.owner == owner


def resolve_run(connection: Connection, run: str) -> str:
    """Return the id of a run that is given by its id or its name. Raises ``UnknownRun``."""
    for candidate in (run, run_id(run)):
        found = connection.scalar(select(runs.c.id).where(runs.c.id == candidate))
        if found is not None:
            return found
    raise UnknownRun(run)


def _run(row: RowMapping) -> dict[str, Any]:
    return {**row, "created_at": iso_time(row["created_at"]), "updated_at": iso_time(row["updated_at"])}


# --- rollouts ------------------------------------------------------------------------------------

_LISTED = select(
    rollouts.c.id,
    rollouts.c.run_id,
    rollouts.c.total_reward,
    runs.c.name.label("run_name"),
    rollouts.c.name.label("rollout_name"),
    *(rollouts.c[name] for name in ("environment", "variant", "split", "max_reward", "num_messages", "finished")),
    rollouts.c.created_at,
).join_from(rollouts, runs, rollouts.c.run_id == runs.c.id, isouter=True)


def list_rollouts(
    connection: Connection, *, run: str | None, limit: int, offset: int, owner: str | None = None
) -> Page:
    """List the rollouts of a run (id or name), or all rollouts, the newest first. Raises ``UnknownRun``.

    All of them means also those whose own event has not come, which belong to no run yet.
    """
    query = _LISTED.where(_of_run(connection, run), _owned(owner))
    query = query.order_by(rollouts.c.created_at.desc(), rollouts.c.id.desc()).limit(limit).offset(offset)
    rows = list(connection.execute(query).mappings())
    marks = marks_of(connection, [row["id"] for row in rows])
    rules = RunRules(connection, owner)
    found = [
        {
            **row,
            **_earned(rules.of(row["run_id"]), highest=row["max_reward"], total=row["total_reward"]),
            "finished": bool(row["finished"]),
            "created_at": iso_time(row["created_at"]),
            MARK: marks.get(row["id"]),
        }
        for row in rows
    ]
    total = count_rollouts(connection, run, owner=owner)
    if owner is not None and run is not None and not total:
        raise UnknownRun(run)
    return Page(found, total)


def marks_of(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
    """Return the marks of those rollouts that have one: in their own metadata, or in that of the result at the end."""
    own = select(rollouts.c.id, rollouts.c.metadata).where(rollouts.c.id.in_(ids), rollouts.c.metadata.contains(MARK))
    ended = select(messages.c.rollout_id, messages.c.metadata).where(
        messages.c.rollout_id.in_(ids), messages.c.finished == 1, messages.c.metadata.contains(MARK)
    )
    found = [
        (rollout, mark_of_metadata(metadata))
        for query in (ended, own)
        for rollout, metadata in connection.execute(query)
    ]
    return {rollout: mark for rollout, mark in found if mark}


def count_rollouts(connection: Connection, run: str | None, *, owner: str | None = None) -> int:
    """Count the rollouts of a run (id or name), or all rollouts. Raises ``UnknownRun``."""
    query = select(func.count()).select_from(rollouts).where(_of_run(connection, run), _owned(owner))
    return connection.scalar(query) or 0


def _of_run(connection: Connection, run: str | None) -> ColumnElement[bool]:
    return true() if run is None else rollouts.c.run_id == resolve_run(connection, run)


def find_rollout(connection: Connection, rollout: str, *, owner: str | None = None) -> dict[str, Any]:
    """Find a rollout with its conversation, by its id or the beginning of its id; ``owner`` sees its own only.

    Raises ``RolloutError``.
    """
    # The id itself, where there is one, comes before everything that begins with it.
    beginning = rollouts.c.id.between(rollout, f"{rollout}\U0010ffff")
    query = select(rollouts.c.id).where(beginning, _owned(owner))
    ids = list(connection.scalars(query.order_by(rollouts.c.id).limit(2)))
    if not ids:
        raise RolloutError(f"There is no rollout {rollout!r}", "`ors-server rollouts list` shows their ids.")
    if len(ids) > 1 and ids[0] != rollout:
        raise RolloutError(f"Several rollouts begin with {rollout!r}", f"Give more of the id, for example {ids[0]}.")
    row = connection.execute(_WHOLE.where(rollouts.c.id == ids[0])).mappings().one()
    return _rollout(connection, row, RunRules(connection, owner))


def every_rollout(connection: Connection, run: str | None) -> Generator[dict[str, Any]]:
    """Yield the rollouts of a run, or all rollouts, with their conversations, the oldest first, as of this moment."""
    rules = RunRules(connection)
    query = _WHOLE.where(_of_run(connection, run)).order_by(rollouts.c.created_at, rollouts.c.id)
    # An option of this query, and not of the connection: there it would open a cursor for each conversation too.
    with connection.execute(query, execution_options={"yield_per": _AT_A_TIME}) as found:
        for row in found.mappings():
            yield _rollout(connection, row, rules)
    connection.rollback()


_WHOLE = select(rollouts, runs.c.name.label("run_name")).join_from(
    rollouts, runs, rollouts.c.run_id == runs.c.id, isouter=True
)


def _earned(rule: RewardRule, *, highest: float | None, total: float | None) -> dict[str, Any]:
    reward = rule.choose(highest=highest, total=total)
    return {"reward": reward, "passed": rule.passes(reward)}


def _rollout(connection: Connection, row: RowMapping, rules: RunRules) -> dict[str, Any]:
    conversation = list(messages_of(connection, row["id"], row["source"]))
    rewards = [message["reward"] for message in conversation if message["reward"] is not None]
    if row["outcome"] == LOST:
        rewards = []
    highest, total = max(rewards, default=None), bounded_total(rewards) if rewards else None
    return {
        "id": row["id"],
        "run_id": row["run_id"],
        "run_name": row["run_name"],
        "rollout_name": row["name"],
        "environment": row["environment"],
        "variant": row["variant"],
        "split": row["split"],
        "step": row["step"],
        "created_at": iso_time(row["created_at"]),
        "num_messages": len(conversation),
        "finished": bool(row["finished"]),
        **_earned(rules.of(row["run_id"]), highest=highest, total=total),
        "max_reward": highest,
        "total_reward": total,
        "outcome": row["outcome"],
        "outcome_reason": row["outcome_reason"],
        "source": row["source"],
        "owner": row["owner"],
        "dropped": row["dropped"],
        "task_spec": _object(row["task_spec"]),
        "metadata": _object(row["metadata"]),
        "run_info": _object(row["run_info"]),
        "rollout_info": _rollout_info(connection, row["id"]),
        "messages": conversation,
    }


def _rollout_info(connection: Connection, rollout: str) -> dict[str, Any] | None:
    query = select(updates.c.sent_at, updates.c.rollout_info).where(updates.c.rollout_id == rollout)
    return merged((at, info) for at, info in connection.execute(query)) or None


# --- messages ------------------------------------------------------------------------------------

_MESSAGE = (
    messages.c.position,
    messages.c.type,
    messages.c.content,
    messages.c.summary,
    messages.c.content_reference,
    messages.c.name,
    messages.c.call_id,
    messages.c.reward,
    messages.c.finished,
    messages.c.metadata,
    messages.c.sent_at,
)


def messages_of(connection: Connection, rollout: str, source: str) -> Iterable[dict[str, Any]]:
    """Return the conversation of a rollout, in its order."""
    if source != "upload":
        query = select(pieces.c.messages).where(pieces.c.rollout_id == rollout).order_by(pieces.c.number)
        notes = messages_of_notes(connection.scalars(query))
        return [{**message, "sent_at": iso_time(message["sent_at"])} for message in notes]
    query = select(*_MESSAGE).where(messages.c.rollout_id == rollout)
    query = query.order_by(messages.c.position, messages.c.sent_at, messages.c.id)
    return [_uploaded(row) for row in connection.execute(query).mappings()]


def _uploaded(row: RowMapping) -> dict[str, Any]:
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
        "sent_at": iso_time(row["sent_at"]),
    }


# --- values --------------------------------------------------------------------------------------


def iso_time(milliseconds: int | None) -> str | None:
    """Return a time as ISO 8601."""
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else json.loads(text)
    except ValueError:  # earlier versions damaged a record's task whose text had a secret of its session
        return None
