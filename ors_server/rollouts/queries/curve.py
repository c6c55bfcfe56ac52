"""The reward curve of a run over its steps."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from ors_server.rollouts.aggregates.reward_rule import DEFAULT, RewardRule
from ors_server.rollouts.queries.listed import RolloutFilter
from ors_server.rollouts.queries.runs import statistics_by
from ors_server.rollouts.tables import rollouts

__all__ = ["CurvePoint", "reward_curve"]

#: Points of a curve; of more steps, several make one.
_POINTS = 500


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The rewarded rollouts of one step, or of several where there are many."""

    #: The first of them.
    step: int
    num_rewarded: int
    num_passed: int
    mean_reward: float


def reward_curve(
    connection: Connection, run: str, *, owner: str | None = None, rule: RewardRule = DEFAULT
) -> list[CurvePoint]:
    """Return the mean reward over the steps of a run; nothing where its rollouts have none. Raises ``UnknownRun``."""
    wanted = list(RolloutFilter(run=run, owner=owner).conditions(connection))
    rewarded = (*wanted, rule.column.is_not(None), rollouts.c.step.is_not(None))
    steps = rollouts.c.step
    first, last = connection.execute(select(func.min(steps), func.max(steps)).where(*rewarded)).one()
    if first is None:
        return []
    # Whole numbers divided: the number of the stretch.
    place = ((steps - first) // ((last - first) // _POINTS + 1)).label("place")
    _, _, passed, _, mean = statistics_by(rule)
    query = select(func.min(steps).label("step"), func.count().label("num_rewarded"), passed, mean).where(*rewarded)
    return [CurvePoint(**row) for row in connection.execute(query.group_by(place).order_by(place)).mappings()]
