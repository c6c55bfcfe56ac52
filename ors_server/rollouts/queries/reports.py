"""The report of a run as it was uploaded, and figures of the same kind for runs without one, made of their rollouts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, true

from ors_server.rollouts.aggregates.derived_columns import LOST
from ors_server.rollouts.queries.listed import RolloutFilter
from ors_server.rollouts.queries.runs import RunSummary
from ors_server.rollouts.reports.formats import StoredReport, read_report
from ors_server.rollouts.reports.task_scores import LARGEST_REWARD, TaskScore, default_ks, pass_at, reward_figures
from ors_server.rollouts.tables import reports, rollouts

__all__ = ["Figures", "figures_of", "find_report", "lost_by_reason", "outcomes_of", "scores_of"]

#: Largest k of pass@k, for runs that name none; different rewards of a run that figures are made of, at most.
_LARGEST_K, _MOST = 64, 100_000
_REASONS = 10


def find_report(connection: Connection, run: str, *, owner: str | None = None) -> StoredReport | None:
    """Return the newest report of the run of an id, of ``owner`` where one is given; None for none."""
    own = true() if owner is None else reports.c.owner == owner
    query = select(reports.c.kind, reports.c.version, reports.c.report).where(reports.c.run_id == run, own)
    row = connection.execute(query.order_by(reports.c.sent_at.desc(), reports.c.owner).limit(1)).one_or_none()
    return None if row is None else read_report(row.kind, row.version, row.report)


@dataclass(frozen=True, slots=True)
class Figures:
    """The score of a run, or of its last step, over the rollouts that name their task."""

    scores: dict[str, TaskScore]
    #: As a report has them (``task_scores``); no reward where one is too large to be squared.
    pass_at_k: list[dict[str, Any]]
    reward: dict[str, Any] | None
    #: The last step, where rollouts have steps: the model of one step is not that of another.
    step: int | None


def figures_of(connection: Connection, run: RunSummary, *, owner: str | None = None) -> Figures | None:
    """Return the figures of a run; None where no rollout with a reward names its task, and of too many rewards."""
    last = connection.scalar(select(func.max(rollouts.c.step)).where(*_of(connection, run, owner)))
    scores = scores_of(connection, run, owner=owner, step=last)
    if not scores:
        return None
    tasks = list(scores.values())
    ks = default_ks(min(_LARGEST_K, max(task.samples for task in tasks)))
    large = any(abs(reward) > LARGEST_REWARD for task in tasks for reward in task.rewards)
    return Figures(scores, [pass_at(tasks, k) for k in ks], None if large else reward_figures(tasks), last)


def scores_of(
    connection: Connection, run: RunSummary, *, owner: str | None = None, step: int | None = None, planned: int = 0
) -> dict[str, TaskScore] | None:
    """Return the scores of a run's tasks by their keys, of one step or of all; None of too many different rewards.

    ``planned`` is the number of samples of each task, where it is known.
    """
    reward = run.rule.column
    query = (
        select(rollouts.c.task_key, reward, func.count())
        .where(*_of(connection, run, owner), rollouts.c.task_key.is_not(None), reward.is_not(None))
        .group_by(rollouts.c.task_key, reward)
        .order_by(rollouts.c.task_key)
        .limit(_MOST + 1)
    )
    rows = connection.execute(query if step is None else query.where(rollouts.c.step == step)).all()
    if len(rows) > _MOST:
        return None
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    passed: defaultdict[str, int] = defaultdict(int)
    for key, value, count in rows:
        rewards[key] += [value] * count
        passed[key] += count if run.rule.passes(value) else 0
    return {
        key: TaskScore({"key": key}, found, passed[key], max(0, planned - len(found))) for key, found in rewards.items()
    }


def outcomes_of(connection: Connection, run: RunSummary, *, owner: str | None = None) -> list[tuple[str | None, int]]:
    """Return how many rollouts of a run ended in each way, the most frequent first; None where none was said."""
    count = func.count()
    query = select(rollouts.c.outcome, count).where(*_of(connection, run, owner)).group_by(rollouts.c.outcome)
    return [(outcome, number) for outcome, number in connection.execute(query.order_by(count.desc()))]


def lost_by_reason(
    connection: Connection, run: RunSummary, *, owner: str | None = None
) -> list[tuple[str | None, int]]:
    """Return how many rollouts of a run were lost for each reason, the ten most frequent first."""
    count, reason = func.count(), rollouts.c.outcome_reason
    lost = (*_of(connection, run, owner), rollouts.c.outcome == LOST)
    query = select(reason, count).where(*lost).group_by(reason)
    rows = connection.execute(query.order_by(count.desc(), reason).limit(_REASONS))
    return [(said, number) for said, number in rows]


def _of(connection: Connection, run: RunSummary, owner: str | None) -> list[ColumnElement[bool]]:
    return list(RolloutFilter(run=run.id, owner=owner).conditions(connection))
