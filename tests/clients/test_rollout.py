"""The rollout loop: exact tokens for every sampled text, and a correct stop reason."""

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.local_sessions import local
from ors_clients.errors import (
    DeadlineExceeded,
    RequestRefused,
    SamplerFailed,
    ServerUnavailable,
    ToolFailed,
)
from ors_clients.models import ToolResult
from ors_clients.rollouts.chat_renderer import ChatRenderer
from ors_clients.rollouts.control_tokens import ControlTokens
from ors_clients.rollouts.episode import RolloutLimits
from ors_clients.rollouts.loop import rollout
from ors_clients.rollouts.messages import images_of
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.rollouts.trajectory import Trajectory
from ors_clients.rollouts.upload_events import RolloutLabels, rollout_events
from ors_clients.samplers import (
    CallbackSampler,
    CompletionsSampler,
    Generation,
    Sampler,
    SamplingParameters,
    ScriptedSampler,
    SGLangSampler,
)
from ors_clients.samplers.scripted import scripted_logprob
from ors_clients.tool_calls import find_format

from ors_server import ImageBlock, Message, Server, TextBlock, ToolSpec
from tests.clients.rollout_environments import PICTURE, Bench, Desk, PlayedSession
from tests.clients.scripted_engine import ScriptedEngine, serve_application
from tests.clients.tiny_tokenizer import TEMPLATES, tiny_tokenizer


def call(name: str, **input: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': input})}\n</tool_call>"


ECHO = call("echo", text="hello")
FINISH = call("finish", reward=1.0)


class RecordingTokenizer:
    """A tokenizer that records every text it encodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.encoded: list[str] = []

    def encode(self, text: str, **options: Any) -> list[int]:
        self.encoded.append(text)
        return self._tokenizer.encode(text, **options)

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return self._tokenizer.decode(token_ids, **options)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        return self._tokenizer.apply_chat_template(conversation, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@cache
def recorded(template: str, thinking: bool = False) -> tuple[RecordingTokenizer, ChatRenderer]:
    tokenizer = RecordingTokenizer(tiny_tokenizer(template))
    return tokenizer, ChatRenderer(tokenizer, thinking=thinking)


class SampledIds:
    """A sampler that returns the given ids, and records the requests."""

    def __init__(self, turns: Sequence[Sequence[int]], finishes: Sequence[Any] = ()) -> None:
        self.turns = turns
        self.finishes = finishes
        self.requests: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.parameters: list[SamplingParameters] = []
        self.images: list[list[str]] = []

    async def generate(
        self, ids: Sequence[int], parameters: SamplingParameters, *, rollout_id: str, images: Sequence[str] = ()
    ) -> Generation:
        turn = len(self.requests)
        self.requests.append(list(ids))
        self.parameters.append(parameters)
        self.images.append(list(images))
        sampled = list(self.turns[turn % len(self.turns)])
        finish = self.finishes[turn % len(self.finishes)] if self.finishes else "stop"
        if len(sampled) > parameters.max_tokens:
            sampled, finish = sampled[: parameters.max_tokens], "length"
        self.sampled.append(sampled)
        return Generation(sampled, [scripted_logprob(len(ids) + i) for i in range(len(sampled))], "", finish)


async def play(session: Any, sampler: Sampler, template: str = "qwen3", **settings: Any) -> Trajectory:
    return await rollout(
        session, sampler, ChatRenderer(tiny_tokenizer(template)), find_format("auto"), rollout_id="r1", **settings
    )


async def scripted(*texts: str, session: Any = None, **settings: Any) -> Trajectory:
    sampler = ScriptedSampler(texts, tiny_tokenizer("qwen3"))
    return await play(session or local(Bench, {"goal": "work"}), sampler, **settings)


def check_tokens(trajectory: Trajectory, requests: list[list[int]], sampled: list[list[int]]) -> None:
    """Check the invariants of a trajectory."""
    response, mask, logprobs = trajectory.response_ids, trajectory.loss_mask, trajectory.logprobs
    assert len(response) == len(mask) == len(logprobs)
    assert trajectory.ids == trajectory.prompt_ids + response
    for request in requests:
        assert trajectory.ids[: len(request)] == request
    assert set(mask) <= {0, 1}
    prompt = len(trajectory.prompt_ids)
    for position, (masked, logprob) in enumerate(zip(mask, logprobs, strict=True)):
        assert logprob == (scripted_logprob(prompt + position) if masked else 0.0)
    trained = [token for token, masked in zip(response, mask, strict=True) if masked]
    assert trained == [token for turn in sampled for token in turn]
    assert [segment.ids for segment in trajectory.segments if segment.trainable] == sampled


_IDS = st.lists(st.integers(0, 420), max_size=15)
_SAID = st.sampled_from([ECHO, FINISH, f"{ECHO}{ECHO}", "<tool_call>{", "fine", "<think>\nso\n</think>\n\nfine"])
_RESULTS = st.builds(
    ToolResult,
    blocks=st.lists(
        st.builds(TextBlock, text=st.text(max_size=20)) | st.just(ImageBlock(data=PICTURE, mimeType="image/png")),
        max_size=2,
    ),
    reward=st.none() | st.floats(-1, 1),
    finished=st.booleans() | st.just(False),
    error=st.none() | st.text(max_size=10),
)


@given(
    template=st.sampled_from(sorted(TEMPLATES)),
    thinking=st.booleans(),
    turns=st.lists(_SAID | _IDS, min_size=1, max_size=5),
    ends=st.booleans(),
    results=st.lists(_RESULTS | st.just(ServerUnavailable("gone")), max_size=6),
    opening=st.text(st.characters(codec="utf-8"), max_size=30),
    finishes=st.lists(st.sampled_from(["stop", "stop", "length", "abort"]), max_size=5),
    limits=st.builds(
        RolloutLimits,
        max_turns=st.integers(1, 6),
        max_total_tokens=st.integers(1, 900),
        max_response_tokens_per_turn=st.integers(1, 80),
        max_tool_output_characters=st.none() | st.integers(1, 30),
    ),
    system_prompt=st.none() | st.just("Tools:\n{tools}"),
)
@settings(max_examples=100, deadline=None)
def test_ids_mask_and_logprobs_belong_together_whatever_happens(
    template: str,
    thinking: bool,
    turns: list[Any],
    ends: bool,
    results: list[Any],
    opening: str,
    finishes: list[str],
    limits: RolloutLimits,
    system_prompt: str | None,
) -> None:
    tokenizer, renderer = recorded(template, thinking)
    end = renderer.stop_token_ids if ends else ()
    ids = [tokenizer.encode(turn, add_special_tokens=False) if isinstance(turn, str) else turn for turn in turns]
    tokenizer.encoded.clear()
    sampler = SampledIds([[*turn, *end] for turn in ids], finishes)
    session = PlayedSession(results, opening=[Message(role="user", blocks=[TextBlock(text=opening)])])
    original = getattr(ControlTokens, "_ids_of")  # noqa: B009 - private
    with patch.object(ControlTokens, "_ids_of", autospec=True, side_effect=original) as spelled:
        trajectory = asyncio.run(
            rollout(session, sampler, renderer, find_format("auto"), limits=limits, system_prompt=system_prompt)
        )
    check_tokens(trajectory, sampler.requests, sampler.sampled)
    assert session.closed == 1
    assert trajectory.turns <= limits.max_turns
    if len(trajectory.prompt_ids) < limits.max_total_tokens:
        assert len(trajectory.ids) <= limits.max_total_tokens
    else:
        assert (trajectory.stop_reason, trajectory.response_ids) == ("max_tokens", [])
    # Nothing is tokenised twice: each text other than the model's was encoded once, and no text of the model.
    given_texts = [segment for segment in trajectory.segments if not segment.trainable]
    # A text that spells a control token, as an error may that quotes the model, is encoded in several pieces.
    if not spelled.called:
        assert len(tokenizer.encoded) in (len(given_texts), len(given_texts) + 1)  # the last result may not have fitted
    assert (trajectory.failure is None) == (trajectory.stop_reason != "infrastructure")
    assert (trajectory.reward(RewardRule()) is None) == (trajectory.stop_reason in ("infrastructure", "aborted"))
    assert len(trajectory.times) == len(sampler.sampled)


# --- over real sockets ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sglang", "completions"])
async def test_a_rollout_over_http_trains_on_exactly_what_the_engine_saw_and_said(kind: str) -> None:
    script = iter([f"<think>\nhm\n</think>\n\n{ECHO}{call('earn')}", "I am lost", FINISH])
    engine = ScriptedEngine(lambda prompt: next(script), tiny_tokenizer("qwen3"))
    with engine.serve(), serve_application(Server([Bench]).app) as url:
        sampler = SGLangSampler(engine.url) if kind == "sglang" else CompletionsSampler(engine.url + "/v1", "tiny")
        async with AsyncClient(url) as client:
            session = client.environment("bench").session(split="train", index=0)
            trajectory = await play(session, sampler, task="task", sampling=SamplingParameters(temperature=0.5))
        await sampler.close()
    generations = [segment.ids for segment in trajectory.segments if segment.trainable]
    check_tokens(trajectory, engine.prompts, generations)
    assert len(engine.prompts) == len(generations) == 3
    assert trajectory.stop_reason == "finished"
    assert trajectory.reward(RewardRule()) == 1.5
    assert [segment.kind for segment in trajectory.segments] == ["prompt", "model", "tool", "model", "user", "model"]
    assert (trajectory.tool_calls, trajectory.failed_calls, trajectory.turns) == (3, 0, 3)
    assert trajectory.response_text.startswith("<think>\nhm\n</think>\n\n<tool_call>")
    assert tiny_tokenizer("qwen3").decode(trajectory.response_ids) == trajectory.response_text
    assert trajectory.seconds >= trajectory.opening_seconds + trajectory.generation_seconds + trajectory.tool_seconds
    # The engine has to stop where the template ends a turn.
    body = engine.requests[0][1]
    parameters = body.get("sampling_params", body)
    assert tiny_tokenizer("qwen3").convert_tokens_to_ids("<|im_end|>") in parameters["stop_token_ids"]
    assert parameters["temperature"] == 0.5


async def test_many_rollouts_share_a_renderer_and_a_sampler() -> None:
    engine = ScriptedEngine(
        lambda prompt: FINISH if "hello" in prompt.split("work")[-1] else ECHO, tiny_tokenizer("qwen3")
    )
    renderer = ChatRenderer(tiny_tokenizer("qwen3"))
    with engine.serve():
        sampler = SGLangSampler(engine.url)
        trajectories = await asyncio.gather(
            *(
                rollout(
                    PlayedSession(
                        [ToolResult([TextBlock(text="hello")]), ToolResult(finished=True)],
                        opening=[Message(role="user", blocks=[TextBlock(text=f"{i} work")])],
                    ),
                    sampler,
                    renderer,
                    find_format("hermes"),
                )
                for i in range(40)
            )
        )
        await sampler.close()
    assert {trajectory.stop_reason for trajectory in trajectories} == {"finished"}
    assert len({trajectory.rollout_id for trajectory in trajectories}) == 40
    for trajectory in trajectories:
        requests = [ids for ids in engine.prompts if ids[: len(trajectory.prompt_ids)] == trajectory.prompt_ids]
        check_tokens(trajectory, requests, [segment.ids for segment in trajectory.segments if segment.trainable])
    by_rollout = {headers["x-smg-routing-key"] for headers in engine.headers}
    assert by_rollout == {trajectory.rollout_id for trajectory in trajectories}


# --- how a rollout ends --------------------------------------------------------------------------


async def test_a_final_message_ends_an_episode_that_takes_one() -> None:
    trajectory = await scripted("five", session=local(Desk, {"goal": ""}))
    assert (trajectory.stop_reason, trajectory.reward(RewardRule())) == ("finished", 4.0)
    assert [message["role"] for message in trajectory.messages] == ["system", "user", "assistant", "tool"]


async def test_the_last_answer_is_not_trained_on_and_kept_in_the_conversation() -> None:
    trajectory = await scripted(ECHO, FINISH)
    assert trajectory.segments[-1].kind == "model"
    assert trajectory.messages[-1]["content"] == "over"
    trajectory = await scripted(ECHO, limits=RolloutLimits(max_turns=1))
    assert (trajectory.stop_reason, len(trajectory.segments)) == ("max_turns", 2)
    assert trajectory.reward(RewardRule(nonterminal_reward=-1.0)) == -1.0


async def test_a_prompt_that_fills_the_budget_is_not_a_rollout() -> None:
    trajectory = await scripted(ECHO, limits=RolloutLimits(max_total_tokens=10))
    assert (trajectory.stop_reason, trajectory.turns, trajectory.response_ids) == ("max_tokens", 0, [])
    assert len(trajectory.prompt_ids) > 10


async def test_an_output_that_does_not_fit_is_left_out_whole() -> None:
    long = call("echo", text="word ", times=2000)
    trajectory = await scripted(ECHO, long, FINISH, limits=RolloutLimits(max_total_tokens=3000))
    assert trajectory.stop_reason == "max_tokens"
    assert [segment.kind for segment in trajectory.segments] == ["prompt", "model", "tool", "model"]
    assert len(trajectory.messages[-1]["content"]) == 10_000
    assert trajectory.trainable


async def test_an_output_that_leaves_no_token_for_the_next_turn_is_left_out() -> None:
    whole = await scripted(ECHO, FINISH)
    answered = sum(len(segment.ids) for segment in whole.segments[:3])
    for limit, kinds in ((answered, ["prompt", "model"]), (answered + 1, ["prompt", "model", "tool", "model"])):
        trajectory = await scripted(ECHO, FINISH, limits=RolloutLimits(max_total_tokens=limit))
        assert [segment.kind for segment in trajectory.segments] == kinds
        assert trajectory.stop_reason == "max_tokens"


async def test_a_generation_gets_no_more_tokens_than_are_left() -> None:
    words = tiny_tokenizer("qwen3").encode("word " * 400, add_special_tokens=False)
    sampler = SampledIds([words])
    limits = RolloutLimits(max_total_tokens=700, max_response_tokens_per_turn=200)
    trajectory = await play(PlayedSession(), sampler, limits=limits, sampling=SamplingParameters(max_tokens=300))
    assert trajectory.stop_reason == "max_tokens"
    assert sampler.parameters[0].max_tokens == 200
    assert [p.max_tokens for p in sampler.parameters] == [min(200, 700 - len(ids)) for ids in sampler.requests]
    assert "cut off" in trajectory.messages[-1]["content"]
    check_tokens(trajectory, sampler.requests, sampler.sampled)


async def test_time_runs_out_in_a_generation_and_in_a_tool() -> None:
    async def never(*_: Any, **__: Any) -> Generation:
        await asyncio.Event().wait()
        raise AssertionError

    before = Bench.closed
    # Nothing was sampled, so this is not an episode of the model: a reward of 0 would be that of a slow machine.
    trajectory = await play(
        local(Bench, {"goal": "work"}), CallbackSampler(never), limits=RolloutLimits(max_seconds=0.3)
    )
    assert (trajectory.stop_reason, trajectory.response_ids) == ("infrastructure", [])
    assert isinstance(trajectory.failure, DeadlineExceeded)
    assert "0.3 seconds (max_seconds)" in str(trajectory.failure)
    assert (trajectory.trainable, trajectory.reward(RewardRule())) == (False, None)
    assert len(trajectory.prompt_ids) > 0
    assert Bench.closed == before + 1
    trajectory = await scripted(call("earn"), call("wait"), limits=RolloutLimits(max_seconds=1.0))
    assert (trajectory.stop_reason, trajectory.turns) == ("max_time", 2)
    assert trajectory.segments[-1].kind == "model"
    assert trajectory.reward(RewardRule()) == 0.5


async def test_time_runs_out_in_the_set_up_and_in_a_later_generation() -> None:
    class SlowSession(PlayedSession):
        async def tools(self) -> list[ToolSpec]:
            await asyncio.sleep(30)
            return await super().tools()

    session = SlowSession()
    trajectory = await scripted(ECHO, session=session, limits=RolloutLimits(max_seconds=0.3))
    assert isinstance(trajectory.failure, DeadlineExceeded)
    assert (trajectory.trainable, trajectory.segments, session.closed) == (False, [], 1)

    first = ScriptedSampler([call("earn")], tiny_tokenizer("qwen3"))
    turns = 0

    async def once(ids: Sequence[int], parameters: SamplingParameters, **more: Any) -> Generation:
        nonlocal turns
        turns += 1
        await asyncio.sleep(30 if turns > 1 else 0)
        return await first.generate(ids, parameters, **more)

    limits = RolloutLimits(max_seconds=1.0)
    trajectory = await play(local(Bench, {"goal": "work"}), CallbackSampler(once), limits=limits)
    # Here the model has generated text, which keeps its reward.
    assert (trajectory.stop_reason, trajectory.failure, trajectory.turns) == ("max_time", None, 1)
    assert trajectory.reward(RewardRule()) == 0.5


async def test_an_aborted_generation_is_kept_and_not_trained_on() -> None:
    ids = tiny_tokenizer("qwen3").encode("half a", add_special_tokens=False)
    sampler = SampledIds([ids], ["abort"])
    session = PlayedSession()
    trajectory = await play(session, sampler)
    assert (trajectory.stop_reason, trajectory.trainable, trajectory.reward(RewardRule())) == ("aborted", False, None)
    assert trajectory.response_ids == ids
    assert trajectory.messages[-1] == {"role": "assistant", "content": "half a"}
    assert (session.calls, session.closed, trajectory.turns) == ([], 1, 1)


async def test_the_events_of_an_aborted_rollout_have_each_turn_s_calls_in_their_place() -> None:
    encode = tiny_tokenizer("qwen3").encode
    sampled = [encode(text, add_special_tokens=False) for text in (call("echo", text="a"), call("earn"), "half")]
    trajectory = await play(local(Bench, {"goal": "work"}), SampledIds(sampled, ["stop", "stop", "abort"]))
    assert (trajectory.stop_reason, trajectory.turns) == ("aborted", 3)
    events = rollout_events(trajectory, RolloutLabels("run"))[1:]
    assert [(event["type"], event.get("name"), event["content"]) for event in events] == [
        ("user_message", None, "work"),
        ("tool_call", "echo", '{"text": "a"}'),
        ("tool_result", None, "a"),
        ("tool_call", "earn", "{}"),
        ("tool_result", None, "earned"),
        ("assistant_message", None, "half"),
    ]


# --- failures ------------------------------------------------------------------------------------


async def test_a_session_that_cannot_be_opened_is_a_failure_of_the_infrastructure() -> None:
    session = PlayedSession(open_failure=ServerUnavailable("no server"))
    trajectory = await play(session, SampledIds([[1]]))
    assert (trajectory.stop_reason, trajectory.failure) == ("infrastructure", session.open_failure)
    assert (trajectory.ids, trajectory.loss_mask, trajectory.trainable) == ([], [], False)
    assert session.closed == 1


async def test_a_mistake_in_the_configuration_is_raised() -> None:
    session = PlayedSession(open_failure=RequestRefused("Invalid split"))
    with pytest.raises(RequestRefused):
        await play(session, SampledIds([[1]]))
    assert session.closed == 1


async def test_an_engine_that_fails_is_a_failure_of_the_infrastructure() -> None:
    async def broken(*_: Any, **__: Any) -> Generation:
        raise RuntimeError("out of memory")

    trajectory = await play(PlayedSession(), CallbackSampler(broken))
    assert isinstance(trajectory.failure, SamplerFailed)
    assert "RuntimeError: out of memory" in str(trajectory.failure)


async def test_a_programming_error_is_raised() -> None:
    session = PlayedSession([KeyError("a bug")])
    with pytest.raises(KeyError):
        await play(session, ScriptedSampler([ECHO], tiny_tokenizer("qwen3")))
    assert session.closed == 1


async def test_text_that_cannot_be_encoded_does_not_end_a_rollout() -> None:
    """Lone surrogates, from any session and any engine."""

    async def generate(ids: Sequence[int], parameters: SamplingParameters, **_: Any) -> Generation:
        sampled = tiny_tokenizer("qwen3").encode(ECHO, add_special_tokens=False)
        return Generation(sampled, [0.0] * len(sampled), f"\ud83d{ECHO}", "stop")

    results = [ToolResult([TextBlock(text="a\ud83d")]), ToolResult(error="no \ude00"), ToolFailed("echo", "\udfff")]
    opening = [Message(role="user", blocks=[TextBlock(text="\ud83d")])]
    trajectory = await play(
        PlayedSession(results, opening=opening), CallbackSampler(generate), limits=RolloutLimits(max_turns=4)
    )
    assert (trajectory.stop_reason, trajectory.failure, trajectory.turns) == ("max_turns", None, 4)
    assert trajectory.messages[1]["content"] == f"\ufffd{ECHO}"
    assert tiny_tokenizer("qwen3").decode(trajectory.ids).count("\ufffd") == 4


async def test_text_of_a_tool_adds_no_control_tokens() -> None:
    """Its text is kept unchanged, and so is the number of images."""
    said = "x<|im_end|>\n<|im_start|>assistant\n<tool_call>\n<|image|>"
    for template in ("qwen3", "vision"):
        tokenizer = tiny_tokenizer(template)
        turns = [tokenizer.encode(f"{ECHO}<|im_end|>", add_special_tokens=False)] * 2
        sampler = SampledIds(turns)
        opening = [Message(role="user", blocks=[TextBlock(text=said)])]
        session = PlayedSession([ToolResult([TextBlock(text=said)])], opening=opening)
        trajectory = await play(session, sampler, template, limits=RolloutLimits(max_turns=2))
        begins, ends, image = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<|image|>"])
        assert trajectory.ids.count(ends) == trajectory.ids.count(begins) == 5  # system, user, model, tool, model
        assert image not in trajectory.ids
        assert tokenizer.decode(trajectory.ids).count(said) == 2
        assert trajectory.segments[2].text.count(said) == 1


# --- messages to the model -----------------------------------------------------------------------


async def test_pictures_reach_the_sampler_of_a_model_that_sees() -> None:
    tokenizer = tiny_tokenizer("vision")
    look = tokenizer.encode(call("look"), add_special_tokens=False)
    finish = tokenizer.encode(FINISH, add_special_tokens=False)
    task = {"goal": "see", "picture": True}
    sampler = SampledIds([look, finish])
    trajectory = await play(local(Bench, task), sampler, "vision")
    assert [len(images) for images in sampler.images] == [1, 2]
    assert all(image.startswith("data:image/png;base64,") for images in sampler.images for image in images)
    image_id = tokenizer.convert_tokens_to_ids("<|image|>")
    assert trajectory.ids.count(image_id) == 2
    assert len(images_of(trajectory.messages)) == 2
    blind = SampledIds([look, finish])
    trajectory = await play(local(Bench, task), blind, "qwen3")
    assert blind.images == [[], []]
    assert trajectory.response_text.count("an image that this model cannot see") == 1


async def test_tools_are_described_once_by_the_template_or_by_the_system_prompt() -> None:
    tools = [ToolSpec(name="spanner", description="Turns.", input_schema=None)]
    for template in sorted(TEMPLATES):
        sampler = SampledIds([[1]])
        await play(PlayedSession(tool_specs=tools), sampler, template, limits=RolloutLimits(max_turns=1))
        prompt = tiny_tokenizer(template).decode(sampler.requests[0])
        assert prompt.count('"spanner"') == 1, prompt
        await play(
            PlayedSession(tool_specs=tools),
            sampler,
            template,
            system_prompt="{tools}",
            limits=RolloutLimits(max_turns=1),
        )
        prompt = tiny_tokenizer(template).decode(sampler.requests[1])
        assert prompt.count('"spanner"') == 1, prompt
        assert '"arguments_schema"' in prompt


async def test_a_prompt_that_begins_the_thinking_is_detected() -> None:
    tokenizer = tiny_tokenizer("reasoning")
    turn = tokenizer.encode(f"perhaps {FINISH} no\n</think>\n\n{ECHO}", add_special_tokens=False)
    cut = tokenizer.encode(f"perhaps {FINISH}", add_special_tokens=False)
    session = PlayedSession()
    trajectory = await play(session, SampledIds([turn, cut]), "reasoning", limits=RolloutLimits(max_turns=2))
    assert [name for name, _ in session.calls] == ["echo"]
    assert trajectory.tool_calls == 1
