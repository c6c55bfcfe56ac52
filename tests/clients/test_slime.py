"""slime's functions, called as slime calls them, against a real server and a scripted SGLang engine.

The first part covers the faults of the existing integration (trainers.md, section 1), with one test each.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ors_clients.errors import ConfigurationError, InfrastructureFailure
from ors_clients.samplers.scripted import scripted_logprob
from ors_clients.trainers import slime

from tests.clients import slime_stand_in
from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.slime_stand_in import Sample, generate_and_rm
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

GENERATE = "ors_clients.slime.generate"
HELLO = {"id": "echo-0", "target": "hello"}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_new_tokens": 512, "stop": None, "stop_token_ids": None}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, ORS_DATA_DIR=str(folder / "data")) as address:
        yield address


@pytest.fixture(autouse=True)
async def in_slime(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    slime_stand_in.install(monkeypatch)
    forget_variables(monkeypatch)
    yield
    await slime.close()


Play = Callable[..., Any]


@pytest.fixture
def play(url: str, tmp_path: Path) -> Play:
    """Return a function that plays one sample to its end: ``await play(engine, environment, spec, …)``."""

    async def run(
        engine: ScriptedEngine,
        environment: str = "echoenvironment",
        spec: dict[str, Any] | None = None,
        *,
        rule: dict[str, Any] | None = None,
        sampling: dict[str, Any] | None = None,
        configuration: dict[str, Any] | None = None,
        metadata: Any = None,
        evaluation: bool = False,
        **arguments: Any,
    ) -> Sample:
        spec = spec or (HELLO if environment == "echoenvironment" else {"number": 0})
        file = write_configuration(tmp_path, url, {environment: rule or {}}, **(configuration or {}))
        args = make_arguments(file, engine, **{"custom_generate_function_path": GENERATE, **arguments})
        sample = Sample(index=0, prompt="[row]", session_id="s-0", metadata=metadata or row_of(environment, spec))
        done = await generate_and_rm(args, sample, dict(sampling or SAMPLING), evaluation)
        assert done is sample
        return sample

    return run


def check_alignment(sample: Sample, engine: ScriptedEngine) -> None:
    """Check a sample: equal lengths, ids as they were sent, log-probabilities of their own positions."""
    assert sample.loss_mask is not None and sample.rollout_log_probs is not None
    assert isinstance(sample.tokens, list) and all(type(token) is int for token in sample.tokens)
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    for ids in engine.prompts:
        assert sample.tokens[: len(ids)] == ids
    prompt = len(sample.tokens) - sample.response_length
    assert prompt == len(engine.prompts[0])
    for position, (mask, logprob) in enumerate(zip(sample.loss_mask, sample.rollout_log_probs, strict=True)):
        if mask:
            assert logprob == scripted_logprob(prompt + position)


def trained_text(sample: Sample, engine: ScriptedEngine) -> str:
    """Return the text of the trained tokens."""
    assert sample.loss_mask is not None
    response = sample.tokens[-sample.response_length :]
    kept = [token for token, mask in zip(response, sample.loss_mask, strict=True) if mask]
    return engine.tokenizer.decode(kept, skip_special_tokens=False)


# --- the faults of the existing integration ------------------------------------------------------


@pytest.mark.parametrize("form", ["mapping", "JSON"])
async def test_fault_2_tokens_are_a_list_and_metadata_a_mapping(play: Play, form: str) -> None:
    metadata = row_of("echoenvironment", HELLO)
    with speaker(call("echo", text="hello")).serve() as engine:
        sample = await play(engine, metadata=metadata if form == "mapping" else json.dumps(metadata))
    assert type(sample.tokens) is list and type(sample.loss_mask) is list
    sample.metadata["start_rollout_id"] = 3  # slime's abort sets it
    assert {key: sample.metadata[key] for key in metadata} == metadata
    assert sample.metadata["rewards"] == [1.0]
    json.dumps(sample.metadata)


async def test_fault_5_thinking_stays_as_it_was_sampled_and_out_of_the_loss(play: Play) -> None:
    turns = (
        f"<think>\n  Is  it\nno?  \n</think>\n\n{call('echo', text='no')}",
        f"<think>yes</think>{call('echo', text='hello')}",
    )
    with speaker(*turns).serve() as engine:
        sample = await play(engine, configuration={"thinking": True})
    assert sample.reward == 1.0
    check_alignment(sample, engine)
    assert "<think>\n  Is  it\nno?  \n</think>\n\n" in engine.tokenizer.decode(engine.prompts[1])
    assert trained_text(sample, engine) == "".join(f"{call('echo', text=text)}<|im_end|>" for text in ("no", "hello"))


async def test_fault_5_thinking_can_be_trained_on(play: Play) -> None:
    turn = f"<think>yes</think>{call('echo', text='hello')}"
    with speaker(turn).serve() as engine:
        sample = await play(engine, configuration={"thinking": True, "train_on_thinking": True})
    assert trained_text(sample, engine) == f"{turn}<|im_end|>"


async def test_fault_5_a_thought_without_an_end_is_all_thinking(play: Play) -> None:
    with speaker("<think>and on and on").serve() as engine:
        sample = await play(engine, configuration={"thinking": True}, rule={"max_turns": 1})
    assert sample.loss_mask == [0] * sample.response_length


async def test_fault_5_thinking_that_the_prompt_begins_is_masked(play: Play) -> None:
    turn = f"so\n</think>\n\n{call('echo', text='hello')}"
    with speaker(turn, template="reasoning").serve() as engine:
        sample = await play(engine, configuration={"thinking": True})
    assert engine.tokenizer.decode(engine.prompts[0]).endswith("<think>\n")
    assert trained_text(sample, engine) == f"{call('echo', text='hello')}<|im_end|>"


async def test_without_thinking_the_turn_begins_after_an_empty_thought(play: Play) -> None:
    with speaker(call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        sample = await play(engine)
    assert all(engine.tokenizer.decode(ids).endswith("<think>\n\n</think>\n\n") for ids in engine.prompts)
    assert "<think>" not in trained_text(sample, engine)


async def test_fault_6_images_and_parallel_calls_are_kept(play: Play) -> None:
    both = call("picture") + "\n" + call("earn", reward=2)
    with speaker(both, call("finish", reward=1), template="vision").serve() as engine:
        sample = await play(engine, "stepenvironment", processor=VisionProcessor(engine.tokenizer))
    assert sample.reward == 3.0
    assert sample.metadata["num_tool_calls"] == 3
    (_, first), (_, second) = engine.requests
    assert "image_data" not in first
    assert [image[:22] for image in second["image_data"]] == ["data:image/png;base64,"]
    # The placeholder becomes as many tokens as the processor makes of the image, none of them trained on.
    image = engine.tokenizer.convert_tokens_to_ids("<|image|>")
    place = second["input_ids"].index(image)
    assert sample.tokens[:place] == second["input_ids"][:place]
    assert sample.tokens[place : place + 4] == [image] * 4
    sent = len(second["input_ids"])
    assert sample.tokens[place + 4 : sent + 3] == second["input_ids"][place + 1 :]
    assert sample.multimodal_train_inputs == {"pixel_values": [(1, 1)]}
    assert sample.loss_mask is not None and sample.rollout_log_probs is not None
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    assert trained_text(sample, engine) == f"{both}<|im_end|>{call('finish', reward=1)}<|im_end|>"


async def test_fault_6_images_without_a_processor_are_refused(play: Play) -> None:
    engine = speaker(call("picture"), call("finish", reward=1), template="vision")
    with engine.serve(), pytest.raises(ConfigurationError, match="no processor"):
        await play(engine, "stepenvironment")


async def test_fault_6_images_are_described_to_a_text_model(play: Play) -> None:
    with speaker(call("picture"), call("finish", reward=1)).serve() as engine:
        sample = await play(engine, "stepenvironment")
    assert "look" in sample.response
    assert sample.multimodal_train_inputs is None
    check_alignment(sample, engine)


class VisionProcessor:
    """A processor that makes four tokens of every image, with the interface of transformers' processors."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(
        self, *, text: list[str], images: list[Any], add_special_tokens: bool, return_tensors: str | None = None
    ) -> dict[str, Any]:
        assert len(text) == 1 and text[0].count("<|image|>") == len(images)
        assert not add_special_tokens
        assert return_tensors in (None, "pt")
        ids = self.tokenizer.encode(text[0].replace("<|image|>", "<|image|>" * 4), add_special_tokens=False)
        return {
            "input_ids": [ids],
            "attention_mask": [[1] * len(ids)],
            "pixel_values": [image.size for image in images],
        }


async def test_fault_7_ids_of_calls_are_unique_in_their_rollout(play: Play, tmp_path: Path) -> None:
    kept = tmp_path / "rollouts.jsonl"
    with speaker(call("echo", text="no") * 2, call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        await play(engine, configuration={"rollouts_file": str(kept)})
    await slime.close()
    (row,) = [json.loads(line) for line in kept.read_text().splitlines()]
    ids = [step["id"] for step in row["steps"]]
    assert len(ids) == 4 == len(set(ids))


# --- slime's contract ----------------------------------------------------------------------------


async def test_the_contract_of_slimes_own_plugin_test(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tests/plugin_contracts/test_plugin_generate_contracts.py``: empty arguments, no task."""
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    file = write_configuration(tmp_path, url, {"echoenvironment": {}})
    with speaker(call("echo", text="hello")).serve() as engine:
        monkeypatch.setenv("TRAIN_CONFIG", str(file))
        monkeypatch.setenv("HF_CHECKPOINT", str(tmp_path / "model"))
        monkeypatch.setenv("SGLANG_ROUTER_URL", engine.url)
        args = SimpleNamespace(custom_generate_function_path=GENERATE, group_rm=False, partial_rollout=False)
        assert tuple(inspect.signature(slime.generate).parameters)[:3] == ("args", "sample", "sampling_params")
        sample = await generate_and_rm(args, Sample(index=0, prompt="prompt"), {"temperature": 0.3}, False)
    assert isinstance(sample.tokens, list)
    assert isinstance(sample.response, str)
    assert isinstance(sample.response_length, int)
    assert sample.reward == 1.0
    assert engine.requests[0][1]["sampling_params"]["temperature"] == 0.3
    assert sample.metadata["env_name"] == "echoenvironment"
    assert sample.metadata["index"] == 0


async def test_the_settings_may_come_from_the_custom_config_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    file = write_configuration(tmp_path, "http://127.0.0.1:9", {"echoenvironment": {}})
    with speaker(call("echo", text="world")).serve() as engine:
        args = make_arguments(file, engine, tokenizer=None, tokenizer_name_or_path=str(tmp_path / "model"), ors_url=url)
        sample = await slime.generate(args, Sample(index=5), {})  # of four tasks
    assert sample.metadata["task_spec"] == {"id": "echo-1", "target": "world"}
    assert sample.reward == 1.0


async def test_a_group_without_metadata_plays_one_task(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"echoenvironment": {}})
    # slime's numbering: a group has a number, and each of its samples one of its own.
    samples = [Sample(group_index=index // 2, index=index) for index in range(4)]
    with speaker(call("echo", text="hello")).serve() as engine:
        args = make_arguments(file, engine)
        for sample in samples:
            await slime.generate(args, sample, SAMPLING)
    assert [sample.metadata["index"] for sample in samples] == [0, 0, 1, 1]


async def test_every_sampling_parameter_reaches_the_engine(play: Play) -> None:
    sampling = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "max_new_tokens": 77,
        "stop": ["STOP"],
        "stop_token_ids": [5],
        "skip_special_tokens": True,
        "no_stop_trim": False,
        "spaces_between_special_tokens": True,
        "sampling_seed": 11,
        "repetition_penalty": 1.1,
    }
    with speaker(call("echo", text="hello")).serve() as engine:
        await play(engine, sampling=sampling)
    sent = engine.requests[0][1]
    assert sent["return_logprob"] is True
    params = sent["sampling_params"]
    for key in ("temperature", "top_p", "top_k", "max_new_tokens", "sampling_seed", "repetition_penalty"):
        assert params[key] == sampling[key], key
    assert "STOP" in params["stop"]
    assert 5 in params["stop_token_ids"]
    # The trainer does not control decoding: calls are parsed in the text.
    assert params["skip_special_tokens"] is False
    assert params["no_stop_trim"] is True


async def test_missing_parameters_come_from_the_arguments(play: Play) -> None:
    with speaker(call("echo", text="hello")).serve() as engine:
        await play(
            engine, sampling={"stop": "END"}, rollout_temperature=0.5, rollout_max_response_len=99, rollout_top_k=3
        )
    params = engine.requests[0][1]["sampling_params"]
    assert (params["temperature"], params["max_new_tokens"], params["top_k"]) == (0.5, 99, 3)
    assert "END" in params["stop"]


async def test_a_zero_temperature_is_a_temperature(play: Play) -> None:
    with speaker(call("echo", text="hello")).serve() as engine:
        await play(engine, sampling={"temperature": 0.0}, rollout_temperature=1.0)
    assert engine.requests[0][1]["sampling_params"]["temperature"] == 0.0


async def test_an_evaluation_has_its_own_context_length(play: Play) -> None:
    with speaker(call("echo", text="no")).serve() as engine:
        sample = await play(engine, evaluation=True, rollout_max_context_len=500, eval_max_context_len=1500)
    assert 1000 < len(sample.tokens) <= 1500


async def test_the_training_files_limit_counts_where_it_is_smaller(play: Play) -> None:
    with speaker(call("echo", text="no")).serve() as engine:
        sample = await play(engine, configuration={"max_total_tokens": 400}, rollout_max_context_len=1500)
    assert len(sample.tokens) <= 400


@pytest.mark.parametrize("policy", ["consistent_hashing", "cache_aware"])
async def test_the_routing_key_is_the_samples_session(play: Play, policy: str) -> None:
    with speaker(call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        sample = await play(engine, router_policy=policy)
    keys = {headers["x-smg-routing-key"] for headers in engine.headers}
    assert len(keys) == 1
    assert (keys == {sample.session_id}) == (policy == "consistent_hashing")


async def test_the_engines_metadata_of_a_turn_is_kept(play: Play) -> None:
    with speaker(call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        sample = await play(engine)
    assert sample.weight_versions == ["7", "7"]
    assert sample.prefix_cache_info.total_prompt_tokens == sum(map(len, engine.prompts))
    assert 0 < sample.non_generation_time < 60


async def test_top_p_replay_stays_aligned(play: Play) -> None:
    def with_kept_ids(answer: dict[str, Any]) -> dict[str, Any]:
        pairs = answer["meta_info"]["output_token_logprobs"]
        answer["meta_info"]["top_p_token_ids"] = [[token, token + 1] for _, token, _ in pairs]
        return answer

    turns = (call("echo", text="no"), call("echo", text="hello"))
    with speaker(*turns, alter=with_kept_ids).serve() as engine:
        sample = await play(engine, sampling={**SAMPLING, "custom_params": {"return_top_p_token_ids": True}})
    assert engine.requests[0][1]["sampling_params"]["custom_params"] == {"return_top_p_token_ids": True}
    offsets = sample.rollout_top_p_token_offsets
    assert offsets is not None and sample.rollout_top_p_token_ids is not None and sample.loss_mask is not None
    response = sample.tokens[-sample.response_length :]
    for place, mask in enumerate(sample.loss_mask):
        span = sample.rollout_top_p_token_ids[offsets[place] : offsets[place + 1]]
        assert span == ([response[place], response[place] + 1] if mask else [])


async def test_replay_of_routed_experts_is_refused(play: Play) -> None:
    with speaker("").serve() as engine, pytest.raises(ConfigurationError, match="use-rollout-routing-replay"):
        await play(engine, use_rollout_routing_replay=True)


# --- aborting ------------------------------------------------------------------------------------


async def test_an_aborted_sample_is_empty_and_can_be_generated_again(play: Play, url: str, tmp_path: Path) -> None:
    with speaker(call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        engine.finish = "abort"
        sample = await play(engine)
        assert sample.status == Sample.Status.ABORTED
        assert (sample.tokens, sample.response, sample.response_length) == ([], "", 0)
        assert (sample.loss_mask, sample.rollout_log_probs, sample.reward) == (None, None, None)
        assert sample.weight_versions == []
        assert sample.metadata == row_of("echoenvironment", HELLO)
        await closed(url)
        engine.finish = None
        file = tmp_path / "train_config.yaml"
        args = make_arguments(file, engine, custom_generate_function_path=GENERATE)
        await generate_and_rm(args, sample, dict(SAMPLING))
    assert sample.status == Sample.Status.COMPLETED
    assert sample.reward == 1.0
    assert sample.weight_versions == ["7", "7"]


async def test_each_attempt_at_a_sample_is_a_rollout_of_its_own(play: Play, tmp_path: Path) -> None:
    """The routing key stays the sample's; otherwise the rollouts of two attempts would be mixed up in storage."""
    kept = tmp_path / "rollouts.jsonl"
    settings: dict[str, Any] = {"rollouts_file": str(kept)}
    with speaker(call("echo", text="hello")).serve() as engine:
        engine.finish = "abort"
        sample = await play(engine, configuration=settings, router_policy="consistent_hashing")
        engine.finish = None
        more = {"custom_generate_function_path": GENERATE, "router_policy": "consistent_hashing"}
        args = make_arguments(tmp_path / "train_config.yaml", engine, **more)
        await generate_and_rm(args, sample, dict(SAMPLING))
    await slime.close()
    aborted, played = map(json.loads, kept.read_text().splitlines())
    assert (aborted["stop_reason"], played["stop_reason"]) == ("aborted", "finished")
    assert aborted["rollout_id"] != played["rollout_id"] == sample.metadata["rollout_id"]
    assert {headers["x-smg-routing-key"] for headers in engine.headers} == {sample.session_id}


async def test_no_generation_is_begun_once_slime_is_stopping(play: Play) -> None:
    with speaker(call("wait", seconds=0.5)).serve() as engine:
        playing = asyncio.create_task(play(engine, "stepenvironment", partial_rollout=True))
        await until(lambda: engine.requests)
        slime_stand_in.GenerateState(None).aborted = True
        sample = await playing
    assert sample.status == Sample.Status.ABORTED
    assert len(engine.requests) == 1


# --- batches -------------------------------------------------------------------------------------


def batch_arguments(file: Path, engine: ScriptedEngine, **more: Any) -> SimpleNamespace:
    return make_arguments(
        file,
        engine,
        custom_generate_function_path=GENERATE,
        custom_rm_path="ors_clients.slime.reward_func",
        dynamic_sampling_filter_path="ors_clients.slime.keep_group",
        **{"rollout_batch_size": 2, "over_sampling_batch_size": 3, "n_samples_per_prompt": 4, **more},
    )


def say_target(prompt: str) -> str:
    """Return a policy for the echo environment that reads the target word."""
    return call("echo", text=prompt.rpartition("text='")[2].partition("'")[0])


@pytest.mark.parametrize("partial_rollout", [False, True])
@pytest.mark.parametrize("group_rm", [False, True])
async def test_a_batch_of_several_environments(url: str, tmp_path: Path, partial_rollout: bool, group_rm: bool) -> None:
    rules = {"echoenvironment": {}, "stepenvironment": {"reward_reduction": "mean", "nonterminal_reward": -1.0}}
    file = write_configuration(tmp_path, url, rules)
    words = [Sample(index=0, metadata=row_of("echoenvironment", {"id": "echo-1", "target": "world"}))]
    rewards = [Sample(index=1, metadata=row_of("stepenvironment", {"number": 3}))]

    def policy(prompt: str) -> str:
        return call("finish", reward=0.5) if "Task 3." in prompt else say_target(prompt)

    with ScriptedEngine(policy, tiny_tokenizer()).serve() as engine:
        args = batch_arguments(file, engine, partial_rollout=partial_rollout, group_rm=group_rm)
        data, aborted, dropped = await slime_stand_in.generate_rollout(args, words + rewards, dict(SAMPLING))
    assert not dropped
    assert len(data) == 2
    for group in data:
        expected = 1.0 if group[0].metadata["env_name"] == "echoenvironment" else 0.5
        assert [sample.reward for sample in group] == [expected] * 4
    for sample in (sample for group in aborted for sample in group):
        assert sample.status in (Sample.Status.COMPLETED, Sample.Status.ABORTED)
    batch = slime_stand_in.convert_samples(args, [sample for group in data for sample in group])
    assert all(any(mask) for mask in batch["loss_masks"])
    await closed(url)


async def test_groups_that_the_infrastructure_failed_are_drawn_again(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"echoenvironment": {}, "brokenenvironment": {}})
    prompts = [
        Sample(index=0, metadata=row_of("brokenenvironment", {"number": 0})),
        Sample(index=1, metadata=row_of("echoenvironment", HELLO)),
    ]
    with ScriptedEngine(say_target, tiny_tokenizer()).serve() as engine:
        args = batch_arguments(file, engine)
        data, _, dropped = await slime_stand_in.generate_rollout(args, prompts, dict(SAMPLING))
    assert all(sample.metadata["env_name"] == "echoenvironment" for group in data for sample in group)
    assert dropped["rollout/dynamic_filter/drop_infrastructure_failure"] >= 1


FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"


def step_group(size: int) -> list[Sample]:
    metadata = row_of("stepenvironment", {"number": 0})
    return [Sample(index=index, group_index=0, metadata=dict(metadata)) for index in range(size)]


async def test_fully_asynchronous_rollouts_generate_lost_samples_again(url: str, tmp_path: Path) -> None:
    # No filter is called there, and only ABORTED groups return: a FAILED rollout would be a 0 in the baseline.
    file = write_configuration(tmp_path, url, {"stepenvironment": {}})
    rewards = [call("finish", reward=reward) for reward in (0.9, 1.0, 0.5, 0.25)]
    policy = outcomes(call("lose"), *rewards[:2], call("lose"), *rewards[2:])
    with ScriptedEngine(policy, tiny_tokenizer()).serve() as engine:
        args = batch_arguments(file, engine, rollout_batch_size=1, rollout_function_path=FULLY_ASYNC)
        (group,) = await slime_stand_in.generate_rollout_fully_async(args, [step_group(4)], dict(SAMPLING))
    assert sorted(sample.reward for sample in group) == [0.25, 0.5, 0.9, 1.0]  # type: ignore[type-var]
    batch = slime_stand_in.convert_samples(args, group)
    assert sum(batch["rewards"]) == pytest.approx(0.0, abs=1e-6)
    assert not any(sample.remove_sample or sample.metadata["failure"] for sample in group)


@pytest.mark.parametrize("mistake", ["lost", "misconfigured"])
async def test_an_error_that_the_trainer_would_swallow_ends_a_fully_asynchronous_run(
    url: str, tmp_path: Path, mistake: str
) -> None:
    # The rollout logs an exception of `generate`, and goes on without end. A batch is processed outside of it.
    environments: dict[str, Any] = {"stepenvironment": {}} if mistake == "lost" else {"echoenvironment": {}}
    file = write_configuration(tmp_path, url, environments, max_failures_in_row=2)
    with ScriptedEngine(outcomes(call("lose")), tiny_tokenizer()).serve() as engine:
        args = batch_arguments(file, engine, rollout_batch_size=1, rollout_function_path=FULLY_ASYNC)
        buffer = [step_group(2)]
        (group,) = await slime_stand_in.generate_rollout_fully_async(args, buffer, dict(SAMPLING))
    error = InfrastructureFailure if mistake == "lost" else ConfigurationError
    with pytest.raises(error):
        slime.log_rollout_data(0, args, group, {}, 1.0)
    with pytest.raises(error):
        slime.keep_group(args, group)
    with pytest.raises(error):
        slime.log_eval_rollout_data(0, args, {}, None)
    with pytest.raises(AssertionError):  # where none of them is configured
        slime_stand_in.convert_samples(args, group)


async def test_an_evaluation_leaves_lost_rollouts_out(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}})
    policy = outcomes(call("lose"), call("finish", reward=0.5), call("lose"), call("finish", reward=1.0))
    prompts = [Sample(index=index, metadata=row_of("stepenvironment", {"number": index})) for index in range(5)]
    with ScriptedEngine(policy, tiny_tokenizer()).serve() as engine:
        path = "ors_clients.slime.log_eval_rollout_data"
        args = batch_arguments(file, engine, custom_eval_rollout_log_function_path=path)
        logged = await slime_stand_in.evaluate(args, prompts, dict(SAMPLING))
    assert logged == {"eval/e": pytest.approx(2.5 / 3), "eval/e/infrastructure_failures": 2.0}


async def test_lost_rollouts_of_an_evaluation_are_added_to_the_trainers_metrics(play: Play) -> None:
    with speaker(call("lose")).serve() as engine:
        sample = await play(engine, "stepenvironment", evaluation=True)
    metrics: dict[str, Any] = {}
    data: dict[str, Any] = {"e": {"rewards": [0.0], "samples": [sample]}}
    assert slime.log_eval_rollout_data(0, SimpleNamespace(), data, metrics) is False
    assert (data, metrics) == ({}, {"eval/e/infrastructure_failures": 1})


async def test_a_complete_batch_waits_for_no_tool(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"stepenvironment": {}})
    prompts = [Sample(index=index, metadata=row_of("stepenvironment", {"number": index})) for index in range(2)]

    def policy(prompt: str) -> str:
        return call("wait", seconds=60) if "Task 1." in prompt else call("finish", reward=1)

    with ScriptedEngine(policy, tiny_tokenizer()).serve() as engine:
        args = batch_arguments(file, engine, rollout_batch_size=1, over_sampling_batch_size=2)
        begun = time.monotonic()
        data, _, _ = await slime_stand_in.generate_rollout(args, prompts, dict(SAMPLING))
    assert len(data) == 1
    assert time.monotonic() - begun < 20
    await closed(url)


async def test_a_run_that_loses_every_rollout_ends(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    with speaker("").serve() as engine, caplog.at_level(logging.WARNING):
        await play(engine, "brokenenvironment", configuration={"max_failures_in_row": 2})
        with pytest.raises(InfrastructureFailure, match="Rollouts were lost 2 times in a row"):
            await play(engine, "brokenenvironment", configuration={"max_failures_in_row": 2})
    assert "no machine" in caplog.text


async def test_the_batchs_metrics_are_added_to_slimes(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"echoenvironment": {}, "brokenenvironment": {}})
    samples = [Sample(index=0, metadata=row_of("echoenvironment", HELLO)) for _ in range(2)]
    samples += [Sample(index=1, metadata=row_of("brokenenvironment", {"number": 0}))]
    with speaker("What?", call("echo", text="hello")).serve() as engine:
        args = make_arguments(file, engine)
        await asyncio.gather(*(slime.generate(args, sample, SAMPLING) for sample in samples))
    metrics: dict[str, Any] = {"rollout/other": 1}
    assert slime.log_rollout_data(3, args, [samples[:2], samples[2:]], metrics, 1.5) is False
    assert metrics["rollout/other"] == 1
    assert metrics["rollout/episodes/echoenvironment/reward"] == 1.0
    assert metrics["rollout/episodes/echoenvironment/num_turns"] == 2.0
    assert metrics["rollout/episodes/echoenvironment/stopped_by_finished"] == 1.0
    assert metrics["rollout/episodes/all/infrastructure_failures"] == 1
    assert metrics["rollout/episodes/all/reward"] == 1.0
    assert "rollout/episodes/brokenenvironment/reward" not in metrics
    assert slime.log_rollout_data(3, args, samples, None, 1.5) is False


async def test_many_rollouts_at_once(url: str, tmp_path: Path) -> None:
    file = write_configuration(tmp_path, url, {"echoenvironment": {}})
    words = ("hello", "world", "trl", "openreward")
    samples = [
        Sample(index=index, metadata=row_of("echoenvironment", {"id": f"echo-{index % 4}", "target": words[index % 4]}))
        for index in range(48)
    ]
    with ScriptedEngine(say_target, tiny_tokenizer()).serve() as engine:
        args = make_arguments(file, engine)
        await asyncio.gather(*(slime.generate(args, sample, SAMPLING) for sample in samples))
    assert [sample.reward for sample in samples] == [1.0] * 48
    await closed(url)


# --- negative cases (trainers.md, section 8) -----------------------------------------------------


async def test_a_turn_that_is_cut_off_is_answered(play: Play) -> None:
    with speaker(call("echo", text="hello" * 50), call("echo", text="hello")).serve() as engine:
        sample = await play(engine, sampling={**SAMPLING, "max_new_tokens": 30})
    assert sample.metadata["num_turns"] >= 2
    check_alignment(sample, engine)


async def test_a_prompt_that_reaches_the_limit_leaves_nothing_to_train_on(play: Play) -> None:
    with speaker("").serve() as engine:
        sample = await play(engine, rollout_max_context_len=100, rule={"nonterminal_reward": -1.0})
    assert not engine.requests
    assert sample.status == Sample.Status.TRUNCATED
    assert sample.metadata["stop_reason"] == "max_tokens"
    assert sample.reward == -1.0
    assert sample.remove_sample
    assert (sample.response_length, sample.loss_mask) == (1, [0])
    assert slime.keep_group(None, [sample]).reason == "prompt_too_long"
    replayed = SimpleNamespace(n_samples_per_prompt=1, rollout_top_p=0.9)
    assert slime_stand_in.convert_samples(replayed, [sample])["loss_masks"] == [[0]]


async def test_rows_of_another_configuration_are_refused(play: Play) -> None:
    with speaker("").serve() as engine:
        with pytest.raises(ConfigurationError, match="No environment 'other'"):
            await play(engine, metadata=row_of("other", HELLO))
        with pytest.raises(ConfigurationError, match="prepare_tasks"):
            await play(engine, metadata={"env_name": "echoenvironment"})
        with pytest.raises(ConfigurationError, match="neither a mapping nor JSON"):
            await play(engine, metadata="{no json")


async def test_a_missing_tokenizer_says_how_to_name_one(play: Play) -> None:
    with speaker("").serve() as engine:
        with pytest.raises(ConfigurationError, match="--hf-checkpoint"):
            await play(engine, tokenizer=None, hf_checkpoint=None)
        with pytest.raises(ConfigurationError, match="No tokenizer in /nowhere"):
            await play(engine, tokenizer=None, hf_checkpoint="/nowhere")


# --- secrets, uploads ----------------------------------------------------------------------------


async def test_rollouts_are_uploaded_in_the_background_to_the_environments_server(
    play: Play, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENREWARD_RUN_NAME", "run-of-this-test")
    with speaker(call("echo", text="no"), call("echo", text="hello")).serve() as engine:
        sample = await play(engine, configuration={"upload_rollouts": True})
    await slime.close()
    async with httpx.AsyncClient(base_url=url) as client:
        runs = (await client.get("/v1/runs", params={"search": "run-of-this-test"})).json()["runs"]
        listing = await client.get(f"/v1/runs/{runs[0]['id']}/rollouts")
    assert [(run["name"], run["num_rollouts"]) for run in runs] == [("run-of-this-test", 1)]
    (rollout,) = listing.json()["rollouts"]
    assert rollout["rolloutName"].startswith("echoenvironment-")
    assert sample.metadata["rollout_id"] in rollout["rolloutName"]
    assert rollout["max_reward"] == 1.0


async def test_an_upload_that_fails_neither_fails_nor_slows_a_rollout(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with speaker(call("echo", text="hello")).serve() as engine:
        monkeypatch.setenv("OPENREWARD_API_URL", f"{engine.url}/no/such/place")
        sample = await play(engine, configuration={"upload_rollouts": True})
        await slime.close()
    assert sample.reward == 1.0
    assert "not kept" in caplog.text
