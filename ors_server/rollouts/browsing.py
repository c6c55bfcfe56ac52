"""Typed queries for pages: runs, their rollouts in pages by cursor, groups of a task, pass rates and reward curves.

Each function takes a connection of ``RolloutStore.reading``::

    with store.reading() as connection:
        if connection is not None:  # None where nothing was ever stored
            page = browse_rollouts(connection, RolloutFilter(run="my-run"))

Lists come newest first, in pages: ``next`` of a page is the ``after`` of the following one, None at the end. A page
costs the same wherever it lies. Where ``owner`` is given, only rollouts that this key made exist. The rule of its run
says what a rollout earned and whether it passed (``earned``); lost rollouts have no reward, and are in no mean and no
rate.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, case, func, or_, select

from ors_server.rollouts.derived import LOST
from ors_server.rollouts.earned import DEFAULT, RewardRule, RunRules
from ors_server.rollouts.errors import InvalidCursor, UnknownRun
from ors_server.rollouts.queries import find_rollout, marks_of, named_like, resolve_run
from ors_server.rollouts.sums import safe_mean
from ors_server.rollouts.tables import rollouts, runs

__all__ = [
    "CurvePoint",
    "Listing",
    "RolloutDetail",
    "RolloutFilter",
    "RolloutSummary",
    "RunSummary",
    "TaskSummary",
    "browse_rollouts",
    "browse_runs",
    "find_run_summary",
    "group_of",
    "read_rollout",
    "reward_curve",
    "task_summaries",
]

Row = TypeVar("Row")

#: Points of a curve over time, where rollouts have no step.
_POINTS = 100


@dataclass(frozen=True, slots=True)
class Listing(Generic[Row]):
    """A page of a list."""

    rows: list[Row]
    #: The cursor of the next page.
    next: str | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run, and what its rollouts have in common."""

    id: str
    name: str
    num_rollouts: int
    #: Those with a reward.
    num_rewarded: int
    num_passed: int
    num_lost: int
    rule: RewardRule
    mean_reward: float | None
    mean_messages: float
    created_at: datetime
    updated_at: datetime

    @property
    def pass_rate(self) -> float | None:
        """The share of rewarded rollouts that passed."""
        return self.num_passed / self.num_rewarded if self.num_rewarded else None


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
    #: What it earned by the rule of its run.
    reward: float | None
    max_reward: float | None
    total_reward: float | None
    finished: bool
    outcome: str | None
    outcome_reason: str | None
    created_at: datetime | None
    last_message_at: datetime | None
    #: A reservation about the verdict (``marks``).
    verdict_mark: str | None = None


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """A rollout with its conversation.

    ``content`` is the dictionary of ``queries.find_rollout``: ``messages``, ``task_spec``, ``metadata``, ``run_info``,
    ``rollout_info`` and the rest.
    """

    summary: RolloutSummary
    content: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages, as ``queries.messages_of`` returns them."""
        return self.content["messages"]


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """The rollouts of one task."""

    key: str
    label: str | None
    environment: str | None
    split: str | None
    num_rollouts: int
    num_rewarded: int
    num_passed: int
    num_lost: int
    mean_reward: float | None

    @property
    def pass_rate(self) -> float | None:
        """The share of rewarded rollouts that passed."""
        return self.num_passed / self.num_rewarded if self.num_rewarded else None


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The rewarded rollouts of one step, or of one stretch of time."""

    step: int | None
    #: The beginning of the stretch, where there is no step.
    at: datetime | None
    num_rewarded: int
    num_passed: int
    mean_reward: float


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Conditions on rollouts; None leaves one out. ``run`` is an id or a name."""

    run: str | None = None
    task_key: str | None = None
    environment: str | None = None
    step: int | None = None
    outcome: str | None = None
    source: str | None = None
    owner: str | None = None

    def conditions(self, connection: Connection) -> Iterable[ColumnElement[bool]]:
        """Return conditions on a row of ``rollouts``. Raises ``UnknownRun``."""
        if self.run is not None:
            yield rollouts.c.run_id == resolve_run(connection, self.run)
        for name in ("task_key", "environment", "step", "outcome", "source", "owner"):
            value = getattr(self, name)
            if value is not None:
                yield rollouts.c[name] == value


# --- runs ----------------------------------------------------------------------------------------


def _statistics(rule: RewardRule = DEFAULT) -> tuple[ColumnElement[Any], ...]:
    reward = rule.column
    return (
        func.count().label("num_rollouts"),
        func.count(reward).label("num_rewarded"),
        func.count(case((rule.passed, 1))).label("num_passed"),
        func.count(case((rollouts.c.outcome == LOST, 1))).label("num_lost"),
        safe_mean(reward).label("mean_reward"),
    )


_LATEST = func.max(func.coalesce(rollouts.c.last_message_at, rollouts.c.started_at))
_BEGUN: ColumnElement[Any] = func.min(rollouts.c.created_at)


def _of_runs(owner: str | None, rule: RewardRule = DEFAULT) -> Any:
    query = select(
        runs.c.id,
        runs.c.name,
        *_statistics(rule),
        safe_mean(rollouts.c.num_messages).label("mean_messages"),
        _BEGUN.label("created_at"),
        _LATEST.label("updated_at"),
    ).join_from(runs, rollouts, rollouts.c.run_id == runs.c.id)
    query = query.group_by(runs.c.id, runs.c.name)
    return query if owner is None else query.where(rollouts.c.owner == owner)


def browse_runs(
    connection: Connection, *, search: str = "", owner: str | None = None, after: str | None = None, limit: int = 50
) -> Listing[RunSummary]:
    """List the runs whose name contains ``search``, those that began last first. Raises ``InvalidCursor``."""
    query = _of_runs(owner).where(named_like(search))
    if after is not None:
        at, last = _read_cursor(after)
        begun = _BEGUN
        query = query.having(or_(begun < at, and_(begun == at, runs.c.id < last)))
    query = query.order_by(_BEGUN.desc(), runs.c.id.desc()).limit(limit + 1)
    rules = RunRules(connection, owner)
    rows = [_run(row, DEFAULT) for row in connection.execute(query).mappings().all()]
    # Few runs have a rule of their own: those are counted again.
    own = {row.id for row in rows if rules.of(row.id) != DEFAULT}
    rows = [find_run_summary(connection, row.id, owner=owner) if row.id in own else row for row in rows]
    return _listing(rows, limit)


def find_run_summary(connection: Connection, run: str, *, owner: str | None = None) -> RunSummary:
    """Find a run by its id or name. Raises ``UnknownRun``, also where ``owner`` made no rollout of it."""
    found = resolve_run(connection, run)
    rule = RunRules(connection, owner).of(found)
    row = connection.execute(_of_runs(owner, rule).where(runs.c.id == found)).mappings().one_or_none()
    if row is None:
        raise UnknownRun(run)
    return _run(row, rule)


def _run(row: RowMapping, rule: RewardRule) -> RunSummary:
    times = {name: _moment(row[name]) for name in ("created_at", "updated_at")}
    made: dict[str, Any] = {
        **row,
        **times,
        "mean_messages": float(row["mean_messages"]),
        "rule": rule,
    }
    return RunSummary(**made)


# --- rollouts ------------------------------------------------------------------------------------

_SUMMARY = select(
    runs.c.name.label("run_name"),
    *(
        rollouts.c[name]
        for name in (
            "id",
            "run_id",
            "name",
            "environment",
            "variant",
            "split",
            "step",
            "task_key",
            "task_label",
            "owner",
            "source",
            "num_messages",
            "max_reward",
            "total_reward",
            "finished",
            "outcome",
            "outcome_reason",
            "created_at",
            "last_message_at",
        )
    ),
).join_from(rollouts, runs, rollouts.c.run_id == runs.c.id, isouter=True)


def browse_rollouts(
    connection: Connection, wanted: RolloutFilter, *, after: str | None = None, limit: int = 50
) -> Listing[RolloutSummary]:
    """List rollouts, the newest first. Raises ``UnknownRun`` and ``InvalidCursor``."""
    query = _SUMMARY.where(*wanted.conditions(connection))
    if after is not None:
        at, last = _read_cursor(after)
        query = query.where(rollouts.c.created_at <= at, or_(rollouts.c.created_at < at, rollouts.c.id < last))
    query = query.order_by(rollouts.c.created_at.desc(), rollouts.c.id.desc()).limit(limit + 1)
    return _listing(_summaries(connection, query), limit)


def read_rollout(connection: Connection, rollout: str, *, owner: str | None = None) -> RolloutDetail:
    """Read a rollout with its conversation, by its id or the beginning of it.

    Raises ``RolloutError``, also where ``owner`` did not make it.
    """
    content = find_rollout(connection, rollout, owner=owner)
    (found,) = _summaries(connection, _SUMMARY.where(rollouts.c.id == content["id"]))
    return RolloutDetail(found, content)


def group_of(connection: Connection, rollout: RolloutSummary, *, limit: int = 64) -> list[RolloutSummary]:
    """List the rollouts of the same task, run and step, the oldest first: a group, as trainers compare it."""
    if rollout.task_key is None:
        return [rollout]
    query = _SUMMARY.where(
        rollouts.c.task_key == rollout.task_key,
        rollouts.c.run_id == rollout.run_id,
        rollouts.c.step.is_not_distinct_from(rollout.step),
        rollouts.c.owner.is_not_distinct_from(rollout.owner),
    )
    query = query.order_by(rollouts.c.created_at, rollouts.c.id).limit(limit)
    return _summaries(connection, query)


def _summaries(connection: Connection, query: Select[Any]) -> list[RolloutSummary]:
    rows = list(connection.execute(query).mappings())
    marks = marks_of(connection, [row["id"] for row in rows])
    rules = RunRules(connection)
    return [_summary(row, rules.of(row["run_id"]), marks.get(row["id"])) for row in rows]


def _summary(row: RowMapping, rule: RewardRule, mark: str | None) -> RolloutSummary:
    times = {name: None if row[name] is None else _moment(row[name]) for name in ("created_at", "last_message_at")}
    reward = rule.choose(highest=row["max_reward"], total=row["total_reward"])
    made: dict[str, Any] = {
        **row,
        **times,
        "reward": reward,
        "finished": bool(row["finished"]),
        "verdict_mark": mark,
    }
    return RolloutSummary(**made)


# --- statistics ----------------------------------------------------------------------------------


def task_summaries(
    connection: Connection,
    run: str,
    *,
    owner: str | None = None,
    after: str | None = None,
    limit: int = 50,
    rule: RewardRule = DEFAULT,
) -> Listing[TaskSummary]:
    """List the tasks of a run with their pass rates, by their keys. Raises ``UnknownRun`` and ``InvalidCursor``."""
    wanted = RolloutFilter(run=run, owner=owner)
    grouped = (
        select(
            rollouts.c.task_key.label("key"),
            *_statistics(rule),
        )
        .where(*wanted.conditions(connection), rollouts.c.task_key.is_not(None))
        .group_by(rollouts.c.task_key)
        .order_by(rollouts.c.task_key)
        .limit(limit + 1)
    )
    if after is not None:
        grouped = grouped.where(rollouts.c.task_key > _read_cursor(after)[1])
    found = [dict(row) for row in connection.execute(grouped).mappings()]
    names = {row["key"]: row for row in _names_of_tasks(connection, [row["key"] for row in found])}
    rows = [TaskSummary(**row, **_named(names, row["key"])) for row in found]
    more = len(rows) > limit
    return Listing(rows[:limit], _cursor(0, rows[limit - 1].key) if more else None)


def _names_of_tasks(connection: Connection, keys: list[str]) -> Iterable[RowMapping]:
    query = select(
        rollouts.c.task_key.label("key"),
        func.max(rollouts.c.task_label).label("label"),
        func.max(rollouts.c.environment).label("environment"),
        func.max(rollouts.c.split).label("split"),
    )
    return connection.execute(query.where(rollouts.c.task_key.in_(keys)).group_by(rollouts.c.task_key)).mappings()


def _named(names: dict[str, RowMapping], key: str) -> dict[str, Any]:
    return {name: names[key][name] for name in ("label", "environment", "split")}


def reward_curve(
    connection: Connection, run: str, *, owner: str | None = None, rule: RewardRule = DEFAULT
) -> list[CurvePoint]:
    """Return the mean reward over the steps of a run, or over its time where its rollouts have no steps.

    Raises ``UnknownRun``.
    """
    wanted = list(RolloutFilter(run=run, owner=owner).conditions(connection))
    rewarded = (*wanted, rule.column.is_not(None))
    first, last, steps = connection.execute(
        select(func.min(rollouts.c.created_at), func.max(rollouts.c.created_at), func.count(rollouts.c.step)).where(
            *rewarded
        )
    ).one()
    if first is None:
        return []
    width = (last - first) // _POINTS + 1
    # Whole numbers divided: the number of the stretch.
    place: ColumnElement[Any] = rollouts.c.step if steps else (rollouts.c.created_at - first) // width
    grouped = place.label("place")
    _, _, passed, _, mean = _statistics(rule)
    query = select(grouped, func.count().label("num_rewarded"), passed, mean).where(*rewarded)
    if steps:
        query = query.where(rollouts.c.step.is_not(None))
    query = query.group_by(grouped).order_by(grouped)
    return [
        CurvePoint(
            int(row["place"]) if steps else None,
            None if steps else _moment(first + int(row["place"]) * width),
            row["num_rewarded"],
            row["num_passed"],
            row["mean_reward"],
        )
        for row in connection.execute(query).mappings()
    ]


# --- cursors -------------------------------------------------------------------------------------


def _listing(rows: list[Any], limit: int) -> Listing[Any]:
    if len(rows) <= limit:
        return Listing(rows, None)
    last = rows[limit - 1]
    return Listing(rows[:limit], _cursor(round(last.created_at.timestamp() * 1000), last.id))


def _cursor(at: int, last: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([at, last]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> tuple[int, str]:
    try:
        at, last = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if not isinstance(at, int) or not isinstance(last, str) or abs(at) >= 2**63:
            raise ValueError("not a cursor")
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise InvalidCursor() from None
    return at, last


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
