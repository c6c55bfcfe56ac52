"""The tasks of a run with their pass rates, and its reward curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select

from ors_server.rollouts.aggregates.reward_rule import DEFAULT, RewardRule
from ors_server.rollouts.queries.listed import RolloutFilter
from ors_server.rollouts.queries.paging import Listing, cursor, moment, read_cursor
from ors_server.rollouts.queries.runs import statistics_by
from ors_server.rollouts.tables import rollouts

__all__ = ["CurvePoint", "TaskSummary", "reward_curve", "task_summaries"]

#: Points of a curve over time, where rollouts have no step.
_POINTS = 100


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
            *statistics_by(rule),
        )
        .where(*wanted.conditions(connection), rollouts.c.task_key.is_not(None))
        .group_by(rollouts.c.task_key)
        .order_by(rollouts.c.task_key)
        .limit(limit + 1)
    )
    if after is not None:
        grouped = grouped.where(rollouts.c.task_key > read_cursor(after)[1])
    found = [dict(row) for row in connection.execute(grouped).mappings()]
    names = {row["key"]: row for row in _names_of_tasks(connection, [row["key"] for row in found])}
    rows = [TaskSummary(**row, **_named(names, row["key"])) for row in found]
    more = len(rows) > limit
    return Listing(rows[:limit], cursor(0, rows[limit - 1].key) if more else None)


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
    _, _, passed, _, mean = statistics_by(rule)
    query = select(grouped, func.count().label("num_rewarded"), passed, mean).where(*rewarded)
    if steps:
        query = query.where(rollouts.c.step.is_not(None))
    query = query.group_by(grouped).order_by(grouped)
    return [
        CurvePoint(
            int(row["place"]) if steps else None,
            None if steps else moment(first + int(row["place"]) * width),
            row["num_rewarded"],
            row["num_passed"],
            row["mean_reward"],
        )
        for row in connection.execute(query).mappings()
    ]
