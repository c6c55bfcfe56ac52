"""Difficulty of each task of an environment, computed from its uploaded rollouts.

A rollout counts where it has a reward and names its task (``task_index`` in its ``rollout_info``); its reward is its
``max_reward``, as in the listing of runs. A rollout without a reward was lost to a failure or is not graded yet, and is
left out: it is never a reward of 0.
"""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ors_server.encoding import encode

__all__ = ["Selection", "task_difficulty"]

PERCENTILES = (1, 10, 25, 50, 75, 90, 99)

_ROLLOUTS = """
SELECT split, variant, task_index, max_reward AS reward, (
    SELECT coalesce(sum(length(coalesce(content, summary, ''))), 0) FROM messages
    WHERE messages.rollout_id = chosen.id AND type IN ('assistant_message', 'tool_call', 'reasoning')
) AS characters
FROM (
    SELECT id, split, variant, max_reward, (
        -- Of several updates the last one that says it counts, as where updates are merged.
        SELECT CASE json_type(rollout_info, '$.task_index')
            WHEN 'integer' THEN json_extract(rollout_info, '$.task_index') END
        FROM updates
        WHERE updates.rollout_id = rollouts.id AND json_type(rollout_info, '$.task_index') IS NOT NULL
        ORDER BY sent_at DESC, rollout_info DESC LIMIT 1
    ) AS task_index
    FROM rollouts WHERE max_reward IS NOT NULL AND {conditions}
) AS chosen
WHERE typeof(task_index) = 'integer'
ORDER BY split, variant, task_index
"""
_NAMES = "SELECT DISTINCT environment FROM rollouts WHERE environment IS NOT NULL"
#: A model's number of parameters, where it is a number.
_PARAMETERS = (
    "CASE WHEN json_type(run_info, '$.model_params') IN ('integer', 'real')"
    " THEN json_extract(run_info, '$.model_params') END"
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

    def conditions(self) -> Iterable[tuple[str, object]]:
        """Return SQL conditions on a row of ``rollouts``, each with the value of its parameter."""
        for condition, value in (
            ("split = ?", self.split),
            ("variant = ?", self.variant),
            ("json_extract(run_info, '$.model_name') = ?", self.model_name),
            (f"{_PARAMETERS} >= ?", self.min_model_params),
            (f"{_PARAMETERS} <= ?", self.max_model_params),
            ("json_extract(run_info, '$.training_stage') = ?", self.training_stage),
        ):
            if value is not None:
                yield condition, value


def task_difficulty(
    connection: sqlite3.Connection, environment_id: str, is_named: Callable[[str], bool], selection: Selection
) -> list[dict[str, Any]]:
    """Compute the difficulty of each task, ordered by split, variant (both nulls first) and index.

    A rollout is of the environment if a server gave it ``environment_id``, or if ``is_named`` holds for the name it was
    uploaded under. Raises ``sqlite3.Error``.
    """
    names = [row["environment"] for row in connection.execute(_NAMES) if is_named(row["environment"])]
    conditions = ["(environment_id = ? OR environment IN (SELECT value FROM json_each(?)))"]
    parameters: list[object] = [environment_id, encode(names).decode()]
    for condition, value in selection.conditions():
        conditions.append(condition)
        parameters.append(value)
    query = _ROLLOUTS.format(conditions=" AND ".join(conditions))
    rows = connection.execute(query, parameters)
    return [
        _statistics(key, [(row["reward"], row["characters"]) for row in group])
        for key, group in itertools.groupby(rows, lambda row: (row["split"], row["variant"], row["task_index"]))
    ]


def _statistics(key: tuple[str | None, str | None, int], rollouts: Sequence[tuple[float, int]]) -> dict[str, Any]:
    split, variant, task_index = key
    rewards = [reward for reward, _ in rollouts]
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
