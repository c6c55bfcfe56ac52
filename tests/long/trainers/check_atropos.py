"""Atropos's example trainer, from a checkout, reads our groups: labels, log-probabilities and temperature.

Run by ``tests/long/test_trainers.py`` with ``ORS_ATROPOS_CHECKOUT``, the folder of a checkout of NousResearch/atropos,
whose trainer is in no package. Everything else of Atropos runs from its package (``check_run_api.py``).
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.rollouts.trajectory import Segment, ToolStep, Trajectory
from ors_clients.tool_calls import ToolCall
from ors_clients.trainers.atropos import scored_group

from tests.long.trainers.upstream import checkout

CHECKOUT = checkout("ORS_ATROPOS_CHECKOUT", "atroposlib")
if CHECKOUT is None:
    pytest.skip("ORS_ATROPOS_CHECKOUT names no checkout of Atropos", allow_module_level=True)
sys.path.append(str(CHECKOUT))

data: Any = import_module("example_trainer.data")


def played(reply: list[int], reward: float) -> Trajectory:
    """Return an episode of two turns with a tool's result between them."""
    trajectory = Trajectory("one")
    trajectory.segments = [
        Segment("prompt", [1, 2, 3], [0.0] * 3, False, ""),
        Segment("model", reply, [-0.1 * (place + 1) for place in range(len(reply))], True, ""),
        Segment("tool", [7, 8], [0.0] * 2, False, ""),
        Segment("model", [9], [-0.9], True, ""),
    ]
    result: Any = SimpleNamespace(reward=reward)
    trajectory.steps = [ToolStep(1, ToolCall("finish", {}, "", "1-0"), result)]
    trajectory.stop_reason = "finished"
    return trajectory


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_trainer_reads_what_was_sampled(temperature: float) -> None:
    group = scored_group(
        [played([4, 5], 1.0), played([4, 5, 6], 0.0)], RewardRule("sum"), temperature=temperature, messages=False
    )
    batch = {"batch": [{"overrides": None, **group}]}
    tokens, labels, advantages, temperatures, logprobs = data.pad_data_to_good_offset(batch, 2, True)
    assert temperatures[0].flatten().tolist() == pytest.approx([temperature] * 2)
    assert advantages[0].flatten().tolist() == pytest.approx([1.0, -1.0])
    for row, reply in enumerate(([4, 5], [4, 5, 6])):
        whole = [1, 2, 3, *reply, 7, 8, 9]
        assert tokens[0][row].tolist()[: len(whole)] == whole
        trained = [place for place, label in enumerate(labels[0][row].tolist()) if label != -100]
        # Entry i of the labels is the token after token i.
        assert [labels[0][row][place].item() for place in trained] == [*reply, 9]
        sampled = [-0.1 * (place + 1) for place in range(len(reply))] + [-0.9]
        assert [logprobs[0][row][place].item() for place in trained] == pytest.approx(sampled)
