"""One rule of reward: every list, mean, rate, curve and export says the same of a rollout, in both databases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ors_server.rollouts.aggregates.reward_rule import DEFAULT, RewardRule, rule_of
from ors_server.rollouts.queries.curve import reward_curve
from ors_server.rollouts.queries.difficulty import Selection, task_difficulty
from ors_server.rollouts.queries.listed import RolloutFilter, list_rollouts
from ors_server.rollouts.queries.runs import find_run, list_runs
from ors_server.rollouts.queries.tasks import list_tasks
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import at, body, message, rollout, stored, update


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("run_info", "rewards", "earned", "passed"),
    [
        (None, (1.0, -1.0), 0.0, False),
        (None, (0.5, 0.5), 1.0, True),
        (None, (None, 1.0, None), 1.0, True),
        ({"success_at": 0.4}, (0.25, 0.25), 0.5, True),
        ({"success_at": 2}, (1.0, 0.5), 1.5, False),
        ({"reward": "max"}, (0.5, 0.5), 0.5, False),
        ({"reward": "max", "success_at": 0.5}, (0.5, -1.0), 0.5, True),
        # An evaluation that an earlier version stored, by the rule `max`.
        ({"kind": "evaluation", "success_at": 0.75}, (0.5, 0.5), 0.5, False),
        ({"kind": "evaluation", "reward": "sum", "success_at": 0.75}, (0.5, 0.5), 1.0, True),
    ],
)
async def test_everything_says_the_same_of_a_rollout(
    data_dir: Path, run_info: dict[str, Any] | None, rewards: Sequence[float | None], earned: float, passed: bool
) -> None:
    writer = RolloutWriter(at(data_dir))
    said: dict[str, Any] = {} if run_info is None else {"run_info": run_info}
    for name in ("one", "two"):
        given = [message(name, index, reward=reward) for index, reward in enumerate(rewards)]
        head = rollout(name, "played", environment="me/it", step=1, **said)
        await writer.store(body(head, *given, update(name, task_index=3)))
    lost = rollout("three", "played", environment="me/it", step=1, **said)
    await writer.store(body(lost, message("three", 0, reward=9.0), update("three", task_index=3, outcome="lost")))
    await writer.close()

    found = {each["id"]: (each["reward"], each["passed"]) for each in stored(data_dir)}
    assert found == {"one": (earned, passed), "two": (earned, passed), "three": (None, None)}
    share = float(passed)
    with RolloutStore(at(data_dir)).reading() as connection:
        assert connection is not None
        for run in (None, "played"):
            rows = list_rollouts(connection, RolloutFilter(run=run)).rows
            assert {each.id: (each.reward, each.passed) for each in rows} == found
            listed = [each.as_json() for each in rows]
            assert {each["id"]: (each["reward"], each["passed"]) for each in listed} == found
        (summary,) = list_runs(connection).rows
        assert summary == find_run(connection, "played")
        assert summary.as_json()["avg_rollout_reward"] == earned
        assert (summary.mean_reward, summary.pass_rate, summary.num_lost) == (earned, share, 1)
        (task,) = list_tasks(connection, summary).rows
        assert (task.mean_reward, task.pass_rate) == (earned, share)
        (point,) = reward_curve(connection, "played", rule=summary.rule)
        assert (point.mean_reward, point.num_passed, point.num_rewarded) == (earned, 2 * passed, 2)
        (hard,) = task_difficulty(connection, "", lambda name: name == "me/it", Selection())
        assert (hard["avg_reward"], hard["min_reward"], hard["max_reward"]) == (earned, earned, earned)


@pytest.mark.parametrize(
    "info",
    [None, "", "[]", "{", '{"success_at": true}', '{"success_at": 1e200}', '{"success_at": "1"}', '{"reward": 3}'],
)
def test_what_cannot_be_a_rule_is_the_default(info: str | None) -> None:
    assert rule_of(info) == DEFAULT == RewardRule(highest=False, passed_from=1.0)
