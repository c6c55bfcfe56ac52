"""A comparison of two runs over the same tasks: paired by task, so that hard and easy tasks cancel out.

A run is a journal, or the JSON of a report. Runs of other tasks, or that count successes by another rule, are refused:
their numbers mean different things. Everything else in which the runs differ is listed, for it may be the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ors_clients.errors import EvaluationError
from ors_clients.evaluation.journal import RunRecord, read_run
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import scores
from ors_clients.evaluation.tasks import differing_tasks
from ors_server.rollouts.reports.comparison import compare_scores
from ors_server.rollouts.reports.task_scores import LARGEST_REWARD, TaskScore

__all__ = ["ComparedRun", "compare", "read_compared"]

#: Settings that decide what a score is.
_RULES = ("reward", "success_at")


@dataclass(frozen=True)
class ComparedRun:
    """One of two runs."""

    name: str
    settings: EvaluationSettings
    tasks: Sequence[Mapping[str, Any]]
    scores: Sequence[TaskScore]

    @classmethod
    def of(cls, record: RunRecord) -> ComparedRun:
        """Return a run by its journal."""
        return cls(record.name, record.settings, record.tasks, scores(record))


def read_compared(folder: Path, name: str) -> ComparedRun:
    """Return a run by its name in ``folder``, its own folder, or the file of its report. Raises ``EvaluationError``."""
    path = Path(name)
    if path.is_file():
        try:
            report: Any = json.loads(path.read_bytes())
            settings = EvaluationSettings.from_json(report["settings"])
            rows = [_score(row, settings) for row in report["per_task"]]
            return ComparedRun(report["run"], settings, [row.task for row in rows], rows)
        except (ValueError, TypeError, KeyError, OSError) as error:
            raise EvaluationError(
                f"{name} is not a report of a run: {error!r:.200}", "Give report.json of --report, or a run's name."
            ) from error
    return ComparedRun.of(read_run(path if path.is_dir() else folder / name))


def _score(row: Mapping[str, Any], settings: EvaluationSettings) -> TaskScore:
    rewards = [float(reward) for reward in row["rewards"]]
    task = {key: row[key] for key in ("split", "index", "hash")}
    successes = sum(map(settings.succeeded, rewards))
    if not all(abs(reward) <= LARGEST_REWARD for reward in rewards) or successes != row["successes"]:
        raise ValueError("its rewards are not those of its successes")
    return TaskScore(task, rewards, successes, row["missing"], 0, row["lost_attempts"])


def compare(ours: ComparedRun, other: ComparedRun) -> dict[str, Any]:
    """Return how ``ours`` differs from ``other``. Raises ``EvaluationError`` for runs that cannot be compared."""
    if different := differing_tasks(ours.tasks, other.tasks):
        raise EvaluationError(
            f"{ours.name} and {other.name} are runs of different tasks: {different}",
            "Compare runs with the same --env, --split, --tasks and --limit.",
        )
    differences = ours.settings.differences(other.settings)
    if rules := [line for line in differences if line.split(":")[0] in _RULES]:
        raise EvaluationError(
            f"{ours.name} and {other.name} score by different rules: {'; '.join(rules)}", "Give both the same rule."
        )
    theirs = {(score.task["split"], score.task["index"]): score for score in other.scores}
    pairs = [(score, theirs[score.task["split"], score.task["index"]]) for score in ours.scores]
    return {
        "run": ours.name,
        "other": other.name,
        "settings": other.settings.differences(ours.settings),
        **compare_scores(pairs),
    }
