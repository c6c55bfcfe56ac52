"""Conformance of the adapters: the same texts of the model give the same rewards, stop reasons and calls in each.

The environment itself records the calls. TRL owns its loop and its parser, and ends a rollout at the first turn without
a call; the message after such a turn is not part of its contract, so it is left out of those cases.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients import atropos_stand_in, miles_stand_in, roll_stand_in, slime_stand_in
from tests.clients.conformance_environment import ConformanceEnvironment
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.clients.trainer_setup import call, make_arguments, row_of, script, speaker, write_configuration
from tests.support.servers import served

atropos_stand_in.install()
roll_stand_in.install()

from ors_clients import miles, slime  # noqa: E402 - after the stand-ins
from ors_clients.atropos import OrsAtroposConfig, OrsAtroposEnv  # noqa: E402
from ors_clients.client import AsyncClient  # noqa: E402
from ors_clients.local_sessions import local  # noqa: E402
from ors_clients.roll import OpenRewardEnv  # noqa: E402
from ors_clients.roll.env_manager import OrsStepEnvManager  # noqa: E402
from ors_clients.rollouts.chat_renderer import ChatRenderer  # noqa: E402
from ors_clients.rollouts.episode import EpisodeSession, RolloutLimits, TurnEpisode  # noqa: E402
from ors_clients.rollouts.loop import rollout  # noqa: E402
from ors_clients.rollouts.rewards import RewardRule  # noqa: E402
from ors_clients.samplers import ScriptedSampler  # noqa: E402
from ors_clients.tool_calls import ToolCall, find_format  # noqa: E402
from ors_clients.trl import EnvironmentMixture, EnvironmentSpec, environment_reward  # noqa: E402

from tests.clients.test_atropos import ScriptedServer  # noqa: E402
from tests.server.robustness.swallowing import swallowing  # noqa: E402

ENVIRONMENT = "conformanceenvironment"
MAX_TURNS = 4
RULE = RewardRule("sum", nonterminal_reward=-0.5)
EARN = call("earn", reward=0.25)
FINISH = call("finish", reward=1.0)
MALFORMED = "<tool_call>\n{no json\n</tool_call>"


@dataclass(frozen=True)
class Outcome:
    """The result of an episode."""

    #: None for an episode that is not trained on.
    reward: float | None
    stop_reason: str
    #: Name and input of each call that the environment ran.
    trace: list[list[Any]]


@dataclass(frozen=True)
class Case:
    turns: Sequence[str]
    outcome: Outcome
    #: Whether each turn before the end has a valid call.
    calls_only: bool = True


_EARNED: list[Any] = ["earn", {"reward": 0.25}]
_FINISHED: list[Any] = ["finish", {"reward": 1.0}]
CASES = {
    "rewards add up": Case(
        (EARN, call("earn"), FINISH),
        Outcome(1.25, "finished", [_EARNED, ["earn", {"reward": None}], _FINISHED]),
    ),
    "several calls in a turn": Case(
        (EARN + EARN, EARN + FINISH + EARN),
        Outcome(1.75, "finished", [_EARNED] * 3 + [_FINISHED]),
    ),
    "an optional argument that is null": Case(
        (call("earn", reward=None), FINISH),
        Outcome(1.0, "finished", [["earn", {"reward": None}], _FINISHED]),
    ),
    "calls that fail": Case(
        (call("repeat", count="many"), call("fail"), FINISH),
        Outcome(1.0, "finished", [["fail", {}], _FINISHED]),
    ),
    "a tool that is not there": Case((call("guess"), FINISH), Outcome(1.0, "finished", [_FINISHED]), calls_only=False),
    "no call, then a malformed one": Case(
        ("I think.", MALFORMED, FINISH), Outcome(1.0, "finished", [_FINISHED]), calls_only=False
    ),
    "too many turns": Case((EARN,) * (MAX_TURNS + 1), Outcome(0.5, "max_turns", [_EARNED] * MAX_TURNS)),
    "nothing earned": Case(("I think.",) * MAX_TURNS, Outcome(-0.5, "max_turns", []), calls_only=False),
    "a lost machine": Case((EARN, call("lose"), FINISH), Outcome(None, "infrastructure", [_EARNED, ["lose", {}]])),
}

#: Reward and stop reason of an episode of these turns.
Play = Callable[[Sequence[str], str, Path, pytest.MonkeyPatch], Awaitable[tuple[float | None, str]]]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "calls"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, trace: Path) -> Generator[str]:
    environment = Path(__file__).with_name("conformance_environment.py")
    with served(tmp_path_factory.mktemp("server"), environment, TOOL_TRACE=str(trace)) as address:
        yield address


# --- one function for each adapter ------------------------------------------------------------------


async def _rolled_out(session: EpisodeSession, turns: Sequence[str]) -> tuple[float | None, str]:
    tokenizer = tiny_tokenizer("qwen3")
    trajectory = await rollout(
        session,
        ScriptedSampler(turns, tokenizer),
        ChatRenderer(tokenizer),
        find_format("auto"),
        limits=RolloutLimits(max_turns=MAX_TURNS),
    )
    return trajectory.reward(RULE), trajectory.stop_reason


async def with_rollout(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    async with AsyncClient(url) as client:
        return await _rolled_out(client.environment(ENVIRONMENT).session(split="train", index=0), turns)


async def with_local(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    return await _rolled_out(local(ConformanceEnvironment, split="train", index=0), turns)


async def with_turns(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    async with AsyncClient(url) as client:
        session = client.environment(ENVIRONMENT).session(split="train", index=0)
        episode = TurnEpisode(session, find_format("auto"), RolloutLimits(max_turns=MAX_TURNS), RULE)
        await episode.reset()
        taken = [await episode.step(text) for text in turns]  # after the end, nothing more happens
        await episode.close()
        assert taken[-1].stop_reason is not None
        return taken[-1].reward, taken[-1].stop_reason


def _configuration(folder: Path, url: str) -> Path:
    rule = {"max_turns": MAX_TURNS, "nonterminal_reward": -0.5}
    return write_configuration(folder, url, {ENVIRONMENT: rule})


async def with_slime(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    slime_stand_in.install(monkeypatch)
    with speaker(*turns).serve() as engine:
        args = make_arguments(
            _configuration(folder, url), engine, custom_generate_function_path="ors_clients.slime.generate"
        )
        sample = slime_stand_in.Sample(index=0, prompt="[row]", metadata=row_of(ENVIRONMENT, {"number": 0}))
        await slime_stand_in.generate_and_rm(args, sample, {"temperature": 1.0, "max_new_tokens": 512}, False)
        await slime.close()
    reward: Any = None if sample.remove_sample else sample.reward
    return reward, sample.metadata["stop_reason"]


async def with_miles(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    miles_stand_in.install(monkeypatch)
    with speaker(*turns).serve() as engine:
        args = make_arguments(
            _configuration(folder, url),
            engine,
            custom_generate_function_path="ors_clients.miles.generate",
            custom_rm_path="ors_clients.miles.reward_func",
            sglang_speculative_algorithm=None,
        )
        state = miles_stand_in.GenerateState(args, engine.tokenizer)
        sample = miles_stand_in.Sample(index=0, prompt="[row]", metadata=row_of(ENVIRONMENT, {"number": 0}))
        await miles_stand_in.generate_and_rm(state, sample, {"temperature": 1.0, "max_new_tokens": 512})
        await miles.close()
    reward: Any = None if sample.remove_sample else sample.reward
    return reward, sample.metadata["stop_reason"]


async def with_roll(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    def play() -> tuple[float | None, str]:
        env = OpenRewardEnv(ENVIRONMENT, base_url=url, max_steps=MAX_TURNS, nonterminal_reward=-0.5)
        remaining = iter(turns)

        def policy(messages: Any, tools: Any) -> str:
            return next(remaining)

        played = OrsStepEnvManager(env, policy).play(0)
        if played.dropped:
            return None, "infrastructure"
        reason = played.meta_info["stop_reason"]
        assert played.returns[0] == pytest.approx(played.meta_info["episode_score"])
        return played.returns[0], "max_turns" if reason == "max_steps" else reason

    return await asyncio.to_thread(play)


async def with_atropos(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    _, servers = OrsAtroposEnv.config_init()
    config = OrsAtroposConfig(
        ors_url=url,
        ors_environment=ENVIRONMENT,
        tokenizer_name=atropos_stand_in.tokenizer_name(folder),
        group_size=1,
        max_token_length=20_000,
        max_turns=MAX_TURNS,
        nonterminal_reward=-0.5,
        attempts=1,
        use_wandb=False,
        include_messages=True,
    )
    env = OrsAtroposEnv(config, servers, testing=True)
    policy = script(*turns)
    env.server = ScriptedServer(env.tokenizer, lambda prompt, number: policy(prompt))
    await env.setup()
    group, _ = await env.collect_trajectories(await env.get_next_item())
    await env.client.close()
    if group is None:
        return None, "infrastructure"
    # Atropos has no stop reason, but the conversation, which ends with the last turn or its result.
    taken = sum(message["role"] == "assistant" for message in group["messages"][0])
    ended = "finish ran" in str(group["messages"][0][-1]["content"])
    assert ended or taken == MAX_TURNS
    return group["scores"][0], "finished" if ended else "max_turns"


async def with_trl(
    turns: Sequence[str], url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, str]:
    def play() -> tuple[float | None, str]:
        spec = EnvironmentSpec(ENVIRONMENT, reward=RULE)
        with EnvironmentMixture([spec], url=url) as mixture:
            slot: Any = mixture.environment_factory[ENVIRONMENT]()
            slot.reset(split="train", task_index=0)
            for text in turns[:MAX_TURNS]:  # `max_tool_calling_iterations`
                for found in find_format("hermes").parse(text, []):
                    assert isinstance(found, ToolCall)
                    try:
                        method = getattr(slot, found.name)
                        inspect.signature(method).bind(**found.input)
                    except (AttributeError, TypeError):
                        continue  # TRL answers such a call itself
                    method(**found.input)
                if slot.finished or slot.failure:
                    break
            finished = slot.finished
            [reward] = environment_reward([slot])
            return reward, "infrastructure" if slot.failure else "finished" if finished else "max_turns"

    return await asyncio.to_thread(play)


ADAPTERS: dict[str, Play] = {
    "rollout": with_rollout,
    "local": with_local,
    "turns": with_turns,
    "slime": with_slime,
    "miles": with_miles,
    "roll": with_roll,
    "atropos": with_atropos,
    "trl": with_trl,
}


PLAYED = [(adapter, case) for adapter in ADAPTERS for case in CASES if adapter != "trl" or CASES[case].calls_only]


@pytest.mark.parametrize(("adapter", "case"), PLAYED)
async def test_the_same_turns_mean_the_same(
    adapter: str, case: str, url: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOL_TRACE", str(trace))
    for name in ("TRAIN_CONFIG", "ORS_URL", "HF_CHECKPOINT", "SGLANG_ROUTER_URL", "OPENREWARD_RUN_NAME"):
        monkeypatch.delenv(name, raising=False)
    trace.write_text("")
    reward, stop_reason = await ADAPTERS[adapter](CASES[case].turns, url, tmp_path, monkeypatch)
    ran = [json.loads(line) for line in trace.read_text().splitlines()]
    assert Outcome(reward, stop_reason, ran) == CASES[case].outcome


@pytest.mark.parametrize("adapter", sorted(ADAPTERS.keys() - {"local"}))
async def test_calls_whose_answers_are_swallowed_run_once(
    adapter: str, url: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every adapter sends a key with every call: the SDKs' clients send none and run each of these calls twice."""
    case = CASES["several calls in a turn"]
    async with swallowing(int(url.rpartition(":")[2])) as proxy:
        await test_the_same_turns_mean_the_same(
            adapter, "several calls in a turn", proxy.url, trace, tmp_path, monkeypatch
        )
    assert len(proxy.swallowed) == len(case.outcome.trace)
