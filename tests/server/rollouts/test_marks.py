"""Marks on verdicts: from the result that ends an episode into lists, pages and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ors_server.rollouts.verdict_marks import mark_of_frames, mark_of_metadata
from ors_server.wire.sse import error_frame, result_frames
from tests.server.rollouts.support import message, rollout
from tests.server.rollouts.test_commands import Command, fill

WORDS = "the agent's code ran in the tests' process"
MARKED = {"ended": "graded", "verdict_mark": WORDS}


@pytest.mark.parametrize(
    ("metadata", "mark"),
    [
        (MARKED, WORDS),
        ({"verdict_mark": 1}, ""),
        ({"verdict_mark": None}, ""),
        ({"ended": "verdict_mark"}, ""),
        (None, ""),
    ],
)
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_mark_is_read_from_a_result_and_from_metadata(metadata: Any, mark: str, size: int) -> None:
    output = {"blocks": [{"type": "text", "text": '{"verdict_mark": "x"}' * size}], "metadata": metadata}
    frames = result_frames(json.dumps({"ok": True, "output": output}).encode())
    assert mark_of_frames(frames) == mark
    assert mark_of_metadata(json.dumps(metadata)) == mark


def test_an_error_has_no_mark() -> None:
    assert mark_of_frames(error_frame("verdict_mark")) == ""
    assert mark_of_metadata("{") == ""


def test_the_command_lists_marks(command: Command, data_dir: Path) -> None:
    fill(
        data_dir,
        rollout("own", "run", metadata={"verdict_mark": WORDS}),
        message("own", 0, "x", reward=1.0, isFinished=True),
        rollout("told", "run"),
        message("told", 0, "x", reward=1.0, isFinished=True, metadata=MARKED),
        rollout("plain", "run"),
        message("plain", 0, "verdict_mark", reward=1.0, isFinished=True, metadata={"ended": "graded"}),
    )
    listed = json.loads(command("rollouts", "list", "--json").out)["rollouts"]
    assert {row["id"]: row["verdict_mark"] for row in listed} == {"own": WORDS, "told": WORDS, "plain": None}
    out = command("rollouts", "list").out
    rewards = {line.split()[0]: line for line in out.splitlines() if line.startswith(("own", "told", "plain"))}
    assert {name: "1*" in line for name, line in rewards.items()} == {"own": True, "told": True, "plain": False}
    assert f"* Marked, 2 of these rollouts: {WORDS}." in out
