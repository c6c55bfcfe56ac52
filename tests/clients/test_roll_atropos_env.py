"""``AtroposEnv`` in a manager like ROLL's: turns without replay, scores, the reward bridge, workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from ors_clients.errors import ConfigurationError
from ors_clients.rollouts.rewards import FormatMarker, RewardBridge

from tests.clients import atropos_stand_in, math_verify_stand_in, roll_stand_in

roll_stand_in.install()
atropos_stand_in.install()

from ors_clients.trainers.atropos.host import AtroposSettings, shared_host  # noqa: E402 - needs the stand-ins
from ors_clients.trainers.roll import register_environments  # noqa: E402
from ors_clients.trainers.roll.atropos_env import AtroposEnv, reward_bridge  # noqa: E402
from ors_clients.trainers.roll.env_manager import OrsStepEnvManager  # noqa: E402

from tests.clients.atropos_environments import ItemEnv  # noqa: E402
from tests.clients.roll_stand_in import EpisodeStopReason, Rollout  # noqa: E402

COMPANION = "I do not know the answer to this question."

MakeEnv = Callable[..., AtroposEnv]


@pytest.fixture(scope="module")
def tokenizer_name(tmp_path_factory: pytest.TempPathFactory) -> str:
    return atropos_stand_in.tokenizer_name(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def make(tokenizer_name: str) -> Generator[MakeEnv]:
    made: list[AtroposEnv] = []

    def make_env(name: str, **options: Any) -> AtroposEnv:
        config = {"tokenizer_name": tokenizer_name, **options.pop("env_config", {})}
        defaults: dict[str, Any] = {"reward_config": False, "retry_backoff_seconds": 0.01, "env_config": config}
        made.append(AtroposEnv(f"tests.clients.atropos_environments:{name}", **(defaults | options)))
        return made[-1]

    yield make_env
    for env in made:
        env.close()


@pytest.fixture(autouse=True)
def journal() -> list[str]:
    ItemEnv.journal.clear()
    return ItemEnv.journal


def play(env: AtroposEnv, turns: Sequence[str], *, seed: int | None = 0, **options: Any) -> Rollout:
    remaining = iter(turns)

    def policy(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return next(remaining)

    return cast(Any, OrsStepEnvManager)(env, policy, **options).play(seed)


# --- turns ---------------------------------------------------------------------------------------


def test_every_turn_is_played_once(make: MakeEnv, journal: list[str]) -> None:
    """ROLL's own adapter replays an episode for each turn, with the last response as its first."""
    env = make("GuessingEnv")
    rollout = play(env, ["9", "8", "2"], seed=2)
    assert rollout.meta_info["episode_score"] == 0.5
    assert [sample["step_score"] for sample in rollout.samples] == [0.0, 0.0, 0.5]
    assert [line for line in journal if line.startswith("ask")] == ["ask 0 of 2", "ask 1 of 2", "ask 2 of 2"]
    assert rollout.meta_info["metrics"]["num_turns"] == 3
    assert rollout.meta_info["stop_reason"] == "finished"


def test_the_manager_sees_the_conversation_as_the_environment_has_it(make: MakeEnv) -> None:
    env = make("GuessingEnv")
    observation, info = env.reset(2)
    assert observation == [{"role": "user", "content": "Guess a number. It is below 300."}]
    assert info["task_name"].endswith("GuessingEnv:2")
    observation, reward, terminated, truncated, _ = env.step("7<|im_end|>\n")
    assert observation[1:] == [
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "No, guess again."},
    ]
    assert (reward, terminated, truncated) == (0.0, False, False)
    observation, reward, terminated, truncated, _ = env.step("2<|im_end|>")
    assert observation[-1] == {"role": "assistant", "content": "2"}
    assert (reward, terminated, truncated) == (0.75, True, False)


def test_completions_of_a_text(make: MakeEnv) -> None:
    rollout = play(make("StoryEnv"), [" upon", " a time"])
    assert rollout.meta_info["episode_score"] == len("Story 0: Once upon Then a time")


def test_requests_from_tasks_of_the_environments_own(make: MakeEnv) -> None:
    env = make("CarefulEnv")
    env.reset(0)
    env.step("one")
    observation, *_ = env.step("two")
    assert observation[-1]["content"] == "Side b"
    assert env.step("three")[1] == 1.0


def test_tools_that_are_offered_and_called(make: MakeEnv, journal: list[str]) -> None:
    env = make("ToolEnv")
    _, info = env.reset(0)
    assert info["tools"][0]["function"]["name"] == "double"
    observation, *_ = env.step('<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>')
    assert observation[-1] == {"role": "tool", "content": "8"}
    assert '{"number": 4}' in journal
    assert env.step("It is 8.")[1] == 1.0


def test_tools_that_are_offered_through_the_managed_server(make: MakeEnv) -> None:
    env = make("ManagedToolEnv")
    assert env.reset(0)[1]["tools"][0]["function"]["name"] == "double"
    assert env.step('<tool_call>\n{"name": "double", "arguments": {"number": 4}}\n</tool_call>')[1] == 1.0
    env.reset(0)
    assert env.step("It is 8.")[1] == 0.0


def test_an_environment_that_gives_up_waiting_goes_on(make: MakeEnv, journal: list[str]) -> None:
    env = make("ImpatientEnv")
    env.reset(0)
    deadline = time.monotonic() + 20
    while "gave up" not in journal:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    observation, *_ = env.step("late")
    assert observation[-1]["content"] == "Take your time."
    assert env.step("now")[1] == 1.0


# --- scores --------------------------------------------------------------------------------------


def arithmetic(make: MakeEnv, **options: Any) -> AtroposEnv:
    return make("ArithmeticEnv", companions=[COMPANION], unscored=-1.0, **options)


@pytest.mark.parametrize("attempt", range(6))
def test_the_score_is_the_policys_whatever_the_order_of_the_group(make: MakeEnv, attempt: int) -> None:
    assert play(arithmetic(make), ["It is \\boxed{4}."], seed=2).meta_info["episode_score"] == 1.0
    assert play(arithmetic(make), ["It is \\boxed{5}."], seed=2).meta_info["episode_score"] == -1.0


@pytest.mark.parametrize("attempt", range(6))
def test_words_of_the_question_or_of_a_companion_are_not_taken_for_the_answer(make: MakeEnv, attempt: int) -> None:
    """Both members' sequences contain these words; only the policy's count."""
    env = arithmetic(make)
    assert play(env, ["2 + 2 = \\boxed{4}"], seed=2).meta_info["episode_score"] == 1.0
    assert play(env, ["question"], seed=2).meta_info["episode_score"] == -1.0
    right = make("ArithmeticEnv", companions=["\\boxed{4} or not, I do not know the answer to this."], unscored=0.0)
    assert play(right, ["not the answer"], seed=2).meta_info["episode_score"] == -1.0


def test_answers_are_compared_by_math_verify(make: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments run on a thread of their own, where math_verify's time limits raise ValueError."""
    math_verify_stand_in.install(monkeypatch)
    # A host of its own: earlier hosts have loaded another math_verify, or none.
    config = {"max_token_length": 2000}
    for text, score in (("It is \\boxed{4}.", 1.0), ("It is \\boxed{5}.", -1.0)):
        env = make("SolvingEnv", companions=[COMPANION], unscored=-1.0, env_config=config)
        assert play(env, [text], seed=2).meta_info["episode_score"] == score


def test_a_group_of_one_has_no_score_and_is_dropped(make: MakeEnv) -> None:
    """GSM8K and many others send nothing for a group with equal scores, which includes a group of one."""
    env = make("ArithmeticEnv")
    assert play(env, ["It is \\boxed{4}."], seed=2).dropped
    assert env.failure is not None
    assert "no score" in env.failure.text


@pytest.mark.parametrize("score", ["nan", "inf", "-inf"])
def test_a_score_that_is_not_a_number_is_dropped_and_not_shaped(make: MakeEnv, score: str) -> None:
    env = make("UnboundedEnv", reward_config={})
    assert play(env, [score]).dropped
    assert env.failure is not None
    assert f"reward is {score}" in env.failure.text


def test_an_answer_that_the_environment_leaves_out_counts_as_unscored(make: MakeEnv) -> None:
    assert play(arithmetic(make), ["4"], seed=2).meta_info["episode_score"] == -1.0
    assert play(arithmetic(make), [""], seed=2).meta_info["episode_score"] == -1.0


def test_companions_answer_for_the_other_members_of_the_default_group(make: MakeEnv, journal: list[str]) -> None:
    env = make("GuessingEnv", companions=["0", "1"])
    assert play(env, ["9", "2"], seed=2).meta_info["episode_score"] == 0.75
    assert sum(line.startswith("ask 0") for line in journal) == 3


def test_groups_for_each_step_are_scored_by_the_last(make: MakeEnv) -> None:
    assert play(make("SteppingEnv"), ["a", "b"]).meta_info["episode_score"] == 1.25


# --- the reward bridge ---------------------------------------------------------------------------


def test_the_bridge_shapes_failed_answers(make: MakeEnv) -> None:
    assert play(arithmetic(make, reward_config=None), ["It is \\boxed{4}."], seed=2).meta_info["episode_score"] == 1.0
    failed = "<think>hm</think> It is \\boxed{5}."
    shaped = play(arithmetic(make, reward_config=None), [failed], seed=2).meta_info["episode_score"]
    assert shaped == pytest.approx(-1.0 + 0.2 + 0.3 + len(failed) / 1000)


def test_reward_config_of_the_yaml_is_used(make: MakeEnv) -> None:
    """ROLL's own adapter loses it among the keyword arguments, and a step fails without it."""
    config = {"format_markers": [{"marker": "It is", "reward": 0.5}], "length_bounty_max": 0.01}
    rollout = play(arithmetic(make, reward_config=config), ["It is \\boxed{5}, I think."], seed=2)
    assert rollout.meta_info["episode_score"] == pytest.approx(-1.0 + 0.5 + 0.01)


def test_an_episode_cut_short_is_a_failed_answer(make: MakeEnv) -> None:
    env = make("GuessingEnv", reward_config=None, max_steps=2)
    rollout = play(env, ["9", "<think>"], seed=2)
    assert rollout.meta_info["stop_reason"] == "max_steps"
    assert rollout.meta_info["truncated"] is True
    assert rollout.meta_info["episode_score"] == pytest.approx(-1.0 + 0.2 + 0.007)


def test_roll_may_end_the_episode(make: MakeEnv) -> None:
    env = make("GuessingEnv", reward_config=None)
    env.reset(0)
    env.step("9")
    _, reward, terminated, truncated, info = env.step(EpisodeStopReason.MAX_LENGTH)
    assert (terminated, truncated) == (True, True)
    assert reward == pytest.approx(-1.0 + 0.001)
    assert info["stop_reason"] == "max_length"
    assert env.step("more")[4]["stop_reason"] == "already_over"


def test_bridges_from_configurations() -> None:
    assert reward_bridge(None) == reward_bridge({}) == RewardBridge()
    assert reward_bridge({"format_markers": [], "length_bounty_max": 0}) == RewardBridge((), 0.0)
    assert reward_bridge({"format_markers": [{"marker": "x", "reward": 1}]}).format_markers == (FormatMarker("x", 1.0),)
    mistakes: list[dict[str, Any]] = [
        {"markers": []},
        {"format_markers": [{"marker": "x"}]},
        {"length_bounty_max": "long"},
    ]
    for wrong in mistakes:
        with pytest.raises(ConfigurationError):
            reward_bridge(wrong)


# --- tasks ---------------------------------------------------------------------------------------


def test_the_seed_chooses_the_task_and_leaves_it_clean(make: MakeEnv) -> None:
    env = make("GuessingEnv")
    for _ in range(2):  # the episode writes into its item
        assert play(env, ["2"], seed=2).meta_info["episode_score"] == 1.0
    other = make("GuessingEnv")
    assert play(other, ["2"], seed=2).meta_info["episode_score"] == 1.0
    assert play(other, ["1"], seed=257).meta_info["episode_score"] == 1.0  # 256 items by default


def test_the_number_of_tasks_is_that_of_the_data_set_or_as_said(make: MakeEnv) -> None:
    env = arithmetic(make)
    assert env.reset(8)[0][-1]["content"] == "1 + 1"  # of 7
    few = make("GuessingEnv", num_items=2)
    assert play(few, ["1"], seed=3).meta_info["episode_score"] == 1.0


def test_without_a_seed_the_task_is_drawn(make: MakeEnv) -> None:
    env = make("GuessingEnv")
    assert len({env.reset()[1]["task_name"] for _ in range(20)}) > 1


# --- failures ------------------------------------------------------------------------------------


def test_an_environment_that_raises_drops_the_sample(make: MakeEnv, caplog: pytest.LogCaptureFixture) -> None:
    env = make("RaisingEnv")
    assert play(env, ["x"]).dropped
    assert env.failure is not None
    assert "ValueError" in env.failure.text
    assert "hunter2" not in env.failure.text + caplog.text


def test_setting_up_is_retried(make: MakeEnv) -> None:
    from tests.clients.atropos_environments import RaisingSetupEnv

    RaisingSetupEnv.tries = 0
    env = make("RaisingSetupEnv", num_items=3)
    env.reset(0)
    assert not env.env_reset_failed
    assert RaisingSetupEnv.tries == 2


@pytest.mark.parametrize(("name", "why"), [("SilentEnv", "without asking"), ("EmptyEnv", "empty")])
def test_an_environment_that_cannot_begin_is_dropped(make: MakeEnv, name: str, why: str) -> None:
    env = make(name, retry_max_attempts=1)
    assert play(env, []).dropped
    observation, info = env.reset(0)
    assert observation == []
    assert why in info["error_msg"]


def test_closing_lets_the_environment_clean_up(make: MakeEnv, journal: list[str]) -> None:
    env = make("CarefulEnv")
    env.reset(0)
    env.close()
    assert "cleaned up" in journal


def test_mistakes_of_configuration_are_raised(make: MakeEnv) -> None:
    for name in ("NoEnv", "COMPANION"):
        with pytest.raises(ConfigurationError):
            make(name).reset(0)
    with pytest.raises(ConfigurationError, match=r"package\.module:Class"):
        AtroposEnv("somewhere").reset(0)
    with pytest.raises(ConfigurationError, match="Cannot import"):
        AtroposEnv("no.such.module:Class").reset(0)
    with pytest.raises(ConfigurationError, match="group_size"):
        make("GuessingEnv", env_config={"group_size": 4}).reset(0)
    with pytest.raises(ConfigurationError, match="groupsize"):
        make("GuessingEnv", env_config={"groupsize": 1}).reset(0)
    with pytest.raises(TypeError, match="reward_confg"):
        make("GuessingEnv", reward_confg={})


def test_missing_features_of_a_text_policy_are_reported(make: MakeEnv) -> None:
    env = make("ProbingEnv", retry_max_attempts=0)
    with pytest.raises(ConfigurationError, match="log-probabilities"):
        env.reset(0)


# --- workers -------------------------------------------------------------------------------------


def test_one_environment_serves_all_threads_of_a_worker(make: MakeEnv, journal: list[str]) -> None:
    envs = [make("GuessingEnv", num_items=50) for _ in range(8)]
    scores: dict[int, float] = {}

    def play_one(place: int) -> None:
        scores[place] = play(envs[place], ["99", str(place)], seed=place).meta_info["episode_score"]

    threads = [threading.Thread(target=play_one, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert scores == dict.fromkeys(range(8), 0.75)
    assert journal.count("setup") == 1


def test_a_host_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host registers its loop for forks, which keeps the loop until the process ends."""
    registered: list[object] = []

    def register(**functions: object) -> None:
        registered.append(functions)

    monkeypatch.setattr("os.register_at_fork", register)
    settings = [AtroposSettings("package.module:Class", {"seed": number}) for number in (1, 1, 2, 1, 2)]
    hosts = [shared_host(each) for each in settings]
    assert [hosts.index(host) for host in hosts] == [0, 0, 2, 0, 2]
    assert len(registered) == 2


def test_a_forked_worker_makes_its_own(make: MakeEnv) -> None:
    env = make("GuessingEnv")
    env.reset(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = make("GuessingEnv")
            own.reset(2)
            status = 0 if own.step("2")[1] == 1.0 else 2
            own.close()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert env.step("1")[1] == 1.0


def test_it_is_made_by_gem_under_its_name(tokenizer_name: str) -> None:
    register_environments()
    env: Any = cast(Any, import_module("gem")).make(
        "atropos_env",
        atropos_env_path="tests.clients.atropos_environments:GuessingEnv",
        max_steps=4,
        debug=True,
        env_config={"group_size": 1, "max_token_length": 512, "tokenizer_name": tokenizer_name},
    )
    assert type(env) is AtroposEnv
    env.reset(seed=3)
    assert env.step("3")[1] == 1.0
    assert "GuessingEnv" in str(env.env_info)


def test_no_path_is_put_on_the_processs_search_path(make: MakeEnv) -> None:
    import sys

    before = list(sys.path)
    make("GuessingEnv").reset(0)
    assert sys.path == before
    assert not any(Path(entry).match("/workspace/*") for entry in sys.path)
