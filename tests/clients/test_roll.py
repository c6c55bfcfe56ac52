"""``OpenRewardEnv`` in a manager shaped like ROLL's, against a real server on a socket."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure, RequestRefused
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.rollouts.upload_events import RolloutLabels, rollout_events

from tests.clients import roll_stand_in
from tests.clients.lost_rollout_table import expected
from tests.support.paths import ROOT
from tests.support.servers import served

roll_stand_in.install()

from ors_clients.trainers.roll import OpenRewardEnv, register_environments  # noqa: E402 - needs the stand-in
from ors_clients.trainers.roll.env_manager import OrsStepEnvManager  # noqa: E402
from ors_clients.trainers.roll.group_filter import LostGroupFilter  # noqa: E402

from tests.clients.roll_stand_in import (  # noqa: E402
    AgentNativeStepEnvManager,
    EpisodeStopReason,
    GroupFilter,
    Rollout,
)

ENVIRONMENTS = Path(__file__).with_name("trainer_environments.py")


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the server's environments leave a file for each open episode."""
    return tmp_path_factory.mktemp("open")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, opened: Path) -> Generator[str]:
    folder = tmp_path_factory.mktemp("server")
    with served(folder, ENVIRONMENTS, OPEN_SESSIONS=str(opened)) as address:
        yield address


@pytest.fixture(autouse=True)
def all_closed(opened: Path) -> Generator[None]:
    """Check that every test leaves the server without an open episode."""
    yield
    wait_until_open(opened, 0)


def wait_until_open(opened: Path, count: int) -> None:
    """Wait until this many episodes are open: the server tears down after its response."""
    deadline = time.monotonic() + 20
    while len(list(opened.iterdir())) != count:
        assert time.monotonic() < deadline, f"{len(list(opened.iterdir()))} episodes are open, not {count}"
        time.sleep(0.02)


MakeEnv = Callable[..., OpenRewardEnv]


@pytest.fixture
def make(url: str) -> Generator[MakeEnv]:
    made: list[OpenRewardEnv] = []

    def make_env(environment_name: str = "stepenvironment", **options: Any) -> OpenRewardEnv:
        defaults: dict[str, Any] = {"base_url": url, "retry_backoff_seconds": 0.01}
        made.append(OpenRewardEnv(environment_name, **(defaults | options)))
        return made[-1]

    yield make_env
    for env in made:
        env.close()


def call(name: str, **arguments: Any) -> str:
    """Return a call in the format of Qwen3.5's template."""
    parameters = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def play(env: OpenRewardEnv, turns: Sequence[str], *, seed: int | None = 0, **options: Any) -> Rollout:
    """Play an episode in ROLL's manager, with ours on top, with these turns."""
    remaining = iter(turns)

    def policy(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return next(remaining)

    return cast(Any, OrsStepEnvManager)(env, policy, **options).play(seed)


# --- an episode ----------------------------------------------------------------------------------


def test_an_episode_is_played_and_its_reward_given_at_the_end(make: MakeEnv, opened: Path) -> None:
    rollout = play(make(), [call("earn", reward=0.25), call("finish", reward=1.0)])

    assert [sample["step_score"] for sample in rollout.samples] == [0.0, 1.25]
    assert rollout.meta_info["episode_score"] == 1.25
    assert rollout.meta_info["stop_reason"] == "finished"
    assert rollout.meta_info["truncated"] is False
    assert not rollout.dropped
    metrics = rollout.meta_info["metrics"]
    assert metrics["num_tool_calls"] == 2
    assert metrics["success"] == 1
    assert metrics["raw_reward"] == 1.25
    assert metrics["current_step"] == 2
    wait_until_open(opened, 0)


def test_the_manager_sees_the_whole_conversation_and_openai_tools(make: MakeEnv) -> None:
    env = make()
    manager = AgentNativeStepEnvManager(
        env, lambda messages, tools: call("finish" if len(messages) > 1 else "earn", reward=1)
    )
    manager.play(3)

    assert [tool["type"] for tool in manager.tools] == ["function"] * len(manager.tools)
    earn = next(tool["function"] for tool in manager.tools if tool["function"]["name"] == "earn")
    assert earn["parameters"]["properties"]["reward"]
    first, second = (json.loads(prompt)[0] for prompt in manager.prompts)
    assert first == [{"role": "user", "content": "Task 3."}]
    assert second[:1] == first
    assert [message["role"] for message in second] == ["user", "assistant", "tool"]
    assert second[1]["content"].rstrip().endswith("</tool_call>") or "<|im_end|>" not in second[1]["content"]
    assert "earned 1" in second[2]["content"]


def test_values_of_xml_calls_get_the_types_of_the_schema(make: MakeEnv) -> None:
    env = make("typedenvironment")
    env.reset(0)
    arguments = {
        "number": 7,
        "ratio": 0.5,
        "flag": True,
        "names": ["a", "b"],
        "options": {"deep": [1]},
        "note": "12",
        "limit": None,
    }
    observation, *_ = env.step(call("typed", **arguments))
    assert json.loads(observation[-1]["content"]) == arguments


def test_an_image_is_described_to_the_model(make: MakeEnv, caplog: pytest.LogCaptureFixture) -> None:
    """ROLL's manager keeps the texts of a message's parts, and drops images."""
    turns = iter([call("picture"), call("finish", reward=1)])

    def policy(messages: Any, tools: Any) -> str:
        return next(turns)

    manager = cast(Any, OrsStepEnvManager)(make(), policy)
    manager.play(0)
    assert "look" in manager.prompts[-1]
    assert "an image that this model cannot see" in manager.prompts[-1]
    assert "takes no images" in caplog.text


def test_the_observation_is_the_callers_own(make: MakeEnv) -> None:
    env = make()
    observation, _ = env.reset(0)
    observation.clear()
    observation, *_ = env.step(call("earn", reward=1))
    assert len(observation) == 3


def test_the_end_of_a_turn_is_removed(make: MakeEnv) -> None:
    """ROLL decodes with the special tokens, and its template writes the end of the turn again."""
    env = make()
    env.reset(0)
    for ending in ("<|im_end|>", " <|im_end|>\n", "\n<|im_end|><|endoftext|> \n", "</s>", " \n\t "):
        observation, *_ = env.step(f" One\n\n line.{ending}")
        assert observation[-2]["content"] == " One\n\n line."


def test_a_turn_of_line_breaks_is_processed_in_linear_time(make: MakeEnv) -> None:
    env = make()
    env.reset(0)
    begun = time.monotonic()
    observation, *_ = env.step("a" + "\n" * 64_000 + "b")
    # It takes milliseconds; quadratic time would be minutes.
    assert time.monotonic() - begun < 30
    assert len(observation[-2]["content"]) == 64_002


# --- rewards -------------------------------------------------------------------------------------


# --- turns without a call ------------------------------------------------------------------------


def test_unknown_tool_wrong_input_and_a_tool_that_raises_are_reported_to_the_model(make: MakeEnv) -> None:
    env = make()
    env.reset(0)
    for turn in (call("nonsense"), call("earn", reward="much"), call("fail")):
        observation, reward, terminated, _, info = env.step(turn)
        assert observation[-1]["content"].startswith("Error")
        assert (reward, terminated) == (0.0, False)
        assert info["error_messages"]
    assert info["metrics"]["num_failed_tool_calls"] == 3
    _, reward, terminated, _, _ = env.step(call("finish", reward=1))
    assert (reward, terminated) == (1.0, True)


# --- the end -------------------------------------------------------------------------------------


def test_a_first_prompt_that_is_too_long_is_dropped(make: MakeEnv) -> None:
    """ROLL's own manager has nothing to concatenate there, and fails."""
    assert play(make(), [], sequence_length=1).dropped


class OtherStopReason(str, enum.Enum):  # noqa: UP042 - a member that is a text, too, as ROLL's could become
    MAX_LENGTH = "max_length"


@pytest.mark.parametrize("reason", [EpisodeStopReason.MAX_LENGTH, OtherStopReason.MAX_LENGTH, EpisodeStopReason.ABORT])
def test_stop_reasons_are_known_by_what_they_are(make: MakeEnv, reason: enum.Enum) -> None:
    env = make()
    env.reset(0)
    _, _, terminated, truncated, info = env.step(reason)
    assert (terminated, truncated) == (True, True)
    assert info["stop_reason"] == reason.value


def test_steps_after_the_end_change_nothing(make: MakeEnv) -> None:
    env = make()
    env.reset(0)
    env.step(call("finish", reward=1))
    for action in (call("earn", reward=1), EpisodeStopReason.ABORT):
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, True, True)
        assert info["stop_reason"] == "already_over"


def test_close_ends_the_session_and_reset_opens_another(make: MakeEnv, opened: Path) -> None:
    env = make()
    env.reset(0)
    wait_until_open(opened, 1)
    env.reset(1)
    wait_until_open(opened, 1)
    env.close()
    env.close()
    wait_until_open(opened, 0)
    assert env.reset(2)[0]


# --- groups --------------------------------------------------------------------------------------

WON, LOST = Rollout([], {"metrics": {}}), Rollout([], {"metrics": {}, "drop_flag": True})


def group_filter(kind: type = LostGroupFilter, mode: str = "train", **tags: dict[str, int]) -> Any:
    environments = tags or {"Tag": {}}
    return kind(SimpleNamespace(custom_envs=environments), SimpleNamespace(tags=list(environments)), mode)


def test_every_group_with_a_lost_episode_is_drawn_again() -> None:
    """ROLL's own filter keeps every second group in an outage, and a lost first group of a run."""
    outage = [[WON, LOST]] * 10
    assert [group_filter(GroupFilter).filter(0, episode, [WON, LOST]) for episode in range(1)] == [False]
    theirs, ours = group_filter(GroupFilter), group_filter()
    assert sum(theirs.filter(0, episode, group) for episode, group in enumerate(outage)) == 5
    assert expected("ROLL", "`LostGroupFilter`") == "redrawn"
    assert all(ours.filter(0, episode, group) for episode, group in enumerate(outage))
    assert not ours.filter(0, 10, [WON, WON])
    assert not ours.filter(0, 11, [WON, cast(Any, None)])  # a member that has left


def test_a_filter_that_keeps_lost_groups_is_refused(make: MakeEnv) -> None:
    for path in ("tests.clients.roll_stand_in.GroupFilter", "tests.clients.roll_stand_in.no_such_filter"):
        with pytest.raises(ConfigurationError, match="LostGroupFilter"):
            OrsStepEnvManager(make(), None, group_filter_cls=path)
        OrsStepEnvManager(make(), None, group_filter_cls=path, mode="val")
    assert expected("ROLL", "ROLL's own `GroupFilter`") == "refused"


def test_lost_episodes_are_in_the_metrics_of_the_next_group_that_is_kept() -> None:
    ours = group_filter()

    def lost(cause: str) -> Rollout:
        return Rollout([], {"metrics": {}, "drop_flag": True, "ors_lost": ("Tag", cause)})

    kept = [Rollout([], {"metrics": {"env/Tag/success": 1.0}}), Rollout([], {"metrics": {}})]
    assert ours.filter(0, 0, [WON, lost("session_lost"), lost("session_lost")])
    assert ours.filter(1, 0, [lost("server_unavailable"), WON])
    assert not ours.filter(0, 1, kept)
    counts = {"env/Tag/lost/session_lost@sum": 2, "env/Tag/lost/server_unavailable@sum": 1}
    assert [rollout.meta_info["metrics"] for rollout in kept] == [{"env/Tag/success": 1.0, **counts}, {}]
    again = [Rollout([], {"metrics": {}})]
    assert not ours.filter(0, 2, again)
    assert again[0].meta_info["metrics"] == {}


def test_a_run_that_only_loses_groups_ends() -> None:
    ours = group_filter(Tag={"max_lost_groups_in_row": 3}, Other={"max_lost_groups_in_row": 9})
    for episode in range(2):  # an outage costs each group its episode
        assert all(ours.filter(group, episode, [LOST]) for group in range(50))
    assert not ours.filter(7, 2, [WON])  # the outage is over
    assert ours.filter(0, 3, [LOST])
    assert ours.filter(0, 4, [LOST])
    last = [WON, LOST]
    with pytest.raises(InfrastructureFailure, match="group 0 was lost 3 times in a row"):
        ours.filter(0, 5, last)
    assert last == []  # ROLL's queue would still hold it
    with pytest.raises(ConfigurationError, match="max_lost_groups_in_row"):
        group_filter(Tag={"max_lost_groups_in_row": 0})


def test_episodes_of_one_environment_in_one_group_are_distinguished(make: MakeEnv) -> None:
    """A fast environment fills several places of a group, and ROLL joins episodes by the environment's name."""

    def policy(messages: Any, tools: Any) -> str:
        return call("finish", reward=1)

    manager = cast(Any, OrsStepEnvManager)(make(), policy)
    names = {manager.play(0).meta_info["traj_id"] for _ in range(3)}
    assert len(names) == 3


@pytest.mark.parametrize("estimator", ["grpo", "reinforce", "gae", "agentic_reinforce"])
def test_an_estimator_that_blames_early_turns_is_refused(make: MakeEnv, estimator: str) -> None:
    manager = cast(Any, OrsStepEnvManager)
    with pytest.raises(ConfigurationError, match="step_reinforce"):
        manager(make(max_steps=2), None, adv_estimator=estimator)
    manager(make(max_steps=1), None, adv_estimator=estimator)
    manager(make(max_steps=2), None, adv_estimator=estimator, mode="val")
    for fitting in ("step_reinforce", "gigpo"):
        manager(make(max_steps=2), None, adv_estimator=fitting)


# --- tasks ---------------------------------------------------------------------------------------


def test_the_seed_chooses_the_task(make: MakeEnv) -> None:
    names = [make().reset(seed)[1]["task_name"] for seed in (2, 7, 2**31 + 4)]
    assert names == [f"stepenvironment:train:{number}" for number in (2, 2, (2**31 + 4) % 5)]


def test_without_a_seed_the_task_is_drawn(make: MakeEnv) -> None:
    env = make()
    assert len({env.reset()[1]["task_name"] for _ in range(40)}) > 1


def test_the_processs_random_state_is_left_alone(make: MakeEnv) -> None:
    import random

    random.seed(1)
    expected = random.random()
    random.seed(1)
    make().reset(7)
    assert random.random() == expected


# --- failures of the infrastructure --------------------------------------------------------------


def test_a_manager_that_cannot_drop_sees_no_reward_and_why(make: MakeEnv) -> None:
    env = make()
    env.reset(0)
    env.step(call("earn", reward=1.0))
    _, reward, terminated, truncated, info = env.step(call("lose"))
    assert (reward, terminated, truncated) == (0.0, True, True)
    assert info["failure_mode"] == "SessionLost"
    assert info["stop_reason"] == "infrastructure"
    assert "the sandbox died" in info["error_messages"][0]
    assert info["metrics"]["infrastructure_failed"] == 1


def test_an_environment_that_cannot_be_reset_is_retried_and_then_dropped(make: MakeEnv) -> None:
    env = make("brokenenvironment", retry_max_attempts=2)
    begun = time.monotonic()
    rollout = play(env, [])
    assert time.monotonic() - begun >= 0.03  # 0.01 s, then 0.02 s
    assert rollout.dropped
    assert env.env_reset_failed
    observation, info = env.reset(0)
    assert observation == []
    assert info["tools"] == []
    assert info["failure_mode"]
    assert "no machine" in info["error_msg"]


def test_retries_back_off_exponentially(make: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("ors_clients.roll.base.time.sleep", waits.append)
    make("brokenenvironment", retry_max_attempts=3, retry_backoff_seconds=5.0).reset(0)
    assert waits == [5.0, 10.0, 20.0]


def test_a_server_that_comes_back_is_found_again(make: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("brokenenvironment", retry_max_attempts=1)

    def recover(wait: float) -> None:
        env.environment_name = "stepenvironment"

    monkeypatch.setattr("ors_clients.roll.base.time.sleep", recover)
    env.reset(0)
    assert not env.env_reset_failed
    assert env.step(call("finish", reward=1))[1] == 1.0


# --- configuration -------------------------------------------------------------------------------


def test_mistakes_of_configuration_are_raised(make: MakeEnv) -> None:
    with pytest.raises(RequestRefused):
        make(split="nosplit").reset(0)
    with pytest.raises(ConfigurationError, match="no tasks"):
        make(split="empty").reset(0)
    for options in ({"reward_reduction": "most"}, {"max_steps": 0}, {"tool_call_format": "none"}):
        with pytest.raises(ConfigurationError):
            make(**options)
    with pytest.raises(TypeError, match="rewrad_reduction"):
        make(rewrad_reduction="sum")


def test_a_system_prompt_can_hold_the_tools(make: MakeEnv) -> None:
    env = make(system_prompt_template="Use these:\n{tools}")
    observation, info = env.reset(0)
    assert observation[0]["role"] == "system"
    assert '"name": "earn"' in observation[0]["content"]
    assert info["tools"] == []


def test_it_is_made_by_gem_under_its_name(url: str) -> None:
    register_environments()
    register_environments()
    env: Any = cast(Any, import_module("gem")).make(
        "openreward_env",
        environment_name="stepenvironment",
        split="train",
        mode="train",
        max_steps=16,
        reward_reduction="sum",
        nonterminal_reward=0.0,
        retry_max_attempts=3,
        retry_backoff_seconds=5.0,
        base_url=url,
    )
    assert type(env) is OpenRewardEnv
    assert env.reset(seed=1)[1]["task_name"] == "stepenvironment:train:1"
    env.close()


# --- uploads -------------------------------------------------------------------------------------


class Collector:
    """A sink that keeps what it receives."""

    def __init__(self) -> None:
        self.kept: list[tuple[Trajectory, RolloutLabels]] = []

    def submit(self, trajectory: Trajectory, labels: RolloutLabels) -> None:
        self.kept.append((trajectory, labels))


def test_finished_episodes_are_uploaded(make: MakeEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Collector()

    def collect(base_url: str | None, api_key: str | None) -> Collector:
        return sink

    monkeypatch.setattr("ors_clients.roll.openreward_env._sink", collect)
    play(make(upload_run_name="run"), [call("earn", reward=0.25), call("finish", reward=1.0)], seed=4)
    play(make(), [call("finish", reward=1.0)])
    ((trajectory, labels),) = sink.kept
    assert (labels.run_name, labels.reward, labels.environment) == ("run", 1.25, "stepenvironment")
    assert trajectory.step_rewards == [0.25, 1.0]
    assert trajectory.stop_reason == "finished"
    events = rollout_events(trajectory, labels)
    assert [event["eventType"] for event in events].count("rollout") == 1
    assert any("Task 4." in str(event.get("content")) for event in events)


def test_an_upload_does_not_use_another_servers_key(make: MakeEnv, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``OPENREWARD_API_KEY`` is the platform's, and a sink without a key would send it to any server."""
    made: list[tuple[str | None, str | None]] = []

    def make_sink(address: str | None = None, *, api_key: str | None = None) -> Collector:
        made.append((address, api_key))
        return Collector()

    monkeypatch.setattr("ors_clients.roll.openreward_env.RolloutsSink", make_sink)
    monkeypatch.setattr("ors_clients.roll.openreward_env._sinks", {})
    monkeypatch.delenv("ORS_API_KEY", raising=False)
    monkeypatch.delenv("OPENREWARD_SESSION_URL", raising=False)
    monkeypatch.delenv("OPENREWARD_API_URL", raising=False)
    monkeypatch.setenv("OPENREWARD_API_KEY", "platform-key")
    play(make(upload_run_name="run"), [call("finish", reward=1.0)])
    play(make(upload_run_name="run", api_key="own-key"), [call("finish", reward=1.0)])
    assert made == [(url, ""), (url, "own-key")]
    monkeypatch.setattr("ors_clients.roll.openreward_env._sinks", {})
    monkeypatch.setenv("OPENREWARD_API_URL", "http://elsewhere")
    play(make(upload_run_name="run", api_key="own-key"), [call("finish", reward=1.0)])
    assert made[2:] == [(None, None)]


# --- workers -------------------------------------------------------------------------------------


def test_threads_play_side_by_side(make: MakeEnv) -> None:
    """ROLL makes its environments in one pool of threads and plays them in another."""
    envs = [make() for _ in range(8)]
    scores: dict[int, float] = {}

    def play_one(place: int) -> None:
        turns = [call("earn", reward=place), call("finish", reward=0.5)]
        scores[place] = play(envs[place], turns, seed=place).meta_info["episode_score"]

    threads = [threading.Thread(target=play_one, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert scores == {place: place + 0.5 for place in range(8)}


def test_a_forked_worker_plays_while_its_parent_does(make: MakeEnv) -> None:
    env = make()
    env.reset(0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            own = make()
            own.reset(1)
            status = 0 if own.step(call("finish", reward=1))[1] == 1.0 else 2
            own.close()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert env.step(call("finish", reward=1))[1] == 1.0


def test_the_driver_of_a_checkout_takes_no_ray_that_is_installed(tmp_path: Path) -> None:
    """``check_roll`` runs ROLL's actors in one process."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise RuntimeError('the installed Ray')\n")
    program = (
        "import pathlib, sys\n"
        "from tests.long.trainers import roll_checkout\n"
        "roll_checkout.add_checkout(pathlib.Path(sys.argv[1]))\n"
        "import ray\n"
        "@ray.remote\n"
        "class Actor:\n"
        "    def double(self, value): return 2 * value\n"
        "print(ray.get(Actor.options(num_cpus=1).remote().double.remote(21)))\n"
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr
