"""Samplers: the engines' wire formats, and typed failures that never shift a token."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from types import ModuleType
from typing import Any

import pytest
from ors_clients.errors import ConfigurationError, SamplerFailed
from ors_clients.samplers import (
    CallbackSampler,
    CompletionsSampler,
    Generation,
    SamplingParameters,
    ScriptedSampler,
    SGLangSampler,
    VLLMSampler,
)
from ors_clients.samplers.scripted import scripted_logprob

from tests.clients.scripted_engine import ScriptedEngine
from tests.clients.tiny_tokenizer import tiny_tokenizer

PARAMETERS = SamplingParameters(
    max_tokens=50, temperature=0.7, top_p=0.9, top_k=20, stop=("STOP",), stop_token_ids=(7,)
)


def make_engine(text: str = "fine", **settings: Any) -> ScriptedEngine:
    return ScriptedEngine(lambda _: text, tiny_tokenizer("qwen3"), **settings)


def make_sampler(kind: str, engine: ScriptedEngine) -> Any:
    return SGLangSampler(engine.url) if kind == "sglang" else CompletionsSampler(engine.url, "tiny", api_key="key")


async def once(kind: str, engine: ScriptedEngine, **options: Any) -> Generation:
    with engine.serve():
        sampler = make_sampler(kind, engine)
        try:
            return await sampler.generate([3, 1, 4], PARAMETERS, rollout_id="r1", **options)
        finally:
            await sampler.close()


@pytest.mark.parametrize("kind", ["sglang", "completions"])
async def test_ids_and_logprobs_come_from_the_engine_in_step(kind: str) -> None:
    engine = make_engine()
    generation = await once(kind, engine)
    assert generation.ids == tiny_tokenizer("qwen3").encode("fine<|im_end|>", add_special_tokens=False)
    assert generation.logprobs == [scripted_logprob(3 + i) for i in range(len(generation.ids))]
    assert (generation.text, generation.finish) == ("fine<|im_end|>", "stop")
    cut = await once(kind, make_engine("word " * 100))
    assert (len(cut.ids), cut.finish) == (50, "length")


async def test_sglang_is_asked_in_ids_for_logprobs_and_untrimmed_stops() -> None:
    engine = make_engine()
    generation = await once("sglang", engine, images=["data:image/png;base64,AA"])
    ((path, body),) = engine.requests
    assert path == "/generate"
    assert body == {
        "input_ids": [3, 1, 4],
        "sampling_params": {
            "max_new_tokens": 50,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "stop": ["STOP"],
            "stop_token_ids": [7],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "no_stop_trim": True,
        },
        "return_logprob": True,
        "image_data": ["data:image/png;base64,AA"],
    }
    assert engine.headers[0]["x-smg-routing-key"] == "r1"
    assert generation.metadata["weight_version"] == "7"
    assert "output_token_logprobs" not in generation.metadata


async def test_vllm_is_asked_in_ids_for_ids() -> None:
    engine = make_engine()
    await once("completions", engine)
    ((path, body),) = engine.requests
    assert path == "/v1/completions"
    assert body == {
        "model": "tiny",
        "prompt": [3, 1, 4],
        "max_tokens": 50,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "stop": ["STOP"],
        "stop_token_ids": [7],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
    }
    assert engine.headers[0]["authorization"] == "Bearer key"


async def test_vllm_s_text_route_has_no_place_for_images() -> None:
    with pytest.raises(ConfigurationError, match="takes no images"):
        await once("completions", make_engine(), images=["data:"])


async def test_an_abort_of_the_engine_is_reported_as_one() -> None:
    assert (await once("sglang", make_engine(finish="abort"))).finish == "abort"


def changed(answer: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the response with another value at a dotted path; without the value for ``...``."""
    inner: Any = answer
    *outer, last = (int(key) if key.isdigit() else key for key in path.split("."))
    for key in outer:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return answer


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"),
    [
        ("sglang", "meta_info", ..., "not a generation: KeyError"),
        ("sglang", "meta_info.finish_reason", None, "not a generation: TypeError"),
        ("sglang", "meta_info.output_token_logprobs", ..., "none with its log-probability"),
        ("sglang", "meta_info.output_token_logprobs", [[None, 5]], "not a generation"),
        ("sglang", "meta_info.output_token_logprobs", [[-1.0]], "not a generation"),
        ("completions", "choices", ..., "not a completion"),
        ("completions", "choices", [], "not a completion"),
        ("completions", "choices.0.token_ids", ..., r"no choices\[0\].token_ids. Serve"),
        ("completions", "choices.0.logprobs", None, "token_logprobs"),
        ("completions", "choices.0.token_ids", [1], "1 token ids and"),
        ("completions", "choices.0.prompt_token_ids", [0, 3, 1, 4], "continued 4 other ids"),
        ("completions", "choices.0.prompt_token_ids", [3, 1, 5], "continued 3 other ids"),
        ("completions", "choices.0.logprobs.token_logprobs.0", None, "not a finite number"),
    ],
)
async def test_a_response_without_a_generation_is_a_failure(kind: str, path: str, value: Any, problem: str) -> None:
    def alter(answer: dict[str, Any]) -> dict[str, Any]:
        return changed(answer, path, value)

    with pytest.raises(SamplerFailed, match=problem):
        await once(kind, make_engine(alter=alter))


# --- connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sglang", "completions"])
@pytest.mark.parametrize("failures", [["drop"], [503, 500], [429, "drop"]])
async def test_a_request_is_repeated_while_the_engine_is_away(kind: str, failures: list[int | str]) -> None:
    engine = make_engine(failures=failures)
    assert (await once(kind, engine)).text == "fine<|im_end|>"
    assert engine.failures == []


async def test_a_refusal_is_not_repeated() -> None:
    engine = make_engine(failures=[400, 400])
    with pytest.raises(SamplerFailed, match="refused the request: status 400: not now"):
        await once("sglang", engine)
    assert engine.failures == [400]


async def test_an_engine_that_stays_away_is_a_failure() -> None:
    engine = make_engine()
    with engine.serve():
        pass
    sampler = SGLangSampler(engine.url)
    sampler.requests.first_pause = 0.01
    with pytest.raises(SamplerFailed, match="failed 6 times, at last with: "):
        await sampler.generate([1], PARAMETERS, rollout_id="r")
    await sampler.close()


async def test_connections_that_the_engine_closed_meanwhile_do_no_harm() -> None:
    engine = make_engine(idle_seconds=1)
    with engine.serve():
        sampler = SGLangSampler(engine.url)
        for pause in (1.1, 1.0, 0.0):
            await asyncio.gather(*(sampler.generate([1], PARAMETERS, rollout_id="r") for _ in range(8)))
            await asyncio.sleep(pause)
        await sampler.close()
    assert len(engine.requests) == 24


async def test_a_cancelled_generation_leaves_the_engine() -> None:
    engine = make_engine(delay=5.0)
    with engine.serve():
        sampler = SGLangSampler(engine.url)
        task = asyncio.create_task(sampler.generate([1], PARAMETERS, rollout_id="r"))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if engine.cancelled:
                break
            await asyncio.sleep(0.02)
        await sampler.close()
    assert engine.cancelled == 1


# --- in process ----------------------------------------------------------------------------------


class Engine:
    """The used part of vLLM's AsyncLLM; ``tests/long`` runs the real class."""

    def __init__(self, *, logprobs: Any = "own", failure: Exception | None = None) -> None:
        self.logprobs = logprobs
        self.failure = failure
        self.requests: list[tuple[dict[str, Any], dict[str, Any], str]] = []

    async def generate(self, prompt: dict[str, Any], parameters: Any, request_id: str) -> AsyncGenerator[Any]:
        if self.failure is not None:
            raise self.failure
        self.requests.append((prompt, parameters.__dict__, request_id))
        ids = (11, 12)
        own = [{token: Namespace(logprob=-token / 100)} for token in ids]
        completion = Namespace(
            token_ids=ids, logprobs=own if self.logprobs == "own" else self.logprobs, text="", finish_reason="length"
        )
        yield Namespace(outputs=[completion])


class Namespace:
    """A namespace of attributes."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("vllm.sampling_params")
    module.SamplingParams = Namespace
    module.RequestOutputKind = Namespace(FINAL_ONLY="final only")
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module)


@pytest.mark.usefixtures("vllm")
async def test_vllm_in_process_is_asked_for_final_outputs_of_ids() -> None:
    engine = Engine()
    sampler = VLLMSampler(engine)
    parameters = SamplingParameters(max_tokens=9, stop_token_ids=(7,), extra={"seed": 3})
    generation = await sampler.generate([1, 2], parameters, rollout_id="r1")
    await sampler.generate([1, 2, 11, 12], PARAMETERS, rollout_id="r1")
    assert generation == Generation([11, 12], [-0.11, -0.12], "", "length")
    (prompt, settings, first), (_, with_stop, second) = engine.requests
    assert prompt == {"prompt_token_ids": [1, 2]}
    assert first != second
    assert (settings["logprobs"], settings["output_kind"], settings["detokenize"]) == (0, "final only", False)
    assert (settings["max_tokens"], settings["stop_token_ids"], settings["seed"]) == (9, [7], 3)
    assert (with_stop["detokenize"], with_stop["include_stop_str_in_output"]) == (True, True)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"failure": ValueError("the prompt is longer than the model's length")}, "ValueError: the prompt is longer"),
        ({"logprobs": None}, "no log-probabilities"),
        ({"logprobs": [{11: Namespace(logprob=-1.0)}]}, "do not belong"),
        ({"logprobs": [{12: Namespace(logprob=-1.0)}, {}]}, "do not belong"),
    ],
)
async def test_vllm_in_process_fails_by_type(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SamplerFailed, match=problem):
        await VLLMSampler(Engine(**settings)).generate([1], PARAMETERS, rollout_id="r")


def test_vllm_in_process_needs_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", None)
    with pytest.raises(ConfigurationError, match="pip install vllm"):
        VLLMSampler(Engine())


async def test_a_trainer_s_function_may_be_the_engine() -> None:
    async def generate(ids: Any, parameters: SamplingParameters, *, rollout_id: str, images: Any) -> Generation:
        if rollout_id == "bad":
            return Generation([1, 2], [-1.0], "", "stop")
        return Generation([len(ids), parameters.max_tokens], [-1.0, -2.0], rollout_id, "stop")

    sampler = CallbackSampler(generate)
    assert (await sampler.generate([5, 5], PARAMETERS, rollout_id="r")).ids == [2, 50]
    with pytest.raises(SamplerFailed, match="2 token ids and 1 log-prob"):
        await sampler.generate([5], PARAMETERS, rollout_id="bad")


async def test_a_script_is_played_for_each_rollout() -> None:
    tokenizer = tiny_tokenizer("qwen3")
    sampler = ScriptedSampler(["one", "two"], tokenizer)
    spoken = [await sampler.generate([1], PARAMETERS, rollout_id=r) for r in ("a", "b", "a")]
    assert [tokenizer.decode(generation.ids) for generation in spoken] == [
        "one<|im_end|>",
        "one<|im_end|>",
        "two<|im_end|>",
    ]
    with pytest.raises(SamplerFailed, match="has 2 turns"):
        await sampler.generate([1], PARAMETERS, rollout_id="a")


@pytest.mark.parametrize("logprobs", [[float("nan")], [float("-inf")], [None], ["-1"], [-1e308, -1e308]])
def test_a_generation_without_finite_logprobs_is_a_failure(logprobs: list[Any]) -> None:
    with pytest.raises(SamplerFailed):
        Generation([1] * len(logprobs), logprobs, "", "stop")


@pytest.mark.parametrize("url", ["localhost:30000", "ftp://host", "http://"])
def test_an_invalid_address_is_a_mistake_of_configuration(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not an address of an engine"):
        SGLangSampler(url)


def test_a_sampler_serves_one_event_loop_after_another() -> None:
    engine = make_engine()
    with engine.serve():
        sampler = SGLangSampler(engine.url)

        async def generate() -> Generation:
            try:
                return await sampler.generate([1], PARAMETERS, rollout_id="r")
            finally:
                await sampler.close()

        assert [asyncio.run(generate()).finish for _ in range(2)] == ["stop", "stop"]
