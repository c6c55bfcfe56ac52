"""A comparison of two runs over the same tasks: paired by task, so that hard and easy tasks cancel out.

A run is a journal, or the JSON of a report. Runs of other tasks, or that count successes by another rule, are refused:
their numbers mean different things. Everything else in which the runs differ is listed, for it may be the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ors_clients.errors import EvaluationError
from ors_clients.evaluation.attempts import LARGEST_REWARD
from ors_clients.evaluation.estimators import SIGNIFICANT, difference_interval, permutation_p
from ors_clients.evaluation.journal import RunRecord, read_run
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import TaskScore, scores
from ors_clients.evaluation.tasks import differing_tasks

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
    paired = [(score, their) for score, their in pairs if score.samples and their.samples]
    return {
        "run": ours.name,
        "other": other.name,
        "settings": other.settings.differences(ours.settings),
        "tasks": len(paired),
        "left_out": len(pairs) - len(paired),
        "fewer_samples": sum(bool(score.missing or their.missing) for score, their in pairs),
        "pass_at_1": _difference(paired, lambda score: score.rate, largest=1.0),
        "reward": _difference(paired, lambda score: score.mean),
    }


def _difference(
    pairs: Sequence[tuple[TaskScore, TaskScore]], value: Callable[[TaskScore], float], *, largest: float = math.inf
) -> dict[str, Any] | None:
    if not pairs:
        return None
    own, their = [value(score) for score, _ in pairs], [value(score) for _, score in pairs]
    differences = [mine - others for mine, others in zip(own, their, strict=True)]
    p = permutation_p(differences)
    interval = difference_interval(differences, p)
    return {
        "run": math.fsum(own) / len(own),
        "other": math.fsum(their) / len(their),
        "difference": math.fsum(differences) / len(differences),
        "interval": None if interval is None else [max(interval.low, -largest), min(interval.high, largest)],
        "better": sum(difference > 0 for difference in differences),
        "worse": sum(difference < 0 for difference in differences),
        "p": p,
        "significant": p < SIGNIFICANT,
    }
