"""Events on their way into the database, as rows of its tables.

Invariant: what is stored depends on which events came, not on their order or how often. An event's id is unique and the
first one with it stays; a message makes its rollout's row where it comes first; what a rollout's row says of its
messages and updates is computed again, from them, whenever one is added. No key of an event is dropped: unknown keys
are in the column ``other``. Events about a rollout that a server recorded, or that another key made, change nothing.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Insert, Update, bindparam, case, func, null, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from ors_server.rollouts.aggregates.derived_columns import LOST, ended, merged, session_of, task_of
from ors_server.rollouts.aggregates.finite_sums import bounded_sum
from ors_server.rollouts.tables import messages, reports, rollouts, runs, updates
from ors_server.rollouts.uploads import Event, MessageEvent, RolloutEvent, RunReport
from ors_server.wire.encoding import encode

__all__ = ["Additions", "inserting", "run_id"]

#: Makes a run's id from its name: the same in every database.
_RUNS = uuid.UUID("6f7b3a52-2f0b-5d0c-9d1e-0f4b8d7c1a90")
#: Values of one ``IN (…)``.
_MANY = 500

Row = dict[str, Any]
Item = TypeVar("Item")


def run_id(name: str) -> str:
    """Return the id of a run, which clients know by its name alone."""
    return str(uuid.uuid5(_RUNS, name))


def inserting(connection: Connection) -> Callable[..., Any]:
    """Return the ``insert`` of the connection's dialect, which has ``on_conflict_do_update``."""
    return sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert


class Additions:
    """Events that are stored together."""

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}
        self._rollouts: dict[str, Row] = {}
        self._messages: list[Row] = []
        self._updates: list[Row] = []
        self._reports: list[Row] = []
        #: The key that sent the first event of each rollout.
        self._owners: dict[str, str | None] = {}

    def add(self, event: Event, owner: str | None = None) -> None:
        """Take one more event, sent with the key ``owner``."""
        if isinstance(event, RunReport):
            self._reports.append(_report_row(event, owner))
            return
        rollout = event.rollout_event_id if isinstance(event, MessageEvent) else event.event_id
        self._owners.setdefault(rollout, owner)
        if isinstance(event, MessageEvent):
            self._messages.append({**_message_row(event), "owner": owner})
            return
        if isinstance(event, RolloutEvent):
            run = self._runs.setdefault(event.run_name, run_id(event.run_name))
            self._rollouts.setdefault(event.event_id, {**_rollout_row(event, run), "owner": owner})
        if event.rollout_info:
            info = encode(event.rollout_info).decode()
            self._updates.append(
                {
                    "rollout_id": event.event_id,
                    "sent_at": event.timestamp,
                    "digest": hashlib.sha256(info.encode()).hexdigest(),
                    "rollout_info": info,
                    "owner": owner,
                }
            )

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to store."""
        return not self._owners and not self._reports

    def write(self, connection: Connection) -> None:
        """Store them in one transaction; those that are stored already change nothing.

        Raises ``SQLAlchemyError``; then none of them is stored.
        """
        with connection.begin():
            known = self._settle_owners(connection)
            added = _allowed(self._rollouts.values(), "id", self._owners)
            said = _allowed(self._messages, "rollout_id", self._owners)
            told = _allowed(self._updates, "rollout_id", self._owners)
            insert = inserting(connection)
            for row in self._reports:
                connection.execute(_add_report(insert), row)
            if added:
                rows = [{"id": run, "name": name} for name, run in sorted(self._runs.items())]
                connection.execute(insert(runs).on_conflict_do_nothing(), rows)
                connection.execute(_add_rollout(insert), added)
            if said:
                connection.execute(insert(messages).on_conflict_do_nothing(), said)
            if told:
                connection.execute(insert(updates).on_conflict_do_nothing(), told)
            spoken, updated = _rollouts_of(said), _rollouts_of(told)
            rows = [{"id": rollout, "owner": self._owners[rollout]} for rollout in sorted(spoken - known)]
            if rows:
                connection.execute(insert(rollouts).on_conflict_do_nothing(), rows)
            if derived := updated | (spoken - known) | {row["id"] for row in added}:
                _derive(connection, sorted(derived))
            if counted := spoken | updated:
                connection.execute(_COUNT_MESSAGES, [{"of": rollout} for rollout in sorted(counted)])

    def _settle_owners(self, connection: Connection) -> set[str]:
        """Set the owner of each rollout to that of its row, if there is one; return the rollouts that have rows.

        Rollouts that a server recorded have no owner here: nothing about them is stored.
        """
        known: set[str] = set()
        for some in _portions(list(self._owners)):
            query = select(rollouts.c.id, rollouts.c.owner, rollouts.c.source).where(rollouts.c.id.in_(some))
            for found, owner, source in connection.execute(query):
                known.add(found)
                if source == "upload":
                    self._owners[found] = owner
                else:
                    del self._owners[found]
        return known


def _allowed(rows: Iterable[Row], name: str, owners: Mapping[str, str | None]) -> list[Row]:
    """Return the rows that were sent with the key of their rollout, as columns of their table."""
    return [
        row if name == "id" else {column: row[column] for column in row if column != "owner"}
        for row in rows
        if row[name] in owners and owners[row[name]] == row["owner"]
    ]


def _rollouts_of(rows: Iterable[Row]) -> set[str]:
    return {row["rollout_id"] for row in rows}


def _portions(items: Sequence[Item]) -> Iterable[Sequence[Item]]:
    for start in range(0, len(items), _MANY):
        yield items[start : start + _MANY]


# --- statements ----------------------------------------------------------------------------------


def _add_rollout(insert: Callable[..., Any]) -> Insert:
    statement = insert(rollouts)
    given = (
        "run_id",
        "name",
        "environment",
        "variant",
        "split",
        "step",
        "started_at",
        "task_spec",
        "metadata",
        "run_info",
        "environment_id",
        "variant_id",
        "other",
        "owner",
        "session",
    )
    return statement.on_conflict_do_update(
        index_elements=[rollouts.c.id],
        set_={name: statement.excluded[name] for name in given},
        where=rollouts.c.run_id.is_(None),
    )


def _add_report(insert: Callable[..., Any]) -> Insert:
    statement = insert(reports)
    given = ("sent_at", "digest", "kind", "version", "report")
    newer = tuple_(statement.excluded.sent_at, statement.excluded.digest) > tuple_(reports.c.sent_at, reports.c.digest)
    return statement.on_conflict_do_update(
        index_elements=[reports.c.run_id, reports.c.owner],
        set_={name: statement.excluded[name] for name in given},
        where=newer,
    )


def _counting() -> Update:
    """Make the statement that counts the messages of the rollout ``of`` again."""
    of = messages.c.rollout_id == bindparam("of")

    def counted(what: ColumnElement[Any]) -> Any:
        return select(what).where(of).scalar_subquery()

    def unless_lost(reward: ColumnElement[Any]) -> Any:
        return case((rollouts.c.outcome == LOST, null()), else_=counted(reward))

    return (
        update(rollouts)
        .where(rollouts.c.id == bindparam("of"))
        .values(
            num_messages=counted(func.count()),
            max_reward=unless_lost(func.max(messages.c.reward)),
            total_reward=unless_lost(bounded_sum(messages.c.reward)),
            finished=counted(func.coalesce(func.max(messages.c.finished), 0)),
            first_message_at=counted(func.min(messages.c.sent_at)),
            last_message_at=counted(func.max(messages.c.sent_at)),
        )
    )


_COUNT_MESSAGES = _counting()
_DERIVE = (
    update(rollouts)
    .where(rollouts.c.id == bindparam("of"))
    .values(
        task_key=bindparam("key"),
        task_label=bindparam("label"),
        task_index=bindparam("index"),
        outcome=bindparam("outcome_"),
        outcome_reason=bindparam("reason"),
    )
)


def _derive(connection: Connection, ids: Collection[str]) -> None:
    """Compute the task and the outcome of rollouts again, from their own events and their updates."""
    changes: list[Row] = []
    for some in _portions(list(ids)):
        said: dict[str, list[tuple[int, str]]] = {}
        query = select(updates.c.rollout_id, updates.c.sent_at, updates.c.rollout_info)
        for rollout, at, info in connection.execute(query.where(updates.c.rollout_id.in_(some))):
            said.setdefault(rollout, []).append((at, info))
        columns = (rollouts.c.environment, rollouts.c.variant, rollouts.c.split, rollouts.c.task_spec)
        rows = connection.execute(select(rollouts.c.id, *columns).where(rollouts.c.id.in_(some)))
        for rollout, environment, variant, split, task_spec in rows:
            info = merged(said.get(rollout, ()))
            found = task_of(environment, variant, split, task_spec, info)
            outcome, reason = ended(info)
            changes.append(
                {
                    "of": rollout,
                    "key": found.key,
                    "label": found.label,
                    "index": found.index,
                    "outcome_": outcome,
                    "reason": reason,
                }
            )
    if changes:
        connection.execute(_DERIVE, changes)


# --- rows ----------------------------------------------------------------------------------------


def _rollout_row(event: RolloutEvent, run: str) -> Row:
    metadata = _json(event.metadata)
    return {
        "id": event.event_id,
        "run_id": run,
        "name": event.rollout_name,
        "environment": event.environment,
        "variant": event.variant,
        "split": event.split,
        "step": event.step,
        "started_at": event.timestamp,
        "task_spec": _json(event.task_spec),
        "metadata": metadata,
        "session": session_of(metadata),
        "run_info": _json(event.run_info),
        "environment_id": event.environment_id,
        "variant_id": event.variant_id,
        "other": _json(event.model_extra or None),
    }


def _message_row(event: MessageEvent) -> Row:
    return {
        "id": event.event_id,
        "rollout_id": event.rollout_event_id,
        "position": event.index,
        "sent_at": event.timestamp,
        "reward": event.reward,
        "finished": 1 if event.is_finished else 0,
        "type": event.type,
        "name": event.name,
        "call_id": event.call_id,
        "summary": event.summary,
        "content_reference": event.content_reference,
        "environment_id": event.environment_id,
        "metadata": _json(event.metadata),
        "other": _json(event.model_extra or None),
        "content": event.content,
    }


def _report_row(event: RunReport, owner: str | None) -> Row:
    return {
        "run_id": run_id(event.run_name),
        "owner": owner or "",
        "sent_at": event.timestamp,
        "digest": hashlib.sha256(event.encoded).hexdigest(),
        "kind": event.kind,
        "version": event.version,
        "report": event.encoded.decode(),
    }


def _json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else encode(value).decode()
