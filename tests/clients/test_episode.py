"""Episodes turn by turn, in the server's own code: the effect of each text of a model."""

import json
import math
from typing import Any

import pytest
from ors_clients.client.local_sessions import local
from ors_clients.errors import (
    ConfigurationError,
    RequestRefused,
    ServerUnavailable,
    SessionLost,
    ToolFailed,
)
from ors_clients.models import ToolResult
from ors_clients.rollouts.episode import RolloutLimits, TurnEpisode, TurnResult
from ors_clients.rollouts.rewards import RewardRule
from ors_clients.tool_calls import MalformedCall, ToolCall, find_format

from ors_server import TerminalToolSpec, TextBlock
from ors_server.wire.texts import shorten
from tests.clients.rollout_environments import Bench, Desk, PlayedSession

HERMES = find_format("hermes")


def call(name: str, **input: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': input})}\n</tool_call>"


def episode(session: Any, **settings: Any) -> TurnEpisode:
    return TurnEpisode(session, HERMES, **settings)


async def play(texts: list[str], task: dict[str, Any] | None = None, **settings: Any) -> tuple[TurnEpisode, TurnResult]:
    """Return the episode and the last turn's result, after ``texts`` in a workshop."""
    played = episode(local(Bench, task or {"goal": "work"}), **settings)
    try:
        await played.reset()
        result = TurnResult([], [])
        for text in texts:
            assert not result.over
            result = await played.step(text)
        return played, result
    finally:
        await played.close()


async def test_an_episode_from_its_first_message_to_its_reward() -> None:
    played, result = await play([call("echo", text="hello"), call("earn"), call("finish", reward=1.0)])
    assert played.messages == [
        {"role": "user", "content": "work"},
        {"role": "assistant", "content": call("echo", text="hello")},
        {"role": "tool", "tool_call_id": "call_0_0", "name": "echo", "content": "hello"},
        {"role": "assistant", "content": call("earn")},
        {"role": "tool", "tool_call_id": "call_1_0", "name": "earn", "content": "earned"},
        {"role": "assistant", "content": call("finish", reward=1.0)},
        {"role": "tool", "tool_call_id": "call_2_0", "name": "finish", "content": "over"},
    ]
    assert (result.stop_reason, result.reward, result.problems) == ("finished", 1.5, [])
    assert [step.reward for step in played.steps] == [None, 0.5, 1.0]
    assert {tool.name for tool in played.tools} == {"echo", "earn", "finish", "look", "fail", "burn", "wait"}


async def test_calls_of_one_turn_run_in_order_until_the_episode_ends() -> None:
    text = call("echo", text="a") + call("earn") + call("finish", reward=2.0) + call("echo", text="never")
    played, result = await play([text])
    assert [step.call.name for step in played.steps if isinstance(step.call, ToolCall)] == ["echo", "earn", "finish"]
    assert [message["content"] for message in result.messages] == ["a", "earned", "over"]
    assert (result.stop_reason, result.reward) == ("finished", 2.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I do not know.", "No tool call was found"),
        ("<tool_call>\n{bad}\n</tool_call>", "could not be read: invalid JSON"),
        (f"<think>{call('earn')}</think> hm", "No tool call was found"),
        ("", "No tool call was found"),
    ],
)
async def test_a_turn_without_a_call_is_reminded(text: str, said: str) -> None:
    played, result = await play([text])
    (message,) = result.messages
    assert message["role"] == "user"
    assert said in message["content"]
    assert not result.over
    assert all(isinstance(step.call, MalformedCall) for step in played.steps)


async def test_a_malformed_call_beside_a_good_one_is_answered_after_it() -> None:
    _, result = await play([f"<tool_call>{{</tool_call>{call('echo', text='a')}"])
    assert [message["role"] for message in result.messages] == ["tool", "tool"]
    assert result.messages[0]["content"] == "a"
    assert "could not be read" in result.messages[1]["content"]
    assert len(result.problems) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (call("hammer"), "hammer"),
        (call("echo"), "text"),
        (call("echo", text="a", times="many"), "times"),
        (call("fail"), "the hammer broke"),
    ],
)
async def test_a_call_that_fails_is_an_observation_and_the_episode_goes_on(text: str, said: str) -> None:
    played, result = await play([text])
    assert result.messages[0]["role"] == "tool"
    assert result.messages[0]["content"].startswith("Error: ")
    assert said in result.messages[0]["content"]
    assert not result.over
    assert result.problems
    assert played.steps[0].reward is None


async def test_null_for_an_optional_argument_is_taken() -> None:
    _, result = await play([call("echo", text="a", note=None)])
    assert result.messages[0]["content"] == "a"
    assert not result.problems


async def test_a_failure_of_the_machine_ends_the_episode_without_a_reward() -> None:
    _, result = await play([call("earn"), call("burn")], reward_rule=RewardRule(nonterminal_reward=-1.0))
    assert result.stop_reason == "infrastructure"
    assert isinstance(result.failure, SessionLost)
    assert "the workshop burned down" in str(result.failure)
    assert result.reward is None


async def test_the_last_turn_is_the_last_one_whatever_is_in_it() -> None:
    played, result = await play(["nothing", "bad <tool_call>"], limits=RolloutLimits(max_turns=2))
    assert (result.stop_reason, result.reward) == ("max_turns", 0.0)
    assert played.turns == 2
    _, result = await play([call("finish", reward=3.0)], limits=RolloutLimits(max_turns=1))
    assert (result.stop_reason, result.reward) == ("finished", 3.0)
    rule = RewardRule(nonterminal_reward=-0.25)
    _, result = await play([call("earn")], limits=RolloutLimits(max_turns=1), reward_rule=rule)
    assert (result.stop_reason, result.reward) == ("max_turns", 0.25)


async def test_nothing_happens_after_the_end() -> None:
    session = PlayedSession([ToolResult(finished=True, reward=1.0)])
    played = episode(session)
    await played.reset()
    assert (await played.step(call("echo"))).over
    again = await played.step(call("echo"))
    assert (again.over, again.messages, again.steps, again.reward) == (True, [], [], 1.0)
    assert len(session.calls) == 1
    assert played.stop("stopped").stop_reason == "finished"


async def test_a_trainer_may_stop_an_episode() -> None:
    played = episode(PlayedSession(), reward_rule=RewardRule(nonterminal_reward=-0.5))
    await played.reset()
    result = played.stop()
    assert (result.over, result.stop_reason, result.reward) == (True, "stopped", -0.5)


# --- the final message ---------------------------------------------------------------------------


async def test_a_turn_without_a_call_goes_to_the_terminal_tool() -> None:
    played = episode(local(Desk, {"goal": ""}))
    try:
        await played.reset()
        result = await played.step("<think>\nfive?\n</think>\n\nfive<|im_end|>\n")
    finally:
        await played.close()
    assert (result.stop_reason, result.reward) == ("finished", 4.0)
    (step,) = result.steps
    assert isinstance(step.call, ToolCall)
    assert (step.call.name, step.call.input) == ("hand_in", {"message": "five"})


async def test_a_truncated_turn_is_not_a_final_message() -> None:
    session = PlayedSession(terminal_tool=TerminalToolSpec(name="hand_in", arg="message"))
    played = episode(session)
    await played.reset()
    result = await played.step("The answer is", truncated=True)
    assert not session.calls
    assert "cut off" in result.messages[0]["content"]
    assert not (await played.step("<tool_call>{")).over
    assert not session.calls


async def test_a_call_that_a_token_limit_may_have_cut_off_is_not_run() -> None:
    """The cut may have removed another parameter."""
    written = "<tool_call>\n<function=echo>\n<parameter=text>\na\n</parameter>\n"
    for text, ran in [
        (written, 0),
        (f"{written}</function>\n</tool_call>\n{written}", 1),
        (f"{written}</function>", 1),
    ]:
        session = PlayedSession()
        played = TurnEpisode(session, find_format("qwen_xml"))
        await played.reset()
        result = await played.step(text, truncated=True)
        assert len(session.calls) == ran, text
        assert ("cut off" in str(result.messages)) == text.endswith(written), result.messages
        await played.step(written)
        assert len(session.calls) == ran + 1
        await played.close()


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge")])
async def test_a_reward_that_is_not_a_number_is_a_failure_of_the_environment(reward: float) -> None:
    played = episode(PlayedSession([ToolResult(reward=1.0), ToolResult(reward=reward, finished=True)]))
    await played.reset()
    result = await played.step(call("echo") * 2)
    assert (result.stop_reason, result.reward) == ("infrastructure", None)
    assert [step.reward for step in played.steps] == [1.0]


async def test_a_terminal_tool_may_want_no_message() -> None:
    session = PlayedSession([ToolResult(finished=True)], terminal_tool=TerminalToolSpec(name="done"))
    played = episode(session)
    await played.reset()
    assert (await played.step("five")).stop_reason == "finished"
    assert session.calls == [("done", {})]


# --- the model's view --------------------------------------------------------------------------------


async def test_a_system_prompt_may_name_the_tools() -> None:
    played = episode(local(Desk, {"goal": ""}), system_prompt="Tools: {tools}. Braces: {other}")
    try:
        start = await played.reset()
    finally:
        await played.close()
    system, user = start.messages
    assert start.tools == []
    assert system["content"].startswith('Tools: {"name": "burn", "arguments_schema": null, "description": "Lose')
    assert system["content"].endswith(". Braces: {other}\n\nYou are at a desk.")
    assert user == {"role": "user", "content": "Write."}


async def test_tools_are_described_where_nothing_else_does() -> None:
    played = episode(PlayedSession(), describe_tools=True)
    start = await played.reset()
    assert start.tools == []
    assert '"name": "echo"' in start.messages[0]["content"]
    assert HERMES.instructions in start.messages[0]["content"]


async def test_pictures_stay_where_they_are() -> None:
    played, result = await play([call("look")], {"goal": "see", "picture": True})
    prompt = played.messages[0]["content"]
    assert [part["type"] for part in prompt] == ["text", "image"]
    assert prompt[1]["image"].startswith("data:image/png;base64,iVBOR")
    assert [part["type"] for part in result.messages[0]["content"]] == ["text", "image"]


async def test_long_outputs_lose_their_middle() -> None:
    _, result = await play([call("echo", text="ab", times=500)], limits=RolloutLimits(max_tool_output_characters=10))
    assert result.messages[0]["content"] == "ababa\n[… 990 characters left out …]\nbabab"
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "ab\n[… 1 characters left out …]\nd"


# --- sessions that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [ServerUnavailable("gone"), SessionLost("gone")])
async def test_a_lost_server_is_a_typed_failure(failure: Exception) -> None:
    played = episode(PlayedSession([failure]))
    await played.reset()
    result = await played.step(call("echo"))
    assert (result.stop_reason, result.failure, result.reward) == ("infrastructure", failure, None)
    await played.close()


async def test_a_refusal_of_what_the_model_wrote_is_an_observation_and_any_other_is_not() -> None:
    too_large = RequestRefused("The request body is larger than 10 bytes", status_code=413)
    played = episode(PlayedSession([too_large, ToolFailed("echo", "oh"), RequestRefused("no key", status_code=401)]))
    await played.reset()
    assert "larger than 10 bytes" in (await played.step(call("echo"))).messages[0]["content"]
    assert (await played.step(call("echo"))).messages[0]["content"] == "Error: oh"
    assert (await played.step(call("echo"))).stop_reason == "infrastructure"


async def test_an_episode_is_closed_once_and_begun_once() -> None:
    session = PlayedSession([ToolResult([TextBlock(text="")])])
    played = episode(session)
    await played.close()
    assert session.closed == 0
    await played.reset()
    with pytest.raises(ConfigurationError):
        await played.reset()
    await played.close()
    await played.close()
    assert session.closed == 1


@pytest.mark.parametrize("limits", [{"max_turns": 0}, {"max_total_tokens": -1}, {"max_seconds": 0.0}])
def test_limits_that_allow_nothing_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RolloutLimits(**limits)
