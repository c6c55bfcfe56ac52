"""Miles' functions, called as Miles calls them, against a real server and a scripted engine.

The tests of slime cover the parts that both share. These are Miles' forms of calls, its ``Sample``, and the agent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.trainers import miles
from ors_clients.training.sample_functions import RunEnded

from tests.clients import miles_stand_in
from tests.clients.miles_stand_in import GenerateState, Sample, SessionServer, agentic_generate, generate_and_rm
from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.tiny_tokenizer import tiny_tokenizer
from tests.clients.trainer_setup import (
    call,
    closed,
    forget_variables,
    make_arguments,
    outcomes,
    row_of,
    serving,
    speaker,
    until,
    write_configuration,
)

HELLO = {"id": "echo-0", "target": "hello"}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_new_tokens": 512, "stop": None, "no_stop_trim": True}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with serving(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(autouse=True)
async def in_miles(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    miles_stand_in.install(monkeypatch)
    forget_variables(monkeypatch)
    yield
    await miles.close()


MakeState = Callable[..., GenerateState]


@pytest.fixture
def make_state(url: str, tmp_path: Path) -> MakeState:
    def make(
        engine: ScriptedEngine, environments: dict[str, Any] | None = None, *, function: str = "generate"
    ) -> GenerateState:
        file = write_configuration(tmp_path, url, environments or {"echoenvironment": {}})
        engine.tokenizer.save_pretrained(tmp_path / "model")
        args = make_arguments(
            file,
            engine,
            tokenizer=None,
            hf_checkpoint=str(tmp_path / "model"),
            custom_generate_function_path=f"{__name__ if function == 'legacy' else 'ors_clients.miles'}.{function}",
            custom_rm_path="ors_clients.miles.reward_func",
            sglang_speculative_algorithm=None,
        )
        return GenerateState(args, engine.tokenizer)

    return make


async def legacy(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Call the older form like a rollout of slime: by position."""
    return await miles.generate(args, sample, sampling_params, evaluation=evaluation)


def sample_of(
    environment: str = "echoenvironment",
    spec: dict[str, Any] | None = None,
    metadata_more: dict[str, Any] | None = None,
    **more: Any,
) -> Sample:
    spec = spec or (HELLO if environment == "echoenvironment" else {"number": 0})
    metadata = {**row_of(environment, spec), **(metadata_more or {})}
    return Sample(index=0, prompt="[row]", metadata=metadata, **more)


# --- the generate function -----------------------------------------------------------------------


async def test_the_older_form_fills_the_sample(make_state: MakeState) -> None:
    with speaker(call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        state = make_state(engine, function="legacy")
        sample = await generate_and_rm(state, sample_of(routing_key="r-1"), SAMPLING)
    assert isinstance(sample, Sample)
    sample.validate()
    assert sample.status == Sample.Status.COMPLETED
    assert sample.reward == 1.0
    assert sample.weight_versions == ["7", "7"]
    assert sample.oldest_weight_version == 7
    assert {headers["x-smg-routing-key"] for headers in engine.headers} == {"r-1"}


def test_miles_takes_generate_for_its_own_form_and_finds_its_arguments() -> None:
    parser = argparse.ArgumentParser()
    miles.generate.add_arguments(parser)  # type: ignore[attr-defined]
    options = parser.parse_args(["--train-config", "c.yaml", "--ors-url", "http://host:1"])
    assert (options.train_config, options.ors_url) == ("c.yaml", "http://host:1")
    assert parser.parse_args([]).train_config is None
    assert miles_stand_in.load_generate_function("ors_clients.miles.generate") is miles.generate


@pytest.mark.parametrize("adapter", [{"lora_rank": 16}, {"lora_rank": 0, "lora_adapter_path": "/adapter"}])
async def test_adapters_that_requests_would_have_to_name_are_refused(
    make_state: MakeState, adapter: dict[str, Any]
) -> None:
    with speaker(call("echo", text="hello")).serve() as engine:
        state = make_state(engine)
        state.args.__dict__.update(adapter, dynamic_sampling_filter_path="ors_clients.miles.keep_group")
        with pytest.raises(ConfigurationError, match="lora-rank"):
            await generate_and_rm(state, sample_of(), SAMPLING, evaluation=True)
        sample = await generate_and_rm(state, sample_of(), SAMPLING)
        with pytest.raises(ConfigurationError, match="lora-rank"):
            miles.keep_group(state.args, [sample])
    assert not engine.requests


async def test_an_adapter_that_is_trained_and_not_sampled_with_is_taken(make_state: MakeState) -> None:
    with speaker(call("echo", text="hello")).serve() as engine:
        state = make_state(engine)
        state.args.__dict__.update(lora_rank=16, lora_train_only=True)
        sample = await generate_and_rm(state, sample_of(), SAMPLING)
    assert isinstance(sample, Sample)
    assert sample.reward == 1.0


async def test_no_generation_is_begun_once_miles_is_stopping(make_state: MakeState) -> None:
    with speaker(call("wait", seconds=0.5)).serve() as engine:
        state = make_state(engine, {"stepenvironment": {}})
        playing = asyncio.create_task(generate_and_rm(state, sample_of("stepenvironment"), SAMPLING))
        await until(lambda: engine.requests)
        state.aborted = True
        sample = await playing
    assert isinstance(sample, Sample)
    assert sample.status == Sample.Status.ABORTED
    assert (sample.tokens, sample.response_length, sample.reward) == ([], 0, None)
    assert len(engine.requests) == 1


# --- processing by Miles ---------------------------------------------------------------------------


def batch_of(state: GenerateState, **more: Any) -> GenerateState:
    """Return the state of a run that draws batches."""
    defaults = {
        "rollout_batch_size": 1,
        "over_sampling_batch_size": 1,
        "n_samples_per_prompt": 4,
        "dynamic_sampling_filter_path": "ors_clients.miles.keep_group",
    }
    state.args.__dict__.update({**defaults, **more})
    return state


REWARDS = [call("finish", reward=reward) for reward in (0.0, 0.25, 0.5, 1.0)]


@pytest.mark.parametrize("group_rm", [False, True])
async def test_a_lost_rollout_is_in_no_batch(make_state: MakeState, group_rm: bool) -> None:
    # With --group-rm Miles refuses a reward that exists already, logs that, and draws another group without end.
    with ScriptedEngine(outcomes(call("lose"), *REWARDS[:3], *REWARDS), tiny_tokenizer()).serve() as engine:
        state = batch_of(make_state(engine, {"stepenvironment": {}}), group_rm=group_rm)
        (group,) = await miles_stand_in.generate_rollout(state, [sample_of("stepenvironment")], SAMPLING)
    assert sorted(sample.reward for sample in group) == [0.0, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("group_rm", [False, True])
@pytest.mark.parametrize("mistake", ["lost", "misconfigured"])
async def test_an_error_that_the_trainer_would_swallow_ends_the_run(
    make_state: MakeState, mistake: str, group_rm: bool
) -> None:
    # Miles logs an exception of `generate`, and draws another group: some hundred a second.
    with ScriptedEngine(outcomes(call("lose")), tiny_tokenizer()).serve() as engine:
        state = batch_of(make_state(engine, {"stepenvironment": {}}), group_rm=group_rm)
        row = sample_of("stepenvironment") if mistake == "lost" else sample_of("other", {})
        with pytest.raises(InfrastructureFailure if mistake == "lost" else ConfigurationError):
            await miles_stand_in.generate_rollout(state, [row], SAMPLING)


@pytest.mark.parametrize("mistake", ["lost", "misconfigured", "replaced"])
@pytest.mark.parametrize("path", [None, "tests.clients.miles_stand_in.drop_all"])
async def test_a_run_ends_with_its_reason_whatever_filters_its_groups(
    make_state: MakeState, mistake: str, path: str | None
) -> None:
    with ScriptedEngine(outcomes(call("lose")), tiny_tokenizer()).serve() as engine:
        state = batch_of(make_state(engine, {"stepenvironment": {}}), dynamic_sampling_filter_path=path)
        state.args.custom_reward_post_process_path = "ors_clients.miles.post_process_rewards"
        row = sample_of("other", {}) if mistake == "misconfigured" else sample_of("stepenvironment")
        if mistake == "replaced":
            state.args.custom_reward_post_process_path = None

        async def batch() -> None:
            data = await miles_stand_in.generate_rollout(state, [row], SAMPLING, seconds=20)
            miles.post_process_rewards(state.args, data)  # where lost groups are kept

        lost = r"times in a row|Every rollout of a batch"
        reasons = {"lost": lost, "misconfigured": "No environment", "replaced": "baseline"}
        with pytest.raises((RunEnded, InfrastructureFailure), match=reasons[mistake]):
            await batch()


async def test_a_complete_batch_waits_for_no_tool(make_state: MakeState, url: str) -> None:
    def policy(prompt: str) -> str:
        return call("wait", seconds=60) if "Task 1." in prompt else REWARDS[3]

    with ScriptedEngine(policy, tiny_tokenizer()).serve() as engine:
        state = batch_of(make_state(engine, {"stepenvironment": {}}), over_sampling_batch_size=2)
        prompts = [sample_of("stepenvironment", {"number": number}) for number in range(2)]
        begun = time.monotonic()
        assert len(await miles_stand_in.generate_rollout(state, prompts, SAMPLING)) == 1
    assert time.monotonic() - begun < 20
    await closed(url)


# --- the agent function --------------------------------------------------------------------------


@pytest.fixture
def train_config(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def write(environments: dict[str, Any] | None = None, **options: Any) -> None:
        environments = environments or {"echoenvironment": {}}
        monkeypatch.setenv("TRAIN_CONFIG", str(write_configuration(tmp_path, url, environments, **options)))

    return write


async def play_agent(
    server: SessionServer, sample: Sample, sampling: dict[str, Any] | None = None, max_seq_len: int | None = None
) -> Sample:
    (played,) = await agentic_generate(miles.run, server, sample, sampling or SAMPLING, max_seq_len)
    return played


@pytest.mark.parametrize("native", [False, True])
async def test_the_agent_plays_through_the_session_server(train_config: Callable[..., None], native: bool) -> None:
    """``native``: the chat template lists the tools, and the server parses the calls into ``tool_calls``."""
    train_config(system_prompt_template=None) if native else train_config()
    engine = speaker(call("echo", text="no") + call("hint"), call("echo", text="hello"), template="qwen2")
    async with SessionServer(engine, reads_calls=native).serve() as server:
        sample = await play_agent(server, sample_of())
    assert sample.status == Sample.Status.COMPLETED
    assert sample.metadata["rewards"] == [0.0, 1.0]
    assert sample.metadata["stop_reason"] == "finished"
    assert sample.metadata["num_tool_calls"] == 3
    assert sample.metadata["task_spec"] == HELLO
    assert 0 < sample.non_generation_time < 60
    sample.validate()
    assert await miles.reward_func(None, sample) == 1.0
    json.dumps(sample.metadata)

    first, second = server.requests
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0.7, 512, "model")
    assert first["chat_template_kwargs"] == {"enable_thinking": False}
    replies = second["messages"][len(first["messages"]) + 1 :]
    if native:
        assert {tool["function"]["name"] for tool in first["tools"]} == {"echo", "hint"}
        assert [(reply["role"], reply["tool_call_id"]) for reply in replies] == [
            ("tool", "call_1_0"),
            ("tool", "call_1_1"),
        ]
        assert second["messages"][-3]["tool_calls"][0]["function"]["name"] == "echo"
    else:
        assert "tools" not in first
        assert '"name": "echo"' in first["messages"][0]["content"]
        assert [reply["role"] for reply in replies] == ["user"]
        assert replies[0]["content"].startswith("<tool_response>\nno match\n</tool_response>\n<tool_response>\n")


async def test_malformed_calls_that_the_server_parses_get_results(
    train_config: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call gets its result, also a call whose arguments are not JSON."""
    train_config({"stepenvironment": {}}, system_prompt_template=None)

    def read(text: str, turn: int) -> list[dict[str, Any]]:
        function = {"name": "earn", "arguments": '{"reward": 1}'}
        broken = {"name": "earn", "arguments": "{"}
        if turn > 1:
            function = broken = {"name": "finish", "arguments": '{"reward": 1}'}
        return [
            {"id": f"{turn}-{place}", "type": "function", "function": one}
            for place, one in enumerate([broken, function] if turn < 3 else [function])
        ]

    monkeypatch.setattr(miles_stand_in, "_read_calls", read)
    engine = speaker(call("earn", reward=1), template="qwen2")
    async with SessionServer(engine, reads_calls=True).serve() as server:
        sample = await play_agent(server, sample_of("stepenvironment"))
    replies = server.requests[1]["messages"][-2:]
    assert [reply["role"] for reply in replies] == ["tool", "tool"]
    assert {reply["tool_call_id"] for reply in replies} == {"1-0", "1-1"}
    assert sample.metadata["num_malformed_tool_calls"] == 1
    assert sample.metadata["rewards"] == [1.0, 1.0]


async def test_images_go_to_the_agents_model_as_urls(train_config: Callable[..., None]) -> None:
    train_config({"stepenvironment": {}})
    engine = speaker(call("picture"), call("finish", reward=1), template="qwen2")
    async with SessionServer(engine, text_only=True).serve() as server:
        sample = await play_agent(server, sample_of("stepenvironment"))
    parts = server.requests[1]["messages"][-1]["content"]
    assert parts[0] == {"type": "text", "text": "look"}
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert sample.status == Sample.Status.ABORTED  # this server kept no tokens


@pytest.mark.parametrize("native", [False, True])
async def test_an_agents_rollouts_are_uploaded(
    train_config: Callable[..., None], url: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_name = f"agents-{native}"
    monkeypatch.setenv("OPENREWARD_RUN_NAME", run_name)
    monkeypatch.delenv("OPENREWARD_API_URL", raising=False)
    options: dict[str, Any] = {"system_prompt_template": None} if native else {}
    train_config({"stepenvironment": {"max_reward": 0.75}}, upload_rollouts=True, **options)
    engine = speaker(call("earn", reward=0.5), call("finish", reward=1), template="qwen2")
    async with SessionServer(engine, reads_calls=native).serve() as server:
        sample = await play_agent(server, sample_of("stepenvironment"))
    await miles.close()
    async with httpx.AsyncClient(base_url=url) as client:
        listing = (await client.get(f"/v1/runs/{run_name}/rollouts")).json()
    (rollout,) = listing["rollouts"]
    assert sample.metadata["rollout_id"] in rollout["rolloutName"]
    assert rollout["max_reward"] == 0.75  # what the trainer scored: the sum, and no more than its configuration allows
    assert rollout["finished"]
    assert rollout["environment"] == "stepenvironment"
    # Opening, two turns with a call each, and their results; the system prompt where it lists the tools.
    assert rollout["num_messages"] == (5 if native else 6)


async def test_an_agents_lost_rollout_is_uploaded_as_such(train_config: Callable[..., None], tmp_path: Path) -> None:
    kept = tmp_path / "rollouts.jsonl"
    train_config({"stepenvironment": {}}, rollouts_file=str(kept))
    async with SessionServer(speaker(call("earn", reward=5), call("lose"), template="qwen2")).serve() as server:
        await play_agent(server, sample_of("stepenvironment"))
    await miles.close()
    (row,) = map(json.loads, kept.read_text().splitlines())
    assert (row["stop_reason"], row["trainable"], row["reward"]) == ("infrastructure", False, None)
    assert "the sandbox died" in row["failure"]
    assert row["steps"][0]["reward"] == 5.0


async def test_a_turn_that_ends_at_the_sessions_length_is_run(train_config: Callable[..., None]) -> None:
    train_config({"stepenvironment": {}})
    async with SessionServer(speaker(call("earn", reward=1), template="qwen2")).serve() as server:
        whole = await play_agent(server, sample_of("stepenvironment"), max_seq_len=1200)
        requests = len(server.requests)
        turns = len(whole.metadata["rewards"])
        sample = await play_agent(server, sample_of("stepenvironment"), max_seq_len=_end_of_turn(whole, turns))
    assert len(server.requests) - requests == turns
    assert sample.status == Sample.Status.COMPLETED
    assert sample.metadata["stop_reason"] == "max_tokens"
    assert sample.metadata["rewards"] == [1.0] * turns


def _end_of_turn(sample: Sample, turn: int) -> int:
    """Return the number of a sample's tokens up to the end of one of its turns, from 1."""
    assert sample.loss_mask is not None
    mask = [*sample.loss_mask, 0]
    ends = [place for place in range(1, len(mask)) if mask[place - 1] and not mask[place]]
    return len(sample.tokens) - sample.response_length + ends[turn - 1]


@pytest.mark.parametrize("native", [False, True])
async def test_no_reward_is_earned_by_or_after_a_truncated_turn_of_an_agent(
    train_config: Callable[..., None], native: bool
) -> None:
    """Miles' sample ends with that turn; a later turn's reward would be credited to it."""
    options: dict[str, Any] = {"system_prompt_template": None} if native else {}
    train_config({"stepenvironment": {}}, **options)
    cut_off = call("earn", reward=5) + "and so on " * 400
    turns = (call("earn", reward=0.5), cut_off, call("finish", reward=1))
    async with SessionServer(speaker(*turns, template="qwen2"), reads_calls=native).serve() as server:
        sample = await play_agent(server, sample_of("stepenvironment"), {**SAMPLING, "max_new_tokens": 100})
    assert len(server.requests) == 2
    assert sample.status == Sample.Status.TRUNCATED
    assert sample.metadata["stop_reason"] == "max_tokens"
    assert sample.metadata["num_turns"] == 2
    assert sample.metadata["rewards"] == [0.5]
    assert await miles.reward_func(None, sample) == 0.5
    sample.validate()


async def test_an_agents_turn_that_the_engine_aborts_is_not_run(train_config: Callable[..., None], url: str) -> None:
    train_config({"stepenvironment": {}})
    async with SessionServer(speaker(call("finish", reward=1), template="qwen2", finish="abort")).serve() as server:
        sample = await play_agent(server, sample_of("stepenvironment"))
    assert sample.status == Sample.Status.ABORTED
    assert sample.metadata["stop_reason"] == "aborted"
    assert sample.metadata["rewards"] == []
    assert await miles.reward_func(None, sample) == 0.0  # with --group-rm Miles requests it nevertheless
    assert sample.remove_sample
    await closed(url)


async def test_an_agents_record_is_that_of_its_last_attempt(
    train_config: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Miles passes the sample's metadata of the previous attempt to an agent, and keeps them if it raises."""
    train_config({"stepenvironment": {}})
    turns = (call("earn", reward=0.5), call("finish", reward=1))
    async with SessionServer(speaker(*turns, template="qwen2")).serve() as server:
        first = await play_agent(server, sample_of("stepenvironment"))
        assert first.metadata["episode_reward"] == 1.5

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("the disk is full")

        monkeypatch.setattr("ors_clients.training.episode_runner.EpisodeRunner.send", fail)
        again = await play_agent(server, sample_of("stepenvironment", metadata_more=first.metadata))
    assert again.status == Sample.Status.COMPLETED
    assert again.metadata["failure"] == "RuntimeError: the disk is full"
    assert (again.metadata["rewards"], again.metadata["rollout_id"]) == ([], None)
    assert await miles.reward_func(None, again) == 0.0
    assert again.remove_sample
    assert not miles.keep_group(None, [again]).keep
    assert "the disk is full" in caplog.text


@pytest.fixture
def agent_state(make_state: MakeState) -> Callable[..., GenerateState]:
    """Return the state of a run with ``generate_with_agent``."""

    def make(server: SessionServer, **more: Any) -> GenerateState:
        state = make_state(server.engine, {"stepenvironment": {}}, function="generate_with_agent")
        defaults = {
            "custom_agent_function_path": "ors_clients.miles.run",
            "session_server": server,
            "tito_model": server.tito_model,
        }
        state.args.__dict__.update({**defaults, **more})
        return state

    return make


AgentState = Callable[..., GenerateState]


async def test_an_agent_that_writes_turns_as_no_template_does_is_not_trained_on(
    agent_state: AgentState, train_config: Callable[..., None]
) -> None:
    turns = (call("earn", reward=0.5), call("finish", reward=0.25))
    async with SessionServer(speaker(*turns, template="qwen2"), tito_model="default").serve() as server:
        state = agent_state(server)
        state.args.dynamic_sampling_filter_path = "ors_clients.miles.keep_group"
        train_config({"stepenvironment": {}}, max_failures_in_row=2)
        sample: Any = await generate_and_rm(state, sample_of("stepenvironment"), SAMPLING)
        assert (sample.status, sample.remove_sample) == (Sample.Status.ABORTED, True)
        assert "--tito-model" in sample.metadata["failure"]
        again = await generate_and_rm(state, sample_of("stepenvironment"), SAMPLING)
        with pytest.raises(InfrastructureFailure, match="--tito-model"):
            miles.keep_group(state.args, [again])


async def test_an_agents_lost_rollout_is_aborted_and_generated_again(
    agent_state: AgentState, train_config: Callable[..., None]
) -> None:
    train_config({"stepenvironment": {}})
    async with SessionServer(speaker(call("earn", reward=5), call("lose"), template="qwen2")).serve() as server:
        state = agent_state(server)
        sample: Any = await generate_and_rm(state, sample_of("stepenvironment"), SAMPLING)
        assert (sample.status, sample.reward, sample.remove_sample) == (Sample.Status.ABORTED, 0.0, True)
        assert miles.keep_group(state.args, [sample]).reason == "infrastructure_failure"
        server.engine.policy = outcomes(call("finish", reward=1))
        again: Any = await generate_and_rm(state, sample, SAMPLING)
    # Miles keeps the sample's values: its reward and its removal would be those of the previous attempt.
    assert (again.status, again.reward, again.remove_sample) == (Sample.Status.COMPLETED, 1.0, False)


async def test_a_turn_that_the_episode_did_not_take_is_not_trained_on(
    agent_state: AgentState, train_config: Callable[..., None]
) -> None:
    # The session keeps the second turn, whose result comes after the time limit: the reward is of other tokens.
    turns = (call("earn", reward=0.5), call("finish", reward=1))
    server = SessionServer(speaker(*turns, template="qwen2"), delay=2.5)
    async with server.serve():
        state = agent_state(server)
        train_config({"stepenvironment": {}}, max_seconds=4.5)
        sample: Any = await generate_and_rm(state, sample_of("stepenvironment"), SAMPLING)
    assert len(server.requests) == 2
    assert sample.metadata["stop_reason"] == "max_time"
    assert (sample.status, sample.remove_sample) == (Sample.Status.ABORTED, True)
    assert "did not take" in sample.metadata["failure"]


async def test_an_agent_stops_with_the_batch(
    agent_state: AgentState, train_config: Callable[..., None], url: str
) -> None:
    train_config({"stepenvironment": {}})
    async with SessionServer(speaker(call("wait", seconds=60), template="qwen2")).serve() as server:
        state = agent_state(server)
        playing = asyncio.create_task(generate_and_rm(state, sample_of("stepenvironment"), SAMPLING))
        await until(lambda: server.requests)
        state.aborted = True
        sample: Any = await asyncio.wait_for(playing, 30)
        assert len(server.requests) == 1
    # The session's only turn is complete, and Miles calls it COMPLETED.
    assert (sample.status, sample.remove_sample) == (Sample.Status.ABORTED, True)
    await closed(url)


async def test_an_agents_prompt_over_the_limit_is_not_a_lost_rollout(
    agent_state: AgentState, train_config: Callable[..., None]
) -> None:
    async with SessionServer(speaker(call("finish", reward=1), template="qwen2")).serve() as server:
        state = agent_state(server, max_seq_len=5)
        train_config({"stepenvironment": {"nonterminal_reward": -1.0}})
        sample: Any = await generate_and_rm(state, sample_of("stepenvironment"), SAMPLING)
    # If ABORTED, Miles would generate it again without end, fully asynchronously.
    assert (sample.status, sample.reward, sample.loss_mask) == (Sample.Status.TRUNCATED, -1.0, [0])
    assert miles.keep_group(state.args, [sample]).reason == "prompt_too_long"


async def test_an_agents_mistake_of_configuration_ends_an_evaluation(
    agent_state: AgentState, train_config: Callable[..., None]
) -> None:
    train_config({"echoenvironment": {}})
    async with SessionServer(speaker("", template="qwen2")).serve() as server:
        state = agent_state(server)
        train_config({"echoenvironment": {}})
        with pytest.raises(ConfigurationError, match="stepenvironment"):
            await generate_and_rm(state, sample_of("stepenvironment"), SAMPLING, evaluation=True)


async def test_an_agent_without_a_task_says_how_to_prepare_one(
    train_config: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    train_config()
    record = await miles.run("http://127.0.0.1:9", "[row]", {}, {})
    assert "prepare_tasks" in record["failure"]
    assert "prepare_tasks" in caplog.text


async def test_an_agent_that_is_too_slow_for_its_first_turn_is_lost(train_config: Callable[..., None]) -> None:
    train_config({"stepenvironment": {}}, max_seconds=0.5)
    server = SessionServer(speaker(call("finish", reward=1), template="qwen2"), delay=1.0)
    async with server.serve():
        sample = await play_agent(server, sample_of("stepenvironment"))
    assert sample.metadata["stop_reason"] == "infrastructure"
    assert "max_seconds" in sample.metadata["failure"]
    assert not miles.keep_group(None, [sample]).keep
    assert await miles.reward_func(None, sample) == 0.0
    assert sample.remove_sample
