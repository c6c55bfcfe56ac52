"""`uvicorn module:app`: without our protocol class, a lost connection is only visible in ASGI's own messages."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Literal

import pytest

from ors_server import Server, Settings, ToolOutput, tool
from tests.server.protocol.live import call, open_session
from tests.server.protocol.live_server import Step
from tests.server.protocol.plain_uvicorn import Address, under_plain_uvicorn
from tests.support.environments import Echo, said
from tests.support.events import Reply, parse_events
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until

#: With each of uvicorn's parsers, which detect a lost connection in different ways.
both = pytest.mark.parametrize("server", ["httptools", "h11"], indirect=True)
CALL = {"name": "step", "input": {"text": "x", "milliseconds": 30}}


class Counting(Echo):
    """A slow tool that returns the number of its runs, and a record of teardowns."""

    ended: list[str]

    def setup(self) -> None:
        self.runs = 0

    @tool(concurrent=True)
    async def step(self, params: Step) -> ToolOutput:
        self.runs += 1
        run = self.runs
        await asyncio.sleep(params.milliseconds / 1000)
        return said(f"{params.text * params.size} {run}")

    @tool(concurrent=True)
    async def count(self) -> ToolOutput:
        return said(str(self.runs))

    def teardown(self) -> None:
        self.ended.append("torn down")


@pytest.fixture(params=["httptools"])
async def server(request: pytest.FixtureRequest) -> AsyncGenerator[Address]:
    ended: list[str] = []
    environment = type("Counting", (Counting,), {"ended": ended})
    app = Server([environment], settings=Settings(heartbeat=0.1)).app
    http: Literal["h11", "httptools"] = request.param
    async with under_plain_uvicorn(app, http) as address:
        await open_session(address, "s")
        yield address
    assert ended == ["torn down"]  # by the lifespan


async def runs(server: Address) -> str:
    """Return how often the tool has run."""
    async with server.connect() as connection:
        return (await call(connection, "s", "count")).text


async def test_an_episode(server: Address) -> None:
    client = Client(url=server.url)
    async with client.http:
        assert (await client.get("/prompt", "s")).json()[0]["text"] == "prompt of train-0"
        assert (await client.call("s", "echo", {"text": "é" * 200_000})).text == "é" * 200_000
        assert (await client.call("s", "step", {"text": "slow", "milliseconds": 250})).text == "slow 1"
        assert (await client.call("s", "win")).output["reward"] == 1.0


@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("done", [False, True], ids=["while it runs", "when it is done"])
async def test_a_call_lost_before_its_answer_is_attached_to(http: Literal["h11", "httptools"], done: bool) -> None:
    """An early response is sent in one piece, so the server cannot know whether it was read."""
    started, proceed = asyncio.Event(), asyncio.Event()
    runs = list[str]()

    class Gated(Echo):
        @tool(concurrent=True)
        async def step(self) -> ToolOutput:
            runs.append("run")
            started.set()
            await proceed.wait()
            return said(f"{len(runs)}")

    # No response opens a stream, however long the call takes.
    app = Server([Gated], settings=Settings(stream_after=PATIENCE)).app
    async with under_plain_uvicorn(app, http) as server:
        await open_session(server, "s")
        async with server.connect() as connection:
            await connection.request("POST", "/call", {"name": "step", "input": {}}, "s")
            await asyncio.wait_for(started.wait(), PATIENCE)
        await server.disconnected()
        if done:
            proceed.set()
            await server.idle()
        async with server.connect() as connection:
            again = asyncio.create_task(call(connection, "s", "step"))
            await until(lambda: again.done() or bool(server.state.tasks))
            proceed.set()
            assert (await again).text == "1"
    assert runs == ["run"]


async def test_a_call_lost_in_its_stream_is_attached_to(server: Address) -> None:
    async with server.connect() as connection:
        await connection.request("POST", "/call", {"name": "step", "input": {"text": "x", "milliseconds": 300}}, "s")
        await connection.until(b"event: task_id\r\n")
    await server.disconnected()
    async with server.connect() as connection:
        assert (await call(connection, "s", "step", text="x", milliseconds=300)).text == "x 1"
    assert await runs(server) == "1"


@both
async def test_a_large_result_lost_on_its_way_is_attached_to(server: Address) -> None:
    """Larger than the socket's buffer."""
    async with server.connect() as connection:
        step = {"name": "step", "input": {"text": "x", "size": 12_000_000}}
        await connection.request("POST", "/call", step, "s")
        await connection.head()
    await server.idle()
    client = Client(url=server.url)
    async with client.http:
        text = (await client.call("s", "step", {"text": "x", "size": 12_000_000})).text
    assert text[-3:] == "x 1"


async def test_a_repetition_of_an_answered_call_is_a_new_call(server: Address) -> None:
    """The agent repeats itself; on the same connection and on another."""
    async with server.connect() as connection:
        assert (await call(connection, "s", "step", text="x", milliseconds=30)).text == "x 1"
        assert (await call(connection, "s", "step", text="x", milliseconds=30)).text == "x 2"
    async with server.connect() as connection:
        assert (await call(connection, "s", "step", text="x", milliseconds=30)).text == "x 3"
        assert (await call(connection, "s", "step", text="x", milliseconds=100)).text == "x 4"
        assert (await call(connection, "s", "step", text="x", milliseconds=100)).text == "x 5"


async def test_pipelined_requests_are_all_answered(server: Address) -> None:
    """The check for a disconnected client must not mistake the next request for a disconnect."""
    async with server.connect() as connection:
        for _ in range(3):
            await connection.request("POST", "/call", CALL, "s")
        replies = [Reply(parse_events((await connection.response()).body)) for _ in range(3)]
    assert [reply.text for reply in replies] == ["x 1", "x 2", "x 3"]
