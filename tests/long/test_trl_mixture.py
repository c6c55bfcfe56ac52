"""TRL trains on several environments at once, through the recipe's own script; episodes last."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import json
import math
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from ors_clients.client import keepalive
from ors_clients.trainers.trl import EnvironmentMixture, environment_reward

from tests.clients.test_trl import ANSWERING, AWKWARD, slot_of
from tests.long.test_trl import relayed, run_script, trl_python
from tests.support.servers import served

__all__ = ["trl_python"]

pytestmark = pytest.mark.long

NAMES = ["echoenvironment", "awkwardenvironment", "answeringenvironment"]


def test_one_run_trains_on_three_environments(trl_python: Path, tmp_path: Path) -> None:
    """Two steps and an evaluation of the recipe's train.py; each rollout has the tools of its own environment."""
    with served(tmp_path / "server", "echo", AWKWARD, ANSWERING) as url, relayed(url) as relay:
        report = run_script(trl_python, tmp_path / "report.json", "train_mixture.py", relay.url)

    rows = report["rows"]
    assert [row["environment"] for row in rows] == [NAMES[0]] * 4 + [NAMES[1]] * 2 + [NAMES[2]] * 2
    assert [row["target"] for row in rows[:5]] == ["hello", "world", "trl", "openreward", None]
    assert [row["number"] for row in rows[4:]] == ["0", "1", '"two"', '"three"']  # of two types, therefore JSON
    assert [json.loads(row["nested"]) for row in rows[4:6]] == [{"key 0": 0}, {"key 1": 1}]
    assert not {"solution", "_hidden", "_ors_task"} & set(rows[4])

    shown = {name: {tool["function"]["name"] for tool in tools} for name, tools in report["tools"].items()}
    assert shown["echoenvironment"] == {"echo", "hint"}
    assert {"say", "odd", "rare", "get-weather", "class", "reset_tool", "finished_tool"} < shown["awkwardenvironment"]
    assert shown["answeringenvironment"] == set()

    assert len(report["log"]) == 2
    for logged in report["log"]:
        assert math.isfinite(logged["loss"])
        assert 0 < logged["reward"] < 1
        # Some rollouts of every environment earned a reward: its own tools, and no others, were called as taught.
        for name in NAMES:
            assert 0 < logged[f"environments/{name}/reward"] <= 1
        # Episodes that the infrastructure failed were left out, and the rest of their groups was trained on.
        failed = [logged[f"environments/{name}/failed"] for name in NAMES]
        assert failed[0] == failed[2] == 0
        assert 0 < failed[1] < 1
    [evaluation] = report["evaluation"]
    assert {f"eval_environments/{name}/reward" for name in NAMES} < set(evaluation)
    assert report["weights_finite"]
    assert report["largest_weight_change"] > 0

    # As many sessions ended as began, all of them over the wire.
    assert relay.count("/create") == relay.count("/delete") > 2 * 8 * len(rows)


def test_the_asynchronous_trainers_rollouts_have_the_episodes_rewards(trl_python: Path, tmp_path: Path) -> None:
    """TRL's own worker process with our factories: rewards, advantages and tokens are those of the episodes."""
    with served(tmp_path / "server", AWKWARD) as url:
        report = run_script(trl_python, tmp_path / "report.json", "use_async_trainer.py", url)

    worth = {"right": 1.0, "wrong": 0.0, "nothing": 0.0, "lost": None}
    groups: dict[int, list[tuple[float | None, float]]] = {}
    for sample in report["samples"]:
        first = sample["completion"][0]
        calls: list[Any] = first.get("tool_calls") or []
        name: str = calls[0]["function"]["name"] if calls else "nothing"
        if name == "say":
            number: str = re.findall(r"Say (\d+)\.", sample["prompt"][-1]["content"])[-1]
            name = "right" if str(calls[0]["function"]["arguments"]["number"]) == number else "wrong"
        reward = worth["lost" if name == "lose" else name]
        assert math.isnan(sample["reward"]) if reward is None else sample["reward"] == reward
        groups.setdefault(sample["group"], []).append((reward, sample["advantage"]))
        # The sampled tokens, all of them and no others, are trained on.
        assert sample["trained"].count("<|im_end|>") == 1 + len(calls)
        assert "tool_response" not in sample["trained"]
        turns = [logprob for logprob in sample["logprobs"] if logprob == pytest.approx(-0.001)]
        assert len(turns) == 1 + len(calls)

    assert sorted(groups) == [0, 1, 2]
    for group in groups.values():
        rewards = [reward for reward, _ in group if reward is not None]
        assert len(group) == 4
        assert len(rewards) == 3
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
        for reward, advantage in group:
            expected = 0.0 if reward is None else (reward - mean) / (deviation + 1e-8)
            assert advantage == pytest.approx(expected, abs=1e-5)


def test_an_episode_outlives_the_servers_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer computes for longer than the server keeps silent sessions, with the interpreter lock held for long
    stretches, as PyTorch may hold it. In the field: 15 minutes, and a ping every ten seconds."""
    monkeypatch.setattr(keepalive, "_EVERY", 1.0)
    hold_the_lock = ctypes.PyDLL(None).usleep  # a call through PyDLL keeps the interpreter lock
    with (
        served(tmp_path / "server", "echo", ORS_SESSION_TTL="10") as url,
        EnvironmentMixture(["echoenvironment"], url=url) as mixture,
    ):
        kept, silent = (slot_of(mixture, "echoenvironment") for _ in range(2))
        for slot in (kept, silent):
            slot.reset(task_index=0)
        keepalive.KEEP_ALIVE.discard(silent._session._session._beat)  # simulates a client without pings
        deadline = time.monotonic() + 25
        while time.monotonic() < deadline:
            hold_the_lock(900_000)
            sum(range(2_000_000))
        assert kept.echo(text="hello") == "match"
        assert silent.echo(text="hello").startswith("Error: ")
        assert environment_reward([kept, silent]) == [1.0, None]
