"""Calls that outlast their connection: the tool runs once, whatever happens to the response.

A proxy between client and server loses connections. A client waits before it retries, so all plays run at the same
time, for each client, and each test checks the result of one play.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
import pytest_asyncio

from . import openreward_sdk
from .awkward import TEXTS
from .clients import EVERY_CLIENT, OPENREWARD, Client, ClientKind, connected
from .journal import Journal
from .process import RunningServer
from .proxy import Proxy, proxied

pytestmark = pytest.mark.asyncio(loop_scope="session")

Play = Callable[[Client, Proxy, Journal], Awaitable[None]]
LONG = "white space of all kinds"


def resumed(proxy: Proxy, path: str = "call") -> list[bool]:
    """Return, for each request to a path, whether it resumes the call of the first response."""
    requests = proxy.to(path)
    asked = [request.json.get("task_id") for request in requests]
    return [task_id is not None and task_id.encode() in requests[0].passed for task_id in asked]


async def slow_call(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Play without a loss; the tool is still running when the server opens a stream."""
    environment = await client.named("workbench")
    async with environment.session(split="train", index=0) as session:
        output = await session.call("work", token=f"slow-{client.kind}", seconds=0.3)
    assert (output.blocks[0].text, output.reward) == ("done", 0.25)
    assert journal.events(f"slow-{client.kind}") == ["work"]
    (request,) = proxy.to("call")
    assert b"transfer-encoding: chunked" in request.passed.lower()


async def lost_while_the_tool_runs(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Lose the stream; the client retries after half a second, when the call has ended or still runs."""
    environment = await client.named("workbench")
    for tool in ("work", "grind"):
        for seconds in (0.2, 0.8):
            token = f"{tool}-{seconds}-{client.kind}"
            del proxy.requests[:]
            async with environment.session(split="train", index=0) as session:
                proxy.cut("call", after=b"event: task_id")
                output = await session.call(tool, token=token, seconds=seconds)
            assert output.blocks[0].text == "done"
            assert journal.events(token) == [tool]
            assert [request.cut for request in proxy.to("call")] == [True, False]
            assert resumed(proxy) == [False, True]


async def lost_again_and_again(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Lose the stream repeatedly; the second response has the same `task_id` as the first."""
    environment = await client.named("workbench")
    async with environment.session(split="train", index=0) as session:
        proxy.cut("call", after=b"event: task_id", times=3)
        assert await session.text("work", token=f"again-{client.kind}", seconds=0.2) == "done"
    assert journal.events(f"again-{client.kind}") == ["work"]
    assert resumed(proxy) == [False, True, True, True]


async def lost_in_the_middle_of_the_result(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Lose the result midway, in a single response or in a stream; the client gets all of it, from the start."""
    environment = await client.named("workbench")
    for seconds in (0, 0.1):
        token = f"middle-{seconds}-{client.kind}"
        del proxy.requests[:]
        async with environment.session(split="train", index=0) as session:
            proxy.cut("call", after=150_000, times=2)
            text = await session.text("work", token=token, seconds=seconds, text=LONG)
        assert text == TEXTS[LONG], "the text is another"
        assert journal.events(token) == ["work"]
        assert [len(request.passed) for request in proxy.to("call")][:2] == [150_000, 150_000]
        assert resumed(proxy) == [False, True, True]


async def lost_before_the_client_knew_the_call(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Lose the connection before `task_id`; the client's repetition is the same call, and the next one is another.

    This holds only while the server has not written its last byte: the tool takes far longer than the detection of a
    loss.
    """
    token, seconds = f"before-{client.kind}", 2.0
    environment = await client.named("workbench")
    async with environment.session(split="train", index=0) as session:
        proxy.cut("call", after=0, times=2)
        assert await session.text("work", token=token, seconds=seconds) == "done"
        assert journal.events(token) == ["work"]
        assert [request.json.get("task_id") for request in proxy.to("call")] == [None, None, None]

        assert await session.text("work", token=token, seconds=seconds) == "done"
        assert journal.events(token) == ["work", "work"]


async def lost_around_the_call(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Lose the response to each request of a session; there is one instance, set up once and torn down once."""
    token = f"around-{client.kind}"
    environment = await client.named("workbench")
    for path in ("create_session", "create", "prompt", "task_tools", "delete"):
        proxy.cut(path, after=0)
    async with environment.session(client.task("workbench", id="made up", token=token)) as session:
        assert (await session.prompt())[0].text == "The task is made up."
        assert "work" in [tool.name for tool in await session.tools()]
        assert await session.text("repeat", text="once") == "once"
    for path in ("create_session", "create", "prompt", "task_tools", "delete"):
        assert [request.cut for request in proxy.to(path)] == [True, False], path
    assert journal.events(token) == ["constructed", "set up", "torn down"]


async def lost_scores(client: Client, proxy: Proxy, journal: Journal) -> None:
    """Lose the response to a scoring; the judge runs once, as a tool does."""
    token = f"scores-{client.kind}"
    environment = await client.named("conversation")
    candidate = [openreward_sdk.message("assistant", openreward_sdk.text("42"))]
    async with environment.session(client.task("conversation", token=token)) as session:
        proxy.cut("score_group", after=b"event: task_id")
        scores = await session.run(session.sdk.score_group, [candidate])
        assert [score.reward for score in scores] == [2.0]
    assert journal.events(token) == ["constructed", "set up", "score", "torn down"]
    assert resumed(proxy, "score_group") == [False, True]


PLAYS: dict[Play, tuple[ClientKind, ...]] = {
    slow_call: EVERY_CLIENT,
    lost_while_the_tool_runs: EVERY_CLIENT,
    lost_again_and_again: EVERY_CLIENT,
    lost_in_the_middle_of_the_result: EVERY_CLIENT,
    lost_before_the_client_knew_the_call: EVERY_CLIENT,
    lost_around_the_call: EVERY_CLIENT,
    lost_scores: OPENREWARD,
}
EACH = [pytest.param(play, kind, id=f"{play.__name__}-{kind}") for play, kinds in PLAYS.items() for kind in kinds]
Plays = dict[tuple[Play, ClientKind], asyncio.Task[None]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plays(server: RunningServer) -> AsyncGenerator[Plays]:
    """Run all plays, each by a client and through a proxy of its own."""

    async def one(play: Play, kind: ClientKind) -> None:
        async with proxied(server.url) as proxy, connected(kind, proxy.url) as client:
            await play(client, proxy, server.journal)

    tasks: Plays = {
        (play, kind): asyncio.create_task(one(play, kind)) for play, kinds in PLAYS.items() for kind in kinds
    }
    yield tasks
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize(("play", "kind"), EACH)
async def test_connection(plays: Plays, play: Play, kind: ClientKind) -> None:
    await plays[play, kind]
