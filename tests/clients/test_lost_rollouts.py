"""A lost rollout weighs nothing: baselines, chained filters, refused options, counts, and the table of the page."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure, SessionLost
from ors_clients.trainers import slime
from ors_clients.training.baselines import normalized_rewards
from ors_clients.training.losses import Losses

from tests.clients import slime_stand_in
from tests.clients.lost_rollout_table import BEGIN, END, OURS, expected, render
from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.slime_stand_in import Sample
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.clients.trainer_setup import call, make_arguments, row_of, serving, write_configuration
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "trainers.md"
SAMPLING = {"temperature": 1.0, "max_new_tokens": 512}


# --- baselines -----------------------------------------------------------------------------------


def sample(reward: float | None, group: int | None = 0, **fields: Any) -> Sample:
    """Return a sample of a group; one without a reward is lost."""
    made = Sample(group_index=group, reward=reward or 0.0, **fields)
    made.metadata = {"num_turns": 1, "failure": None if reward is not None else "gone", "stop_reason": "finished"}
    if reward is None:
        made.remove_sample = True
        made.status = Sample.Status.ABORTED
    return made


def arguments(estimator: str = "grpo", **more: Any) -> SimpleNamespace:
    defaults = {"rewards_normalization": True, "grpo_std_normalization": True, "n_samples_per_prompt": 4}
    return SimpleNamespace(advantage_estimator=estimator, **{**defaults, "rollout_batch_size": 2, **more})


def relative(rewards: Sequence[float], *, scaled: bool = True) -> list[float]:
    mean = statistics.fmean(rewards)
    deviation = statistics.stdev(rewards) + 1e-6 if scaled else 1.0
    return [(reward - mean) / deviation for reward in rewards]


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"])
def test_survivors_are_compared_with_each_other_alone(estimator: str) -> None:
    batch = [sample(None), sample(0.9), sample(1.0), sample(0.9), *(sample(reward, 1) for reward in (0, 0.5, 1, 0))]
    raw, trained = normalized_rewards(arguments(estimator), batch)
    scaled = estimator != "reinforce_plus_plus_baseline"
    assert trained[0] == 0.0
    assert trained[1:4] == pytest.approx(relative([0.9, 1.0, 0.9], scaled=scaled))
    assert trained[4:] == pytest.approx(relative([0, 0.5, 1, 0], scaled=scaled))
    assert raw[1:] == [0.9, 1.0, 0.9, 0, 0.5, 1, 0]
    assert statistics.fmean(raw) == pytest.approx(statistics.fmean(raw[1:]))  # the mean that the trainer logs


@pytest.mark.parametrize("left", [0, 1, 4])
@pytest.mark.parametrize("options", [{}, {"grpo_std_normalization": False}, {"rewards_normalization": False}])
def test_no_group_gives_a_value_that_is_no_number(left: int, options: dict[str, bool]) -> None:
    batch = [sample(0.9 if place < left else None) for place in range(4)]
    raw, trained = normalized_rewards(arguments("grpo", **options), batch)
    assert not any(map(math.isnan, (*raw, *trained)))
    normalizes = options.get("rewards_normalization", True)
    assert trained == pytest.approx([0.0 if normalizes or place >= left else 0.9 for place in range(4)])


def test_other_estimators_get_the_rewards_as_they_were_earned() -> None:
    assert normalized_rewards(arguments("ppo"), [sample(0.5), sample(None)]) == ([0.5, 0.5], [0.5, 0.0])


def test_samples_of_one_rollout_share_one_reward_in_the_baseline() -> None:
    batch = [sample(1.0, index=0), sample(1.0, index=0), sample(0.0, index=1), sample(None, index=2)]
    _, trained = normalized_rewards(arguments(grpo_std_normalization=False), batch)
    assert trained == pytest.approx([0.5, 0.5, -0.5, 0.0])


def test_groups_without_an_index_are_told_by_their_places() -> None:
    batch = [sample(reward, None) for reward in (1.0, None, 0.0, None, 0.5, 0.5, None, 1.5)]
    _, trained = normalized_rewards(arguments(grpo_std_normalization=False), batch)
    assert trained == pytest.approx([0.5, 0, -0.5, 0, -1 / 3, -1 / 3, 0, 2 / 3])


def test_a_sample_that_the_users_filter_removes_was_played() -> None:
    removed = sample(0.0)
    removed.remove_sample = True
    _, trained = normalized_rewards(arguments(grpo_std_normalization=False), [removed, sample(1.0)])
    assert trained == pytest.approx([-0.5, 0.5])


def test_a_batch_of_which_nothing_is_left_ends_the_run() -> None:
    with pytest.raises(InfrastructureFailure, match="Every rollout of a batch was lost: gone"):
        slime.post_process_rewards(arguments(), [sample(None), sample(None)])


# --- filters and options -------------------------------------------------------------------------

KEEP, REWARDS = "ors_clients.slime.keep_group", "ors_clients.slime.post_process_rewards"
OWN = "filters_of_the_user.by_deviation"
OPTIONS: dict[str, tuple[str | None, str | None, str]] = {
    "ours": (KEEP, None, OURS),
    "ours and the user's": (KEEP, OWN, OURS),
    "the user's": (OWN, None, "a filter of the user's own in its place, with `post_process_rewards`"),
    "none": (None, None, "none, with `post_process_rewards`"),
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(autouse=True)
async def in_slime(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[list[Sequence[Any]]]:
    """Make slime importable, and a module with a filter of the user's; the groups that it was called for."""
    slime_stand_in.install(monkeypatch)
    seen: list[Sequence[Any]] = []

    def by_deviation(args: Any, samples: Sequence[Any], **options: Any) -> bool:
        seen.append(samples)
        return statistics.pstdev(one.get_reward_value(args) for one in samples) > 1e-6

    module = ModuleType("filters_of_the_user")
    vars(module).update(by_deviation=by_deviation, no_function=3)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield seen
    await slime.close()


def policy(*first: str) -> Any:
    """Return what the episodes of task 0 say, in order; all others earn different rewards."""
    left, others = list(first), 0

    def say(prompt: str) -> str:
        nonlocal others
        if "Task 0." in prompt and left:
            return left.pop(0)
        others += 1
        return call("finish", reward=0.25 * (others % 4))

    return say


def run_arguments(file: Path, engine: ScriptedEngine, path: str | None, **more: Any) -> SimpleNamespace:
    defaults: dict[str, Any] = {
        "custom_generate_function_path": "ors_clients.slime.generate",
        "custom_rm_path": "ors_clients.slime.reward_func",
        "dynamic_sampling_filter_path": path,
        "custom_reward_post_process_path": REWARDS,
        "rollout_batch_size": 2,
        "over_sampling_batch_size": 1,
        "n_samples_per_prompt": 4,
        **vars(arguments()),
    }
    return make_arguments(file, engine, **{**defaults, **more})


def prompts() -> list[Sample]:
    return [
        Sample(index=number, group_index=number, metadata=row_of("stepenvironment", {"number": number}))
        for number in range(6)
    ]


LOST, SAME = call("lose"), call("finish", reward=0.9)


async def draw(args: Any) -> tuple[list[list[Sample]], dict[str, int]]:
    """Return the groups of a batch and the reasons for which others were dropped."""
    data, _, dropped = await slime_stand_in.generate_rollout(args, prompts(), dict(SAMPLING))
    return data, dropped


@pytest.mark.parametrize(("path", "chained", "row"), OPTIONS.values(), ids=OPTIONS)
async def test_a_lost_rollout_does_to_the_batch_what_the_table_says(
    url: str, tmp_path: Path, path: str | None, chained: str | None, row: str
) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}}, group_filter=chained)
    turns = [LOST, call("finish", reward=0.9), call("finish", reward=1.0), call("finish", reward=0.9)]
    with ScriptedEngine(policy(*turns), tiny_tokenizer()).serve() as engine:
        args = run_arguments(file, engine, path)
        data, _ = await draw(args)
    batch = [one for group in data for one in group]
    lost = [place for place, one in enumerate(batch) if one.remove_sample]
    assert ("masked" if lost else "redrawn") == expected("slime", row)
    converted = slime_stand_in.convert_samples(args, batch)
    for group in data:
        kept = [one for one in group if not one.remove_sample]
        wanted = iter(relative([one.get_reward_value(args) for one in kept]))
        for one in group:
            place = next(index for index, other in enumerate(batch) if other is one)
            assert converted["rewards"][place] == pytest.approx(0.0 if one.remove_sample else next(wanted))
            assert one.remove_sample == (not any(converted["loss_masks"][place]))


async def test_the_users_filter_decides_about_whole_groups_alone(
    url: str, tmp_path: Path, in_slime: list[Sequence[Any]]
) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}}, group_filter=OWN)
    with ScriptedEngine(policy(LOST, SAME, SAME, SAME), tiny_tokenizer()).serve() as engine:
        _, dropped = await draw(run_arguments(file, engine, KEEP))
    assert dropped == {"rollout/dynamic_filter/drop_infrastructure_failure": 1}
    assert not any(one.remove_sample for group in in_slime for one in group)
    assert len(in_slime) >= 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"custom_reward_post_process_path": None}, "--custom-reward-post-process-path ors_clients.slime.post_process"),
        ({"custom_reward_post_process_path": OWN}, "would be a reward of 0 in its group's baseline"),
        ({"advantage_estimator": "reinforce_plus_plus"}, "reinforce_plus_plus takes no batch with a lost rollout"),
        ({"custom_convert_samples_to_train_data_path": OWN}, "leaves lost rollouts out of the baselines; leave it out"),
    ],
)
async def test_a_command_line_under_which_lost_rollouts_count_is_refused(
    url: str, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}})
    for row in ("neither of the two functions", "none or another, with `reinforce_plus_plus`"):
        assert expected("slime", row) == "refused"
    with ScriptedEngine(policy(), tiny_tokenizer()).serve() as engine:
        args = run_arguments(file, engine, OWN, **options)
        with pytest.raises(ConfigurationError, match=said):
            await draw(args)
        assert not engine.requests


@pytest.mark.parametrize("path", ["nowhere.at_all", "filters_of_the_user.missing", "filters_of_the_user.no_function"])
async def test_a_group_filter_that_is_no_function_is_refused(url: str, tmp_path: Path, path: str) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}}, group_filter=path)
    with ScriptedEngine(policy(), tiny_tokenizer()).serve() as engine:
        with pytest.raises(ConfigurationError, match="group_filter: "):
            await draw(run_arguments(file, engine, KEEP))
        assert not engine.requests


# --- counts --------------------------------------------------------------------------------------


def test_losses_are_counted_by_environment_and_cause() -> None:
    losses = Losses()
    for environment, failure in (("a", None), ("a", SessionLost("x")), ("b", InfrastructureFailure("y"))):
        losses.count(environment, failure)
    assert losses.take("p") == {
        "p/all/played": 3,
        "p/a/played": 2,
        "p/b/played": 1,
        "p/all/infrastructure_failures": 2,
        "p/a/infrastructure_failures": 1,
        "p/b/infrastructure_failures": 1,
        "p/all/lost/session_lost": 1,
        "p/a/lost/session_lost": 1,
        "p/all/lost/infrastructure_failure": 1,
        "p/b/lost/infrastructure_failure": 1,
    }
    assert losses.take("p") == {}


async def test_losses_of_groups_that_a_filter_dropped_are_logged(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}, "brokenenvironment": {}})
    broken = Sample(index=9, group_index=9, metadata=row_of("brokenenvironment", {"number": 0}))
    with ScriptedEngine(policy(LOST), tiny_tokenizer()).serve() as engine:
        args = run_arguments(file, engine, KEEP)
        data, _, _ = await slime_stand_in.generate_rollout(args, [broken, *prompts()], dict(SAMPLING))
    assert not any(one.remove_sample for group in data for one in group)
    metrics: dict[str, Any] = {}
    slime.log_rollout_data(0, args, data, metrics, 1.0)
    prefix = "rollout/episodes"
    assert metrics[f"{prefix}/brokenenvironment/infrastructure_failures"] == 4
    assert metrics[f"{prefix}/brokenenvironment/lost/session_lost"] == 4
    assert metrics[f"{prefix}/stepenvironment/infrastructure_failures"] == 1
    assert metrics[f"{prefix}/stepenvironment/lost/session_lost"] == 1
    assert metrics[f"{prefix}/all/infrastructure_failures"] == 5
    assert metrics[f"{prefix}/all/played"] >= 4 + 4 + 8


# --- the page ------------------------------------------------------------------------------------


def test_the_table_of_the_page_is_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """``ORS_WRITE_TABLES=1 pytest tests/clients/test_lost_rollouts.py`` writes it."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + render() + after
    if os.environ.get("ORS_WRITE_TABLES"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text == wanted, "run the test with ORS_WRITE_TABLES=1"
