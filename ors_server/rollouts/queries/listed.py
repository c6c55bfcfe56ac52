"""Rollouts without their conversations, in lists and in groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, case, func, or_, select

from ors_server.rollouts.aggregates.reward_rule import DEFAULT, RewardRule, RunRules
from ors_server.rollouts.errors import InvalidCursor
from ors_server.rollouts.queries.counterparts import Counterpart, counted, counterparts
from ors_server.rollouts.queries.paging import Listing, cursor, iso_time, moment, page_of, read_cursor
from ors_server.rollouts.queries.regrades import Regrade, regrades_of
from ors_server.rollouts.queries.runs import contains, resolve_run
from ors_server.rollouts.tables import messages, rollouts, runs
from ors_server.rollouts.verdict_marks import MARK, mark_of_metadata

__all__ = [
    "Passed",
    "RolloutFilter",
    "RolloutOrder",
    "RolloutSummary",
    "count_rollouts",
    "find_summary",
    "group_of",
    "list_rollouts",
]

Passed = Literal["yes", "no", "unknown"]
RolloutOrder = Literal["newest", "highest", "lowest"]


@dataclass(frozen=True, slots=True)
class RolloutSummary:
    """A rollout without its conversation."""

    id: str
    run_id: str | None
    run_name: str | None
    name: str | None
    environment: str | None
    variant: str | None
    split: str | None
    step: int | None
    task_key: str | None
    task_label: str | None
    owner: str | None
    #: ``upload`` or ``session``.
    source: str
    num_messages: int
    #: What it earned by the rule of its run, and whether it passed.
    reward: float | None
    passed: bool | None
    max_reward: float | None
    total_reward: float | None
    finished: bool
    outcome: str | None
    outcome_reason: str | None
    created_at: datetime | None
    last_message_at: datetime | None
    #: A reservation about the verdict (``marks``).
    verdict_mark: str | None = None
    #: The other record of the same episode.
    counterpart: Counterpart | None = None
    #: The verdict after a test was repaired.
    regrade: Regrade | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the rollout as the routes and commands list it."""
        return {name: getattr(self, name) for name in _IN_LISTS} | {
            "rollout_name": self.name,
            "created_at": iso_time(self.created_at),
            MARK: self.verdict_mark,
            "counterpart": None if self.counterpart is None else self.counterpart.as_json(),
            "regrade": None if self.regrade is None else self.regrade.as_json(),
        }


_IN_LISTS = (
    *("id", "run_id", "run_name", "environment", "variant", "split", "reward", "passed", "max_reward", "total_reward"),
    *("num_messages", "finished"),
)


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Conditions on rollouts; None leaves one out. ``run`` is an id or a name.

    Without a run, rollouts whose own event has not come are among them: they belong to no run yet.
    """

    run: str | None = None
    task_key: str | None = None
    environment: str | None = None
    step: int | None = None
    outcome: str | None = None
    source: str | None = None
    owner: str | None = None
    #: A part of its name, its id or its task's name.
    search: str = ""
    #: ``yes``, ``no``, or ``unknown`` without a reward; by the rule of ``run``, without one by the default.
    passed: Passed | None = None

    def conditions(self, connection: Connection) -> Iterable[ColumnElement[bool]]:
        """Return conditions on a row of ``rollouts``. Raises ``UnknownRun``."""
        yield counted()
        if self.run is not None:
            yield rollouts.c.run_id == resolve_run(connection, self.run, self.owner)
        if self.search:
            named = (rollouts.c.name, rollouts.c.id, rollouts.c.task_label)
            yield or_(*(contains(column, self.search) for column in named))
        if self.passed is not None:
            rule = self.rule(connection)
            yield rule.column.is_(None) if self.passed == "unknown" else rule.passed.is_(self.passed == "yes")
        for name in ("task_key", "environment", "step", "outcome", "source", "owner"):
            value = getattr(self, name)
            if value is not None:
                yield rollouts.c[name] == value

    def rule(self, connection: Connection) -> RewardRule:
        """Return the rule of its run; the default without one. Raises ``UnknownRun``."""
        if self.run is None:
            return DEFAULT
        return RunRules(connection, self.owner).of(resolve_run(connection, self.run, self.owner))


_SUMMARY = select(
    rollouts.c.session,
    runs.c.name.label("run_name"),
    *(
        rollouts.c[name]
        for name in (
            *("id", "run_id", "name", "environment", "variant", "split", "step", "task_key", "task_label", "owner"),
            *("source", "num_messages", "max_reward", "total_reward", "finished", "outcome", "outcome_reason"),
            *("created_at", "last_message_at"),
        )
    ),
).join_from(rollouts, runs, rollouts.c.run_id == runs.c.id, isouter=True)


def list_rollouts(
    connection: Connection,
    wanted: RolloutFilter,
    *,
    order: RolloutOrder = "newest",
    after: str | None = None,
    offset: int = 0,
    limit: int = 50,
) -> Listing[RolloutSummary]:
    """List rollouts, the newest first, or by their reward; those without one come last then.

    Raises ``UnknownRun`` and ``InvalidCursor``.
    """
    query = _SUMMARY.where(*wanted.conditions(connection))
    if order != "newest":
        return _by_reward(connection, query, wanted, highest=order == "highest", after=after, limit=limit)
    if after is not None:
        at, last = read_cursor(after)
        query = query.where(rollouts.c.created_at <= at, or_(rollouts.c.created_at < at, rollouts.c.id < last))
    query = query.order_by(rollouts.c.created_at.desc(), rollouts.c.id.desc()).limit(limit + 1).offset(offset)
    return page_of(_summaries(connection, query, wanted.owner), limit)


def _by_reward(
    connection: Connection, query: Select[Any], wanted: RolloutFilter, *, highest: bool, after: str | None, limit: int
) -> Listing[RolloutSummary]:
    # A reward that is none is beyond every number of its order; JSON and SQL have no infinity for it.
    reward = wanted.rule(connection).column
    without = case((reward.is_(None), 1), else_=0)
    if after is not None:
        at, last = read_cursor(after, str)
        if at:
            value = _number(at)
            query = query.where(
                or_(reward.is_(None), reward < value if highest else reward > value, _tied(reward == value, last))
            )
        else:
            query = query.where(_tied(reward.is_(None), last))
    query = query.order_by(without, reward.desc() if highest else reward, rollouts.c.id.desc()).limit(limit + 1)
    rows = _summaries(connection, query, wanted.owner)
    if len(rows) <= limit:
        return Listing(rows, None)
    end = rows[limit - 1]
    return Listing(rows[:limit], cursor("" if end.reward is None else repr(end.reward), end.id))


def _tied(condition: ColumnElement[bool], last: str) -> ColumnElement[bool]:
    return and_(condition, rollouts.c.id < last)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidCursor() from None
    if not math.isfinite(value):
        raise InvalidCursor()
    return value


def count_rollouts(connection: Connection, wanted: RolloutFilter) -> int:
    """Count rollouts. Raises ``UnknownRun``."""
    query = select(func.count()).select_from(rollouts).where(*wanted.conditions(connection))
    return connection.scalar(query) or 0


def find_summary(connection: Connection, rollout: str, *, owner: str | None = None) -> RolloutSummary:
    """Return the rollout of an id that exists."""
    (found,) = _summaries(connection, _SUMMARY.where(rollouts.c.id == rollout), owner)
    return found


def group_of(connection: Connection, rollout: RolloutSummary, *, limit: int = 64) -> list[RolloutSummary]:
    """List the rollouts of the same task, run and step, the oldest first: a group, as trainers compare it."""
    if rollout.task_key is None:
        return [rollout]
    query = _SUMMARY.where(
        rollouts.c.task_key == rollout.task_key,
        rollouts.c.run_id == rollout.run_id,
        rollouts.c.step.is_not_distinct_from(rollout.step),
        rollouts.c.owner.is_not_distinct_from(rollout.owner),
        or_(rollouts.c.id == rollout.id, counted()),
    )
    query = query.order_by(rollouts.c.created_at, rollouts.c.id).limit(limit)
    return _summaries(connection, query, rollout.owner)


def _summaries(connection: Connection, query: Select[Any], owner: str | None) -> list[RolloutSummary]:
    rows = list(connection.execute(query).mappings())
    marks = _marks_of(connection, [row["id"] for row in rows])
    rules = RunRules(connection, owner)
    others = counterparts(connection, rows, rules)
    again = regrades_of(connection, rows)
    return [
        replace(
            _summary(row, rules.of(row["run_id"])),
            verdict_mark=marks.get(row["id"]),
            counterpart=others.get(row["id"]),
            regrade=again.get(row["id"]),
        )
        for row in rows
    ]


def _summary(row: RowMapping, rule: RewardRule) -> RolloutSummary:
    times = {name: None if row[name] is None else moment(row[name]) for name in ("created_at", "last_message_at")}
    reward = rule.choose(highest=row["max_reward"], total=row["total_reward"])
    made: dict[str, Any] = {
        **{name: value for name, value in row.items() if name != "session"},
        **times,
        "reward": reward,
        "passed": rule.passes(reward),
        "finished": bool(row["finished"]),
    }
    return RolloutSummary(**made)


def _marks_of(connection: Connection, ids: Sequence[str]) -> dict[str, str]:
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
