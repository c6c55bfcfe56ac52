"""Environments written for `openreward` and for `ors-sdk`, hosted unchanged beside one of ours."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.support.servers import WORKERS

from . import openreward_sdk
from .clients import Client, ClientKind, Session, connected, failure
from .process import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_environment_of_openreward(client: Client, server: RunningServer) -> None:
    environment = await client.named("Riddle")
    token = f"riddle-{client.kind}"

    assert await environment.splits() == ["train", "final"]
    assert [task.task_spec for task in await environment.tasks("train")] == [
        {"id": "train-0", "word": "echo"},
        {"id": "train-1", "word": "shadow"},
    ]
    tools = ["look", "say", "submit", "talk", "walk", "where"]
    assert [tool.name for tool in await environment.tools()] == tools
    async with environment.session(client.task("riddle", word="river", token=token)) as session:
        assert [tool.name for tool in await session.tools()] == tools
        assert (await session.prompt())[0].text == "Say the word of 5 letters."
        assert await session.text("where") == "in sandbox 7"
        wrong = await session.call("say", word="lake")
        right = await session.call("say", word="river")
        refusal = await failure(session.call("say", word="river"))

    assert [(output.reward, output.finished) for output in (wrong, right)] == [(0.0, False), (1.0, True)]
    assert isinstance(refusal, client.refused)
    assert server.journal.events(token) == ["torn down"]


async def test_an_environment_of_ors_sdk(client: Client, server: RunningServer) -> None:
    environment = await client.named("Bank")
    token = f"bank-{client.kind}"

    assert await environment.splits() == ["train", "audit"]
    assert (await environment.task("train", 2)).task_spec == {"id": "train-2", "target": 121}
    assert [tool.name for tool in await environment.tools()] == ["deposit", "wait", "withdraw", "add_interest"]
    async with environment.session(client.task("bank", target=132, token=token)) as session:
        assert (await session.prompt())[0].text == "Bring 100 to 132."
        assert "ask" in [tool.name for tool in await session.tools()]
        assert await session.text("deposit", amount=40) == "140"
        assert await session.text("withdraw", amount=20) == "120"
        last = await session.call("add_interest")
        assert (last.blocks[0].text, last.reward, last.finished) == ("132", 1.0, True)

    assert server.journal.events(token) == ["torn down"]


async def test_secrets_reach_an_environment_of_ors_sdk(client: Client) -> None:
    """Its own server never delivered them: it reads the body, and its client sends a header."""
    environment = await client.named("bank")
    password = "sesame" if not client.is_openreward else ("sesame", ["example.org"])

    async with environment.session(split="train", index=0, secrets={"password": password}) as session:
        assert json.loads(await session.text("ask"))["password"] == "sesame"


async def test_subclasses_beside_their_bases(client: Client) -> None:
    """The SDKs' own caches would give a subclass the base's splits, tasks or counts."""
    counts: dict[str, dict[str, int]] = {}
    for name in ("riddle", "harderriddle", "bank", "smallbank"):
        environment = await client.named(name)
        counts[name] = {split: await environment.count(split) for split in await environment.splits()}

    assert counts == {
        "riddle": {"train": 2, "final": 1},
        "harderriddle": {"train": 3, "bonus": 1},
        "bank": {"train": 3, "audit": 1},
        "smallbank": {"train": 1, "audit": 1},
    }


async def test_a_conversation_of_openreward(openreward_client: Client) -> None:
    """Messages, terminal tool and judge in the SDK's own types."""
    environment = await openreward_client.named("interview")
    message, text = openreward_sdk.message, openreward_sdk.text

    async with environment.session(split="test", index=0) as session:
        messages = await session.run(session.sdk.get_messages)
        assert [(turn.role, turn.blocks[0].text) for turn in messages] == [("system", "Be kind."), ("user", "Why?")]
        assert [block.text for block in await session.prompt()] == ["[system]", "Be kind.", "[user]", "Why?"]
        candidates = [[message("assistant", text(answer))] for answer in ("because", "ask her")]
        scores = await session.run(session.sdk.score_group, candidates)
        assert [(score.reward, score.metadata) for score in scores] == [
            (7.0, {"text": "because"}),
            (7.0, {"text": "ask her"}),
        ]
        output = await session.run(session.sdk.call_terminal_tool, "why not")
        assert (output.reward, output.finished) == (7.0, True)


async def test_a_malformed_tool_is_left_out_and_named_in_the_log(server: RunningServer) -> None:
    """The SDK of openreward silently leaves the tool out."""
    log = server.log.read_text()

    lines = [line for line in log.splitlines() if "Riddle.shout" in line and "Harder" not in line]
    assert len(lines) == int(WORKERS or 1)
    line = lines[0]
    assert re.search(r"tool left out.*Riddle\.shout.*ToolOutput", line)


# --- concurrency -----------------------------------------------------------------------------------


async def overlaps_of(session: Session, *tools: str) -> set[str]:
    """Call these tools at once, and return which ran at the same time, by the environment's log of the calls."""
    await asyncio.gather(*(session.call(tool, seconds=0.2) for tool in tools))
    log: list[str] = json.loads(await session.text("walk"))[1:-2]
    assert sorted(log) == sorted(f"{tool} {moment}" for tool in tools for moment in ("in", "out"))
    running: list[str] = []
    found: set[str] = set()
    for tool, _, moment in (line.partition(" ") for line in log):
        if moment == "out":
            running.remove(tool)
        else:
            found |= {" and ".join(sorted((tool, other))) for other in running}
            running.append(tool)
    return found


async def test_which_tools_of_openreward_overlap(server: RunningServer) -> None:
    async with connected("openreward-async", server.url) as client:
        environment = await client.named("riddle")

        async def overlaps(*tools: str) -> set[str]:
            async with environment.session(split="train", index=0) as session:
                return await overlaps_of(session, *tools)

        same, different, concurrent, exclusive = await asyncio.gather(
            overlaps("walk", "walk"),
            overlaps("walk", "talk"),
            overlaps("look", "look"),
            overlaps("look", "submit", "look"),
        )

    assert same == set()
    assert different == {"talk and walk"}
    assert concurrent == {"look and look"}
    assert exclusive <= {"look and look"}


@pytest.mark.parametrize("kind", ["openreward-async", "ors-sdk-async"])
async def test_the_synchronous_code_of_ors_sdk_has_a_thread_of_its_own(server: RunningServer, kind: ClientKind) -> None:
    """Its authors assume that methods of a session never overlap and never run on another thread."""
    async with connected(kind, server.url) as client:
        environment = await client.named("bank")

        everybody = asyncio.Barrier(5)  # the number of a thread that has ended may be another's

        async def play() -> tuple[int, int]:
            async with environment.session(client.task("bank", target=0)) as session:
                await session.prompt()
                await everybody.wait()
                await asyncio.gather(*(session.call("deposit", amount=1, seconds=0.1) for _ in range(4)))
                assert await session.text("deposit", amount=0) == "104"
                known = json.loads(await session.text("ask"))
                assert known["most_inside"] == 1
                (thread,) = known["threads"]
                await everybody.wait()
                return thread, known["most_banks"]

        played = await asyncio.gather(*(play() for _ in range(5)))

    assert len({thread for thread, _ in played}) == 5
    # One session's blocking tool does not block others.
    assert max(most for _, most in played) > 1


async def test_asynchronous_tools_of_ors_sdk_overlap(server: RunningServer) -> None:
    async with connected("ors-sdk-async", server.url) as client:
        environment = await client.named("bank")
        async with environment.session(split="train", index=0) as session:
            texts = await asyncio.gather(*(session.text("wait", amount=0, seconds=0.2) for _ in range(3)))

    assert texts == ["3", "3", "3"]
