"""The parts of a training run that need no PyTorch: its plan, its stages, its checkpoints and its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError
from ors_clients.learning import report
from ors_clients.learning.grpo import last_checkpoint
from ors_clients.learning.plan import FORMAT, Plan, PlannedTask, Recipe, TinySizes, rare_words
from ors_clients.learning.report import curve_line, curve_point
from ors_clients.learning.stages import Stages

from ors_server.rollouts.reports.training_sections import training_headline


def tasks(words: Sequence[str]) -> list[PlannedTask]:
    return [
        PlannedTask(index, "echo", "echo", {"text": word}, f"Echo the word {word}") for index, word in enumerate(words)
    ]


def plan_of(train: Sequence[str], held_out: Sequence[str]) -> Plan:
    return Plan("run", "echo", "echoenvironment", tasks(train), tasks(held_out), tiny=TinySizes(demonstrations=240))


def made(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(count)]


def test_a_plan_is_whole_and_comes_back() -> None:
    plan = plan_of(made("t", 300), made("h", 200))
    plan.check_tiny()
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    with pytest.raises(ConfigurationError, match="another version"):
        Plan.from_json(plan.as_json() | {"format": FORMAT + 1})


@pytest.mark.parametrize(
    ("train", "held_out", "said"),
    [
        (made("t", 300), made("h", 199), "has 199 held-out tasks"),
        (made("t", 240), made("h", 200), "has 240 tasks"),
        ([*made("t", 299), "haa"], made("h", 200), "1 values of held-out tasks occur in training tasks: haa"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(train: list[str], held_out: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan_of(train, held_out).check_tiny()


def test_values_are_the_words_of_few_texts() -> None:
    assert rare_words([f"Write {word} to 7" for word in made("x", 100)]) == set(made("x", 100))


def test_a_stage_is_done_once_and_is_whole_or_absent(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    assert stages("one", lambda: {"value": 1})["value"] == 1
    assert Stages(tmp_path)("one", lambda: pytest.fail("done before"))["value"] == 1

    def full(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigurationError, match=r"model cannot be written: .*No space left on device") as raised:
        stages.model("model", full)
    assert "ors-server train --resume" in raised.value.remedy
    assert not (tmp_path / "model").exists()
    stages.model("model", lambda folder: folder.mkdir())
    assert (tmp_path / "model").is_dir()

    (tmp_path / "two.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"two\.json cannot be read"):
        stages("two", dict[str, Any])


def test_the_last_whole_checkpoint_is_found_and_torn_ones_are_removed(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for step, state in ((5, "{}"), (10, "{}"), (15, '{"global'), (20, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-5"]


# --- the report ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "significant", "failed", "said"),
    [
        (0.1, 0.3, True, [], "The model got better."),
        (-0.3, -0.1, True, [], "The model got worse."),
        (-0.01, 0.3, False, [], "No improvement is shown"),
        (0.0, 0.3, True, [], "No improvement is shown"),
        (0.1, 0.3, True, ["lost"], "No result"),
    ],
)
def test_nothing_is_called_better_whose_interval_contains_0(
    low: float, high: float, significant: bool, failed: list[str], said: str
) -> None:
    difference = {"interval": [low, high], "significant": significant}
    assert report._verdict(difference, failed).startswith(said)  # pyright: ignore[reportPrivateUsage]


def test_a_difference_of_too_few_tasks_is_none() -> None:
    verdict = report._verdict({"interval": None, "significant": False}, [])  # pyright: ignore[reportPrivateUsage]
    assert verdict.startswith("No improvement is shown")


@pytest.mark.parametrize(
    ("greedy", "supervised", "said"),
    [
        ((-0.1, True), (-0.2, True), "That is worse than greedy decoding {}, and worse than 80 further supervised"),
        ((0.1, True), (0.0, False), "That is better than greedy decoding {}, and not shown to differ from 80 further"),
    ],
)
def test_a_headline_has_what_stands_against_it(
    greedy: tuple[float, bool], supervised: tuple[float, bool], said: str
) -> None:
    made: dict[str, Any] = {"verdict": "The model got better.", "failed": [], "further_supervised_steps": 80}
    made["difference"] = {"run": 0.725, "other": 0.3}
    for name, (difference, significant) in (("over_greedy_before", greedy), ("over_supervised", supervised)):
        made[name] = {"difference": difference, "significant": significant, "other": 0.8}
    headline = training_headline(made)
    assert headline.startswith("The model got better. Sampled, it solves 72.5 % of held-out tasks")
    assert said.format("before the training (80.0 %)") in headline
    assert training_headline(made | {"failed": ["lost"], "verdict": "No result."}) == "No result."


def test_a_step_is_a_line_of_the_curve() -> None:
    plan = replace(plan_of([], []), recipe=Recipe(groups=2, group_size=4))
    logs = {"step": 7, "reward": 0.5, "step_time": 3.14, "entropy": 0.2, "lost/session_lost": 0.25}
    point = curve_point(plan, logs)
    assert point == {
        "step": 7,
        "reward": 0.5,
        "lost": {"session_lost": 2},
        "seconds": 3.14,
        "entropy": 0.2,
        "equal_groups": 0.0,
    }
    assert curve_line(point, 45) == f"step   7 of 45  reward 0.500  |{'#' * 15:<30}|  3.1 s, 2 lost"
    nothing = curve_point(plan, {"step": 8, "reward": float("nan")})
    assert nothing["reward"] is None
    assert "reward none" in curve_line(nothing, 45)
