"""The figures of a run, made from its journal alone.

Three kinds of attempts are never mixed. *Scored* ones count, whatever the model did in them. *Lost* ones are the
infrastructure's and count nowhere in a score; how far they could have changed it is shown by ``bounds``. *Missing*
samples are those that no attempt was scored for. Each task weighs the same, however many of its samples are scored.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ors_clients.evaluation.attempts import Attempt
from ors_clients.evaluation.journal import RunRecord
from ors_server.rollouts.reports.sections import MISTAKES
from ors_server.rollouts.reports.task_scores import TaskScore, default_ks, pass_at, reward_figures

__all__ = ["Prices", "failed_by", "scores", "summarize"]


@dataclass(frozen=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    input: float | None = None
    output: float | None = None

    def cost(self, prompt: int, completion: int) -> float | None:
        """Return the price of so many tokens; None where a price is not known."""
        if self.input is None or self.output is None:
            return None
        return (prompt * self.input + completion * self.output) / 1e6


def scores(record: RunRecord) -> list[TaskScore]:
    """Return the score of each task, in the run's order."""
    settings = record.settings
    rewards: list[list[float]] = [[] for _ in record.tasks]
    lost, late = Counter[int](), Counter[tuple[int, int]]()
    for (task, _), attempt in sorted(record.scored.items()):
        assert attempt.reward is not None
        rewards[task].append(attempt.reward)
    for attempt in record.attempts:
        if attempt.lost is not None:
            lost[attempt.task] += 1
            late[attempt.task, attempt.sample] += bool(attempt.turns)
    # Attempts that a kill, or the end of the server, cut off: the model may have failed in them.
    cut_off = record.started - Counter((attempt.task, attempt.sample) for attempt in record.attempts)
    scored = record.scored
    found: list[TaskScore] = []
    for position, task in enumerate(record.tasks):
        absent = [sample for sample in range(settings.samples) if (position, sample) not in scored]
        uncertain = sum(late[position, sample] for sample in range(settings.samples))
        uncertain += sum(not late[position, sample] for sample in absent)
        uncertain += sum(cut_off[position, sample] for sample in range(settings.samples) if sample not in absent)
        successes = sum(map(settings.succeeded, rewards[position]))
        found.append(TaskScore(task, rewards[position], successes, len(absent), uncertain, lost[position]))
    return found


def failed_by(record: RunRecord, limit: float) -> list[str]:
    """Return why a run's numbers are not to be trusted: which shares of failures are over ``limit``."""
    planned = len(record.tasks) * record.settings.samples
    # Those that were lost before the model's first turn would dilute the share.
    begun = [attempt for attempt in record.attempts if attempt.turns]
    late = sum(attempt.lost is not None for attempt in begun)
    reasons: list[str] = []
    # A quotient, as the limit is one: 0.29 * 100 is less than 29.
    if planned and record.missing / planned > limit:
        reasons.append(f"{record.missing} of {planned} samples are missing ({record.missing / planned:.1%})")
    if begun and late / len(begun) > limit:
        share = f"{late / len(begun):.1%}"
        reasons.append(f"{late} of the {len(begun)} attempts in which the model had taken a turn were lost ({share})")
    return reasons


def summarize(record: RunRecord, *, max_failures: float, ks: Sequence[int] = (), prices: Prices) -> dict[str, Any]:
    """Return the run's report as JSON values."""
    settings = record.settings
    tasks = scores(record)
    known = [task for task in tasks if task.samples]
    scored = sorted(record.scored.values(), key=lambda attempt: (attempt.task, attempt.sample))
    lost = [attempt for attempt in record.attempts if attempt.lost is not None]
    reasons = failed_by(record, max_failures)
    return {
        "run": record.name,
        "id": record.id,
        "begun": record.begun,
        "settings": settings.as_json(),
        "complete": record.missing == 0,
        "failed": reasons,
        "max_failures": max_failures,
        "tasks": {
            "planned": len(tasks),
            "scored": len(known),
            "with_all_samples": sum(not task.missing for task in tasks),
            "with_fewer_samples": [_short(task) for task in tasks if task.missing],
        },
        "samples": {
            "planned": len(tasks) * settings.samples,
            "scored": len(scored),
            "missing": record.missing,
        },
        "marked": _marked(record, scored),
        "pass_at_k": [pass_at(known, k) for k in sorted(set(ks) or default_ks(settings.samples))],
        "reward": reward_figures(known),
        "bounds": _bounds(tasks),
        "model": {
            "ends": dict(Counter(attempt.stop for attempt in scored).most_common()),
            "mistakes": _mistakes(scored),
            "without_room_for_prompt": sum(
                attempt.stop == "context_overflow" and not attempt.turns for attempt in scored
            ),
        },
        "infrastructure": _infrastructure(record, lost),
        "tokens": _tokens(scored, prices) | {"lost_attempts": _tokens(lost, prices)},
        "turns": _spread([float(attempt.turns) for attempt in scored]),
        "seconds": {
            "episode": _spread([attempt.seconds for attempt in scored]),
            "model": _spread([attempt.generation_seconds for attempt in scored]),
            "tools": _spread([attempt.tool_seconds for attempt in scored]),
            "whole": _whole(record),
        },
        "per_task": [_row(task) for task in tasks],
    }


def _marked(record: RunRecord, scored: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return how many of the successes, and of all scored samples, an environment has marked, by its words."""
    marked = [attempt for attempt in scored if attempt.mark]
    passes = [attempt for attempt in scored if attempt.reward is not None and record.settings.succeeded(attempt.reward)]
    return [
        {
            "mark": mark,
            "samples": count,
            "passes": sum(attempt.mark == mark for attempt in passes),
            "of_passes": len(passes),
        }
        for mark, count in Counter(attempt.mark for attempt in marked).most_common()
    ]


def _bounds(tasks: Sequence[TaskScore]) -> dict[str, float | None]:
    """Return pass@1 if every uncertain attempt had failed, and if every missing sample had succeeded.

    Over all tasks: one that was never begun is missing, too.
    """
    low = [task.successes / (task.samples + task.uncertain) for task in tasks]
    high = [(task.successes + task.missing) / (task.samples + task.missing) for task in tasks]
    return {
        "pass_at_1_if_lost_are_failures": math.fsum(low) / len(low) if low else None,
        "pass_at_1_if_missing_are_successes": math.fsum(high) / len(high) if high else None,
    }


def _mistakes(attempts: Sequence[Attempt]) -> dict[str, dict[str, int]]:
    counts = {
        name: {
            "episodes": sum(name in attempt.mistakes for attempt in attempts),
            "times": sum(attempt.mistakes.get(name, 0) for attempt in attempts),
        }
        for name in MISTAKES
    }
    return {name: count for name, count in counts.items() if count["times"]}


def _infrastructure(record: RunRecord, lost: Sequence[Attempt]) -> dict[str, Any]:
    kinds: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in lost:
        assert attempt.lost is not None
        kinds.setdefault((attempt.lost.side, attempt.lost.kind), []).append(attempt)
    retried = Counter[str]()
    for attempt in record.attempts:
        retried.update(attempt.retried)
    return {
        "attempts": len(record.attempts),
        "lost": len(lost),
        "lost_after_a_turn": sum(attempt.turns > 0 for attempt in lost),
        "kinds": [
            {
                "side": side,
                "kind": kind,
                "attempts": len(attempts),
                "after_a_turn": sum(attempt.turns > 0 for attempt in attempts),
                "last": attempts[-1].lost.text if attempts[-1].lost else "",
            }
            for (side, kind), attempts in sorted(kinds.items(), key=lambda item: -len(item[1]))
        ],
        "requests_sent_again": dict(retried.most_common()),
        "interrupted": record.interrupted,
    }


def _tokens(attempts: Sequence[Attempt], prices: Prices) -> dict[str, Any]:
    prompt = sum(attempt.prompt_tokens for attempt in attempts)
    completion = sum(attempt.completion_tokens for attempt in attempts)
    return {
        "prompt": prompt,
        "completion": completion,
        "cached": sum(attempt.cached_tokens for attempt in attempts),
        "answers_without_count": sum(attempt.uncounted for attempt in attempts),
        "cost": prices.cost(prompt, completion),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "mean": math.fsum(values) / len(values),
        "median": statistics.median(values),
        "p95": ordered[math.ceil(0.95 * len(ordered)) - 1],
        "highest": ordered[-1],
    }


def _whole(record: RunRecord) -> float | None:
    """Return the seconds from the beginning of a run to its last end of an episode, pauses included."""
    try:
        last = max(datetime.fromisoformat(attempt.ended) for attempt in record.attempts if attempt.ended)
        return max(0.0, (last - datetime.fromisoformat(record.begun)).total_seconds())
    except (ValueError, TypeError):  # no attempt, or a journal that others wrote
        return None


def _row(task: TaskScore) -> dict[str, Any]:
    return {
        **task.task,
        "samples": task.samples,
        "successes": task.successes,
        "rewards": list(task.rewards),
        "missing": task.missing,
        "lost_attempts": task.lost,
    }


def _short(task: TaskScore) -> dict[str, Any]:
    return {"split": task.task["split"], "index": task.task["index"], "samples": task.samples}
