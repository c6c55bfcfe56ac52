"""Whole episodes: prompt, tools, rewards, the end; secrets, messages, terminal tools, group scoring."""

from __future__ import annotations

import asyncio
import json
from importlib import metadata
from typing import Any

import httpx
import pytest

from . import openreward_sdk
from .clients import Client, ClientKind, connected, failure
from .process import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_episode(client: Client) -> None:
    environment = await client.environment("guessit")
    task = await environment.task("train", 2)

    async with environment.session(task) as session:
        assert [(block.type, block.text) for block in await session.prompt()] == [("text", "The task is train-2.")]

        wrong = await session.call("guess", number=8)
        assert (wrong.reward, wrong.finished, wrong.metadata) == (0.0, False, {"guesses": 1})
        assert [(block.text, block.detail) for block in wrong.blocks] == [("wrong", {"guess": 8})]

        right = await session.call("guess", number=11)
        assert (right.reward, right.finished, right.metadata) == (1.0, True, {"guesses": 2})
        assert [(block.text, block.detail) for block in right.blocks] == [("right", {"guess": 11})]


async def test_an_episode_by_split_and_index(client: Client) -> None:
    environment = await client.environment("guessit")

    async with environment.session(split="holdout", index=1) as session:
        assert (await session.prompt())[0].text == "The task is holdout-1."
        lost = await session.call("give_up")

    assert (lost.blocks, lost.reward, lost.finished, lost.metadata) == ([], -0.5, True, None)


async def test_no_call_after_the_end(client: Client) -> None:
    environment = await client.environment("guessit")

    async with environment.session(split="train", index=0) as session:
        assert (await session.call("guess", number=7)).finished
        refusal = await failure(session.call("guess", number=7))

    assert isinstance(refusal, client.refused)
    assert "the episode has finished" in str(refusal)
    if client.is_openreward:
        assert getattr(refusal, "reason", None) == "episode_finished"


async def test_the_end_tears_down_once_and_is_remembered(
    client: Client, server: RunningServer, http: httpx.AsyncClient
) -> None:
    environment = await client.named("guessit")
    token = f"teardown-{client.kind}"

    async with environment.session(client.task("guessit", id="made up", number=1, token=token)) as session:
        assert (await session.prompt())[0].text == "The task is made up."
        assert server.journal.events(token) == ["constructed", "set up"]
        sid = session.sid

    assert server.journal.events(token) == ["constructed", "set up", "torn down"]
    late = await http.get("/prompt", headers={"X-Session-ID": sid})
    assert (late.status_code, late.json()) == (410, {"detail": "Session deleted"})


async def test_a_used_session_says_that_it_is_gone(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")
    async with environment.session(split="train", index=0) as session:
        await session.prompt()

    prompt, tools, call = [
        await failure(request()) for request in (session.prompt, session.tools, lambda: session.call("give_up"))
    ]

    # A 404 here would make the client list the class's tools instead.
    assert (prompt.status, prompt.message) == (410, "Session deleted")
    assert (tools.status, tools.message) == (410, "Session deleted")
    assert isinstance(call, openreward_sdk.SessionTerminatedError)
    assert "server returned 410: Session deleted" in str(call)


async def test_tools_of_a_task(client: Client) -> None:
    environment = await client.environment("guessit")

    async with environment.session(split="train", index=1) as session:
        tools = {tool.name: tool for tool in await session.tools()}
        # The shared tools of the class, and those that `list_task_tools` adds.
        assert sorted(tools) == ["give_up", "guess", "peek", "riddle"]
        assert tools["riddle"].input_schema is None
        assert tools["peek"].description == "Look at the number."
        assert await session.text("riddle") == "What is one less than 4?"
        assert await session.text("peek") == "3"


@pytest.mark.combinations
@pytest.mark.parametrize(
    ("name", "tool", "description"),
    [("guessit", "riddle", "A riddle about train-1."), ("bank", "ask", "Ask the bank.")],
)
async def test_a_task_describes_its_tools_in_its_own_words(
    client: Client, name: str, tool: str, description: str
) -> None:
    """The descriptions of `list_task_tools` take precedence over those of the methods."""
    environment = await client.named(name)

    async with environment.session(split="train", index=1) as session:
        descriptions = [(spec.name, spec.description) for spec in await session.tools() if spec.name == tool]

    assert descriptions == [(tool, description)]


async def test_a_toolset_with_state(client: Client) -> None:
    environment = await client.named("workbench")

    assert "draw_card" in [tool.name for tool in await environment.tools()]
    async with environment.session(split="train", index=0) as session:
        assert await session.text("draw_card") == "king of workbench-0"
        assert await session.text("draw_card") == "ace of workbench-0"


@pytest.mark.parametrize("sdk", ["openreward", "ors-sdk"])
@pytest.mark.parametrize("style", ["async", "sync"])
async def test_secrets(server: RunningServer, sdk: str, style: str) -> None:
    kind: Any = f"{sdk}-{style}"
    # The header with this secret is several times larger than many servers allow.
    long = "0123456789" * 3_000
    given: dict[str, Any]
    if sdk == "openreward":
        given = {"OPENAI_API_KEY": "sk-1", "wörld": ("grüße 👋", ["example.org"]), "long": (long, [])}
        arrived = {"OPENAI_API_KEY": "sk-1", "wörld": "grüße 👋", "long": long}
        arrived |= {"api_key": "the-api-key", "OPENREWARD_API_KEY": "the-api-key"}
    else:
        arrived = {"OPENAI_API_KEY": "sk-1", "wörld": "grüße 👋", "long": long}
        given = dict(arrived)

    async with connected(kind, server.url) as client:
        environment = await client.named("workbench")
        async with environment.session(split="train", index=0, secrets=given) as session:
            assert json.loads(await session.text("reveal")) == arrived
        async with environment.session(split="train", index=0) as session:
            without = json.loads(await session.text("reveal"))
            assert sorted(without) == (["OPENREWARD_API_KEY", "api_key"] if client.is_openreward else [])


async def test_a_header_that_is_too_long_is_reported(openreward_client: Client) -> None:
    environment = await openreward_client.named("workbench")
    session = environment.session(split="train", index=0, secrets={"long": ("x" * 60_000, [])})

    error = await failure(session.__aenter__())

    assert error.status == 431


async def test_messages(openreward_client: Client) -> None:
    environment = await openreward_client.named("conversation")

    async with environment.session(split="train", index=0) as session:
        messages = await session.run(session.sdk.get_messages)
        anthropic = await session.run(session.sdk.get_messages, "anthropic")

    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert [[block.type for block in message.blocks] for message in messages] == [
        ["text"],
        ["text", "image"],
        ["reasoning", "tool_call"],
        ["tool_result", "text"],
    ]
    reasoning, call = messages[2].blocks
    assert (reasoning.text, reasoning.signature) == ("Multiply.", "s")
    assert (call.id, call.name, call.input) == ("call-1", "calculate", {"text": "6*7"})
    result = messages[3].blocks[0]
    assert (result.tool_call_id, result.is_error, result.blocks[0].text) == ("call-1", True, "no such tool")
    assert messages[3].detail == {"turn": 2}
    assert anthropic["system"] == "Answer briefly."
    assert anthropic["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Multiply.", "signature": "s"},
        {"type": "tool_use", "id": "call-1", "name": "calculate", "input": {"text": "6*7"}},
    ]


async def test_a_prompt_as_messages(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")

    async with environment.session(split="train", index=0) as session:
        messages = await session.run(session.sdk.get_messages, "openai")

    assert messages == [{"role": "user", "content": "The task is train-0."}]


async def test_messages_as_a_prompt(client: Client) -> None:
    """The view of a client without messages, such as ors-sdk."""
    environment = await client.named("conversation")

    async with environment.session(split="train", index=0) as session:
        blocks = await session.prompt()

    assert [block.text if block.type == "text" else block.mimeType for block in blocks] == [
        "[system]",
        "Answer briefly.",
        "[user]",
        "What is 6*7?",
        "image/png",
        "[assistant]",
        "<think>Multiply.</think>",
        '[tool_call calculate] {"text": "6*7"}',
        "[user]",
        "[tool_result (error)]",
        "no such tool",
        "Go on.",
    ]


async def test_a_terminal_tool(openreward_client: Client) -> None:
    environment = await openreward_client.named("conversation")
    assert [tool.name for tool in await environment.tools()] == ["calculate"]
    assert await environment.run(environment.sdk.is_assistant_message_final)

    async with environment.session(split="train", index=0) as session:
        assert [tool.name for tool in await session.tools()] == ["calculate"]
        tool = await session.run(session.sdk.terminal_tool)
        assert (tool.name, tool.arg, tool.description) == ("answer", "text", "Graded: the answer.")
        output = await session.run(session.sdk.call_terminal_tool, "I think it is 42.")

    assert (output.reward, output.finished) == (1.0, True)


async def test_no_terminal_tool(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")

    async with environment.session(split="train", index=0) as session:
        assert not await session.run(session.sdk.is_assistant_message_final)
        error = await failure(session.run(session.sdk.call_terminal_tool, "42"))

    assert isinstance(error, openreward_sdk.ToolCallError)
    assert getattr(error, "reason", None) == "not_found"


async def test_a_terminal_tool_by_its_name(ors_client: Client) -> None:
    """ors-sdk has no terminal tools: its list omits the tool, and a call of it works like any other."""
    environment = await ors_client.environment("conversation")

    async with environment.session(split="train", index=0) as session:
        assert [tool.name for tool in await session.tools()] == ["calculate"]
        output = await session.call("answer", text="no idea")

    assert (output.reward, output.finished) == (0.0, True)


async def test_group_scoring(openreward_client: Client) -> None:
    environment = await openreward_client.named("conversation")
    assert await environment.run(environment.sdk.supports_score_group)
    text, message = openreward_sdk.text, openreward_sdk.message
    short = [message("user", text("6*7?")), message("assistant", openreward_sdk.reasoning("Hm."), text("42"))]
    long = [message("assistant", text("It is 42"))]

    async with environment.session(split="train", index=0) as session:
        assert await session.run(session.sdk.supports_score_group)
        candidates = [short, openreward_sdk.candidate(long, {"rollout": 7}), short]
        scores = await session.run(session.sdk.score_group, candidates)
        assert [(score.reward, score.metadata) for score in scores] == [
            (2.0, None),
            (8.0, {"seen": {"rollout": 7}}),
            (2.0, None),
        ]

        # A judge that fails costs the scores but not the session.
        error = await failure(
            session.run(session.sdk.score_group, [openreward_sdk.candidate(long, {"judge": "fails"})])
        )
        assert isinstance(error, openreward_sdk.ScoreGroupFailed)
        assert "RuntimeError: the judge has no opinion" in str(error)
        assert (await session.run(session.sdk.score_group, [long]))[0].reward == 8.0
        assert (await session.run(session.sdk.call_terminal_tool, "42")).reward == 1.0
        # Scoring compares whole rollouts, so it is allowed after their end.
        assert (await session.run(session.sdk.score_group, [long]))[0].reward == 8.0


async def test_no_group_scoring(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")
    candidate = [openreward_sdk.message("assistant", openreward_sdk.text("7"))]

    async with environment.session(split="train", index=0) as session:
        assert not await session.run(session.sdk.supports_score_group)
        error = await failure(session.run(session.sdk.score_group, [candidate]))
        assert isinstance(error, openreward_sdk.ScoreGroupUnsupported)
        assert (await session.call("guess", number=7)).reward == 1.0


async def test_the_version(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")

    async with environment.session(split="train", index=0) as session:
        version = await session.run(session.sdk.version)

    assert version == {"version": metadata.version("orsd"), "build_sha": None}


async def test_a_toolset_by_name_is_refused_clearly(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")

    error = await failure(environment.session(split="train", index=0, toolset="codex").__aenter__())

    assert (error.status, error.message) == (
        400,
        "unknown toolset 'codex'; valid options are []. "
        "Guess is not a class of openreward, whose toolsets these are; give the class its toolsets.",
    )


async def test_variables_for_the_platform_are_let_pass(openreward_client: Client) -> None:
    environment = await openreward_client.environment("guessit")

    async with environment.session(split="train", index=0, env_overrides={"OPENAI_BASE_URL": "http://x"}) as session:
        assert (await session.call("guess", number=7)).reward == 1.0


@pytest.mark.parametrize("kind", ["openreward-async", "ors-sdk-async"])
async def test_many_episodes_at_once(server: RunningServer, kind: ClientKind) -> None:
    """Each of a hundred sessions of one client gets its own responses."""
    async with connected(kind, server.url) as client:
        environment = await client.named("guessit")

        async def play(number: int) -> tuple[str, float | None, str]:
            async with environment.session(client.task("guessit", id=f"no {number}", number=number)) as session:
                (block,) = await session.prompt()
                wrong = await session.call("guess", number=number + 1)
                secret = await session.text("peek")
                right = await session.call("guess", number=number)
                assert (wrong.reward, right.reward, right.metadata) == (0.0, 1.0, {"guesses": 2})
                return block.text, right.reward, secret

        outcomes = await asyncio.gather(*map(play, range(100)))

    assert outcomes == [(f"The task is no {number}.", 1.0, str(number)) for number in range(100)]


@pytest.mark.parametrize("kind", ["openreward-async", "ors-sdk-async"])
async def test_calls_that_end_just_when_their_stream_opens(server: RunningServer, kind: ClientKind) -> None:
    """The server waits 50 ms before it opens a stream; calls of about that duration get their results, too."""
    async with connected(kind, server.url) as client:
        environment = await client.named("workbench")

        async def play(number: int) -> list[str]:
            async with environment.session(split="train", index=0) as session:
                lengths = [0.046 + 0.0001 * (number + 10 * turn) for turn in range(8)]
                return [await session.text("work", token="-", seconds=seconds) for seconds in lengths]

        outcomes = await asyncio.gather(*map(play, range(40)))

    assert outcomes == [["done"] * 8] * 40
