"""Reports, figures and lists of a run, in both databases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ors_server.rollouts.queries.curve import reward_curve
from ors_server.rollouts.queries.listed import RolloutFilter, list_rollouts
from ors_server.rollouts.queries.reports import figures_of, find_report, lost_by_reason, outcomes_of
from ors_server.rollouts.queries.runs import find_run
from ors_server.rollouts.queries.tasks import ORDERS, PASSING, TaskFilter, list_tasks
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import at, body, message, rollout, update

pytestmark = pytest.mark.usefixtures("database")


def events(task: str, rewards: Sequence[float | None], step: int | None = None) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for number, reward in enumerate(rewards):
        name = f"{task}-{step}-{number}"
        made.append(rollout(name, task_spec={"id": task}) | ({} if step is None else {"step": step}))
        made.append(message(name, 0, **({} if reward is None else {"reward": reward, "isFinished": True})))
        made.append(update(name, outcome="finished" if reward is not None else "lost", outcome_reason="no room \x00"))
    return made


async def add(folder: Path, *added: dict[str, Any]) -> None:
    writer = RolloutWriter(at(folder))
    assert await writer.store(body(*added)) == len(added)
    await writer.close()


async def test_tasks_and_rollouts_page_by_page(data_dir: Path) -> None:
    tasks = {
        "always": [1.0, 1.0],
        "never 100%": [0.0, 0.0],
        "once \x00": [1.0, 0.0],
        "unknown": [None, None],
        "b": [1.0],
    }
    await add(data_dir, *(event for name, rewards in tasks.items() for event in events(name, rewards)))
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        run = find_run(connection, "run")
        for order in ORDERS:
            seen: list[str | None] = []
            after: str | None = None
            while True:
                page = list_tasks(connection, run, order=order, after=after, limit=2)
                seen += [task.label for task in page.rows]
                if (after := page.next) is None:
                    break
            assert len(seen) == len(set(seen)) == len(tasks)
            firsts = {"lowest": "never 100%", "disagreement": "once \x00", "lost": "unknown", "name": "always"}
            assert seen[0] == firsts.get(order, seen[0])
        found = {
            passing: {task.label for task in list_tasks(connection, run, TaskFilter(passing=passing)).rows}
            for passing in PASSING
        }
        assert found == {
            "always": {"always", "b"}, "sometimes": {"once \x00"}, "never": {"never 100%"}, "unknown": {"unknown"},
        }  # fmt: skip
        assert [task.label for task in list_tasks(connection, run, TaskFilter(search="R 100%")).rows] == ["never 100%"]
        assert [task.label for task in list_tasks(connection, run, TaskFilter(lost=True)).rows] == ["unknown"]
        for order in ("newest", "highest", "lowest"):
            ids: list[str] = []
            after = None
            while True:
                listed = list_rollouts(connection, RolloutFilter(run="run"), order=order, after=after, limit=2)
                ids += [each.id for each in listed.rows]
                if (after := listed.next) is None:
                    break
            assert len(ids) == len(set(ids)) == 9
        for passed, count in (("yes", 4), ("no", 3), ("unknown", 2)):
            wanted = RolloutFilter(run="run", passed=passed)  # pyright: ignore[reportArgumentType] - of a tuple
            assert len(list_rollouts(connection, wanted).rows) == count
        assert len(list_rollouts(connection, RolloutFilter(search="00%")).rows) == 2


async def test_figures_of_the_last_step_and_the_curve(data_dir: Path) -> None:
    await add(data_dir, *events("a", [0.0, 0.0], 0), *events("a", [1.0, None], 7), *events("b", [0.5, 1.0], 7))
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        run = find_run(connection, "run")
        figures = figures_of(connection, run)
        assert figures is not None
        assert (figures.step, len(figures.scores)) == (7, 2)
        assert [(entry["k"], entry["value"], entry["tasks"]) for entry in figures.pass_at_k] == [
            (1, 0.75, 2),
            (2, 1.0, 1),
        ]
        assert figures.reward is not None
        assert (figures.reward["mean"], figures.reward["lowest"]) == (0.875, 0.5)
        points = [(point.step, point.num_rewarded, point.mean_reward) for point in reward_curve(connection, "run")]
        assert points == [(0, 2, 0.0), (7, 3, pytest.approx(2.5 / 3))]
        assert outcomes_of(connection, run) == [("finished", 5), ("lost", 1)]
        assert lost_by_reason(connection, run) == [("no room \x00", 1)]


async def test_the_latest_report_stays_whatever_comes_after_it(data_dir: Path) -> None:
    def report(number: int, time: int) -> dict[str, Any]:
        return {
            "eventType": "run_report", "eventId": f"e{number}", "timestamp": time, "runName": "run", "kind": "other",
            "version": 1, "report": {"number": number, "text": "\x00"},
        }  # fmt: skip

    await add(data_dir, report(1, 5), report(2, 9), *events("a", [1.0]))
    await add(data_dir, report(3, 7))
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        found = find_report(connection, find_run(connection, "run").id)
    assert found is not None
    assert found.text == '{"number":2,"text":"\\u0000"}'
