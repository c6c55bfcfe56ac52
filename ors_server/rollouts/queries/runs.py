"""Runs: what the rollouts of one name have in common."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, exists, func, or_, select, true

from ors_server.rollouts.aggregates.derived_columns import LOST
from ors_server.rollouts.aggregates.finite_sums import safe_mean
from ors_server.rollouts.aggregates.reward_rule import DEFAULT, RewardRule, RunRules
from ors_server.rollouts.errors import UnknownRun
from ors_server.rollouts.queries.counterparts import counted
from ors_server.rollouts.queries.paging import Listing, iso_time, moment, page_of, read_cursor
from ors_server.rollouts.storing.additions import run_id
from ors_server.rollouts.tables import rollouts, runs

__all__ = ["RunSummary", "contains", "count_runs", "find_run", "list_runs", "owned", "resolve_run", "statistics_by"]


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

    def as_json(self) -> dict[str, Any]:
        """Return the run as the platform's API has it."""
        return {
            "id": self.id,
            "name": self.name,
            "num_rollouts": self.num_rollouts,
            "avg_rollout_reward": self.mean_reward,
            "avg_rollout_length": self.mean_messages,
            "created_at": iso_time(self.created_at),
            "updated_at": iso_time(self.updated_at),
        }


def statistics_by(rule: RewardRule) -> tuple[ColumnElement[Any], ...]:
    """Return the columns of a summary of rollouts that a rule judges: their numbers, and their mean reward."""
    reward = rule.column
    return (
        func.count().label("num_rollouts"),
        func.count(reward).label("num_rewarded"),
        func.count(case((rule.passed, 1))).label("num_passed"),
        func.count(case((rollouts.c.outcome == LOST, 1))).label("num_lost"),
        safe_mean(reward).label("mean_reward"),
    )


_LATEST = func.max(
    case((rollouts.c.last_message_at > rollouts.c.started_at, rollouts.c.last_message_at), else_=rollouts.c.started_at)
)
_BEGUN: ColumnElement[Any] = func.min(rollouts.c.created_at)


def _of_runs(owner: str | None, rule: RewardRule = DEFAULT) -> Any:
    query = select(
        runs.c.id,
        runs.c.name,
        *statistics_by(rule),
        safe_mean(rollouts.c.num_messages).label("mean_messages"),
        _BEGUN.label("created_at"),
        _LATEST.label("updated_at"),
    ).join_from(runs, rollouts, rollouts.c.run_id == runs.c.id)
    return query.where(owned(owner), counted()).group_by(runs.c.id, runs.c.name)


def list_runs(
    connection: Connection,
    *,
    search: str = "",
    owner: str | None = None,
    after: str | None = None,
    offset: int = 0,
    limit: int = 50,
) -> Listing[RunSummary]:
    """List the runs whose name contains ``search``, those that began last first. Raises ``InvalidCursor``."""
    query = _of_runs(owner).where(contains(runs.c.name, search))
    if after is not None:
        at, last = read_cursor(after)
        begun = _BEGUN
        query = query.having(or_(begun < at, and_(begun == at, runs.c.id < last)))
    query = query.order_by(_BEGUN.desc(), runs.c.id.desc()).limit(limit + 1).offset(offset)
    rules = RunRules(connection, owner)
    # Few runs have a rule of their own: those are counted again.
    rows = [
        _summary(row, DEFAULT) if rules.of(row["id"]) == DEFAULT else find_run(connection, row["id"], owner=owner)
        for row in connection.execute(query).mappings().all()
    ]
    return page_of(rows, limit)


def count_runs(connection: Connection, *, search: str = "", owner: str | None = None) -> int:
    """Count the runs whose name contains ``search``."""
    query = select(func.count()).select_from(runs).where(contains(runs.c.name, search), _made_by(owner))
    return connection.scalar(query) or 0


def find_run(connection: Connection, run: str, *, owner: str | None = None) -> RunSummary:
    """Find a run by its id or name. Raises ``UnknownRun``, also for one of which ``owner`` has no rollout."""
    found = resolve_run(connection, run, owner)
    rule = RunRules(connection, owner).of(found)
    row = connection.execute(_of_runs(owner, rule).where(runs.c.id == found)).mappings().one_or_none()
    if row is None:
        raise UnknownRun(run)
    return _summary(row, rule)


def resolve_run(connection: Connection, run: str, owner: str | None = None) -> str:
    """Return the id of a run that is given by its id or its name.

    Raises ``UnknownRun``, also for one of which ``owner`` has no rollout that is counted.
    """
    for candidate in (run, run_id(run)):
        found = connection.scalar(select(runs.c.id).where(runs.c.id == candidate, _made_by(owner)))
        if found is not None:
            return found
    raise UnknownRun(run)


def owned(owner: str | None) -> ColumnElement[bool]:
    """Return the condition that a key made a rollout; with None anyone may have."""
    return true() if owner is None else rollouts.c.owner == owner


def _made_by(owner: str | None) -> ColumnElement[bool]:
    return exists().where(rollouts.c.run_id == runs.c.id, owned(owner), counted())


def contains(column: ColumnElement[Any], search: str) -> ColumnElement[bool]:
    """Return the condition that a text contains another one, in any case."""
    if not search:
        return true()
    pattern = f"%{search.replace('!', '!!').replace('%', '!%').replace('_', '!_')}%"
    return column.ilike(pattern, escape="!")


def _summary(row: RowMapping, rule: RewardRule) -> RunSummary:
    times = {name: moment(row[name]) for name in ("created_at", "updated_at")}
    made: dict[str, Any] = {**row, **times, "mean_messages": float(row["mean_messages"]), "rule": rule}
    return RunSummary(**made)
