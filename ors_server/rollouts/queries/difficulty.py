"""Difficulty of each task of an environment, computed from its rollouts.

A rollout counts where it has a reward and names its task (``task_index`` in its ``rollout_info``); its reward is what
it earned by the rule of its run (``earned``), as in the listing of runs. A rollout without a reward was lost to a
failure or is not graded yet, and is left out: it is never a reward of 0.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, null, or_, select

from ors_server.rollouts.aggregates.reward_rule import RunRules
from ors_server.rollouts.queries.counterparts import counted
from ors_server.rollouts.tables import messages, rollouts

__all__ = ["Selection", "task_difficulty"]

PERCENTILES = (1, 10, 25, 50, 75, 90, 99)

_CHARACTERS = (
    select(func.coalesce(func.sum(func.length(func.coalesce(messages.c.content, messages.c.summary, ""))), 0))
    .where(
        messages.c.rollout_id == rollouts.c.id,
        messages.c.type.in_(("assistant_message", "tool_call", "reasoning")),
    )
    .scalar_subquery()
)


@dataclass(frozen=True, slots=True)
class Selection:
    """Filter on the rollouts of an environment; None leaves a condition out."""

    split: str | None = None
    variant: str | None = None
    model_name: str | None = None
    min_model_params: int | None = None
    max_model_params: int | None = None
    training_stage: str | None = None
    #: The key that made the rollouts.
    owner: str | None = None

    def conditions(self) -> Iterable[ColumnElement[bool]]:
        """Return conditions on a row of ``rollouts``."""
        if self.split is not None:
            yield rollouts.c.split == self.split
        if self.owner is not None:
            yield rollouts.c.owner == self.owner
        if self.variant is not None:
            yield rollouts.c.variant == self.variant

    @property
    def of_model(self) -> bool:
        """Return whether it has a condition on the model."""
        return any(
            value is not None
            for value in (self.model_name, self.min_model_params, self.max_model_params, self.training_stage)
        )

    def has_model(self, run_info: str | None) -> bool:
        """Return whether the model that a client named is one of those."""
        # Read here and not by the database: clients send objects that PostgreSQL's JSON refuses.
        try:
            said: Any = json.loads(run_info or "{}")
        except (ValueError, RecursionError):
            return False
        parameters = said.get("model_params")
        number = parameters if type(parameters) in (int, float) else None
        return (
            self.model_name in (None, said.get("model_name"))
            and self.training_stage in (None, said.get("training_stage"))
            and (self.min_model_params is None or (number is not None and number >= self.min_model_params))
            and (self.max_model_params is None or (number is not None and number <= self.max_model_params))
        )


def task_difficulty(
    connection: Connection, environment_id: str, is_named: Callable[[str], bool], selection: Selection
) -> list[dict[str, Any]]:
    """Compute the difficulty of each task, ordered by split, variant (both nulls first) and index.

    A rollout is of the environment if a server gave it ``environment_id``, or if ``is_named`` holds for the name it was
    uploaded under. Raises ``SQLAlchemyError``.
    """
    known = select(rollouts.c.environment).where(rollouts.c.environment.is_not(None)).distinct()
    names = [name for name in connection.scalars(known) if is_named(name)]
    query = (
        select(
            rollouts.c.split,
            rollouts.c.variant,
            rollouts.c.task_index,
            rollouts.c.run_id,
            rollouts.c.max_reward,
            rollouts.c.total_reward,
            (_CHARACTERS + rollouts.c.response_characters).label("characters"),
            rollouts.c.run_info if selection.of_model else null().label("run_info"),
        )
        .where(
            rollouts.c.max_reward.is_not(None),
            rollouts.c.task_index.is_not(None),
            counted(),
            or_(rollouts.c.environment_id == environment_id, rollouts.c.environment.in_(names)),
            *selection.conditions(),
        )
        .order_by(rollouts.c.split.nulls_first(), rollouts.c.variant.nulls_first(), rollouts.c.task_index)
    )
    rules = RunRules(connection, selection.owner)
    rows = (row for row in connection.execute(query) if not selection.of_model or selection.has_model(row.run_info))
    return [
        _statistics(
            key,
            [
                (rules.of(row.run_id).choose(highest=row.max_reward, total=row.total_reward), int(row.characters))
                for row in group
            ],
        )
        for key, group in itertools.groupby(rows, lambda row: (row.split, row.variant, row.task_index))
    ]


def _statistics(
    key: tuple[str | None, str | None, int], rollouts: Sequence[tuple[float | None, int]]
) -> dict[str, Any]:
    split, variant, task_index = key
    rewards = [reward for reward, _ in rollouts if reward is not None]
    characters = sorted(count for _, count in rollouts)
    return {
        "task_index": task_index,
        # Divided first: the sum of finite rewards need not be finite.
        "avg_reward": math.fsum(reward / len(rewards) for reward in rewards),
        "min_reward": min(rewards),
        "max_reward": max(rewards),
        "num_rollouts": len(rollouts),
        "response_chars": {
            "mean": sum(characters) / len(characters),
            **{f"p{percent}": _percentile(characters, percent) for percent in PERCENTILES},
        },
        "split": split,
        "variant": variant,
    }


def _percentile(ordered: Sequence[int], percent: int) -> float:
    """Return a percentile of sorted numbers, interpolated between neighbours."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
