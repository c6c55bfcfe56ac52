"""The one rule of reward: what an episode earned, and whether it passed.

By default an episode earned the sum of its rewards, and passes from 1 on. A run may have a rule of its own, which
stands in the ``run_info`` of its rollouts: ``reward`` is ``max`` where the highest reward counts, ``success_at`` the
number from which on an episode passes. A lost rollout earned nothing that counts: it is in no mean and no rate.

Nothing derived is stored: a rule is read with the rows, so rollouts that were stored before have the right value too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, case, func, select, true

from ors_server.rollouts.aggregates.derived_columns import merged
from ors_server.rollouts.tables import rollouts

__all__ = ["DEFAULT", "RewardRule", "RunRules", "info_of", "rule_of"]

#: Rewards that are computed differ from the number that is meant by no more than this.
_ROUNDING = 1e-9
#: A larger number is not a threshold.
_LARGEST = 1e100
#: Longest ``run_info`` of which a rule is read, in characters.
_LONGEST_INFO = 16_384


@dataclass(frozen=True, slots=True)
class RewardRule:
    """The rule of a run: in SQL over rows of ``rollouts``, and over the rewards of one rollout."""

    highest: bool = False
    passed_from: float = 1.0

    @property
    def column(self) -> ColumnElement[Any]:
        """The reward of a row; NULL where there is none."""
        return rollouts.c.max_reward if self.highest else rollouts.c.total_reward

    @property
    def passed(self) -> ColumnElement[bool]:
        """Return whether a row passed; NULL where it has no reward."""
        return self.column >= self.passed_from - _ROUNDING

    def choose(self, *, highest: float | None, total: float | None) -> float | None:
        """Return the reward of a rollout whose highest reward and whose sum are known."""
        return highest if self.highest else total

    def passes(self, reward: float | None) -> bool | None:
        """Return whether a reward passes; None where there is none."""
        return None if reward is None else reward >= self.passed_from - _ROUNDING


DEFAULT = RewardRule()


def rule_of(run_info: str | None) -> RewardRule:
    """Read the rule of a run from what its rollouts say; what cannot be a rule is the default."""
    said = {} if run_info is None else merged([(0, run_info)])
    # Evaluations of earlier versions stored an episode's reward as its highest one, whatever their rule.
    highest = said.get("reward", "max" if said.get("kind") == "evaluation" else "sum") == "max"
    threshold: object = said.get("success_at")
    if isinstance(threshold, (int, float)) and not isinstance(threshold, bool) and -_LARGEST <= threshold <= _LARGEST:
        return RewardRule(highest, float(threshold))
    return RewardRule(highest)


class RunRules:
    """The rules of runs, each read once, as its first rollout has it; of ``owner`` where one is given."""

    def __init__(self, connection: Connection, owner: str | None = None) -> None:
        self._connection = connection
        self._owner = owner
        self._known: dict[str | None, RewardRule] = {None: DEFAULT}

    def of(self, run_id: str | None) -> RewardRule:
        """Return the rule of a run; the default for a rollout of none."""
        if run_id not in self._known:
            self._known[run_id] = self._read(run_id)
        return self._known[run_id]

    def _read(self, run_id: str | None) -> RewardRule:
        return rule_of(info_of(self._connection, run_id, self._owner))


def info_of(connection: Connection, run_id: str | None, owner: str | None = None) -> str | None:
    """Return the ``run_info`` of the first rollout of a run, as JSON; None where it has none, or a long one."""
    # A long one is of another program's: it would take long to read, for each view of a page.
    said_by = case((func.length(rollouts.c.run_info) <= _LONGEST_INFO, rollouts.c.run_info))
    owned = true() if owner is None else rollouts.c.owner == owner
    query = select(said_by).where(rollouts.c.run_id == run_id, owned)
    return connection.scalar(query.order_by(rollouts.c.created_at, rollouts.c.id).limit(1))
