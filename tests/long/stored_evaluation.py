"""An evaluation as ``ors-server eval`` uploads it: 200 tasks with 4 samples each by default, losses, and its report."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ors_clients.evaluation.attempts import Attempt, Loss
from ors_clients.evaluation.journal import RunRecord
from ors_clients.evaluation.settings import EvaluationSettings
from ors_clients.evaluation.summary import Prices, summarize
from ors_clients.rollouts.upload_events import report_event

__all__ = ["evaluation", "events_of", "report_of"]

BEGUN = 1_761_000_000_000
KINDS = ("csv_join", "links", "services", "archives")


def evaluation(
    name: str,
    *,
    tasks: int = 200,
    samples: int = 4,
    model: str = "Qwen/Qwen3-8B",
    skill: float = 0.5,
    seed: int = 1,
    partly: bool = False,
) -> RunRecord:
    """Return a run whose model solves some tasks always, some never, and most of them sometimes.

    ``partly`` gives what is not solved a part of the reward, so that no two tasks have the same mean.
    """
    chance = random.Random(seed)
    settings = EvaluationSettings(
        target="terminal", model=model, base_url="http://127.0.0.1:8000/v1", environment="terminalenvironment",
        split="test", samples=samples, temperature=0.7, max_tokens=2048,
    )  # fmt: skip
    described = [
        {"split": "test", "index": index, "hash": f"{index:016x}", "id": f"{KINDS[index % 4]}-{index:06}"}
        for index in range(tasks)
    ]
    record = RunRecord(name, settings, described, "2026-11-28T10:00:00+00:00", id=f"{name}-3f2a91c4d5e6")

    def earned() -> float:
        solved = chance.random() < rate
        return 1.0 if solved else chance.random() if partly else 0.0

    for task in range(tasks):
        hard = random.Random(task).random()  # the same for every model
        rate = min(1.0, max(0.0, (skill - hard) * 2 + 0.5))
        for sample in range(samples):
            if chance.random() < 0.02:
                record.attempts.append(_attempt(task, sample, 0, None, chance))
                record.attempts.append(_attempt(task, sample, 1, earned(), chance))
            else:
                record.attempts.append(_attempt(task, sample, 0, earned(), chance))
    return record


def _attempt(task: int, sample: int, number: int, reward: float | None, chance: random.Random) -> Attempt:
    lost = Loss("environment", "SessionLost", "The sandbox's machine had no memory left.") if reward is None else None
    turns = chance.randrange(2, 9)
    mistakes = {"malformed_calls": 1} if chance.random() < 0.05 else {}
    return Attempt(
        task=task, sample=sample, attempt=number, rollout_id="r", stop="finished" if chance.random() < 0.9 else
        "max_turns", reward=reward, lost=lost, turns=turns, tool_calls=turns, mistakes=mistakes, requests=turns,
        retried={}, prompt_tokens=900 * turns, completion_tokens=120 * turns, cached_tokens=0, uncounted=0,
        seconds=4.0 * turns, generation_seconds=3.4 * turns, tool_seconds=0.5 * turns,
    )  # fmt: skip


def report_of(record: RunRecord) -> dict[str, Any]:
    """Return the report of a run, as its command prints it."""
    return summarize(record, max_failures=0.05, prices=Prices(0.25, 2.0))


def events_of(record: RunRecord, *, report: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the events of a run's rollouts, and that of its report."""
    for number, attempt in enumerate(record.attempts):
        task = record.tasks[attempt.task]
        name = f"{task['split']}-{task['index']}-{attempt.sample}-{attempt.attempt}"
        rollout, at = f"{record.id}/{name}", BEGUN + number * 1000
        ended = {"outcome": "lost", "outcome_reason": attempt.lost.text} if attempt.lost else {"outcome": "finished"}
        yield {
            "eventType": "rollout", "eventId": rollout, "timestamp": at, "runName": record.id, "rolloutName": name,
            "environment": record.settings.environment, "split": task["split"],
            "task_spec": {"id": task["id"]}, "rollout_info": {"task_index": task["index"], **ended},
            "run_info": {"model_name": record.settings.model, "kind": "evaluation", "reward": "sum", "success_at": 1.0},
        }  # fmt: skip
        yield {
            "eventType": "message", "eventId": f"{rollout}-0", "timestamp": at, "rolloutEventId": rollout, "index": 0,
            "type": "tool_result", "content": "The tests have run.", "isFinished": True,
            **({} if attempt.reward is None else {"reward": attempt.reward}),
        }  # fmt: skip
    if report:
        sent = {key: value for key, value in report_of(record).items() if key != "per_task"}
        yield report_event(record.id, "evaluation", sent)
