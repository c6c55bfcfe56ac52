"""Protocol 0.1, "At most once per task_id", over real connections that are cut at every moment."""

import asyncio
import itertools
from collections.abc import Generator
from typing import Any

import pytest

from ors_server import Settings
from ors_server.hosting.executors import ThreadPool
from ors_server.sessions.calls.call_ledger import CallLedger
from ors_server.sessions.calls.call_slots import CallSlots
from ors_server.sessions.calls.result_store import ResultStore
from tests.server.protocol.live import Connection, LiveServer, live_server
from tests.support.events import Reply, parse_events
from tests.support.http_client import Client

TASK = {"split": "train", "index": 0}
numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Generator[LiveServer]:
    with live_server(heartbeat=0.1) as running:
        yield running


class Episode:
    """One session, whose calls go over connections of their own."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        self.sid = f"episode-{next(numbers)}"

    async def open(self) -> "Episode":
        async with self.server.connect() as connection:
            await connection.request("POST", "/create", TASK, self.sid)
            assert (await connection.response()).status == 200
        return self

    async def post(
        self, connection: Connection, task_id: str | None = None, key: str | None = None, **step: Any
    ) -> None:
        body: dict[str, Any] = {"name": "step", "input": step}
        if task_id is not None:
            body["task_id"] = task_id
        await connection.request("POST", "/call", body, self.sid, None if key is None else {"Idempotency-Key": key})

    async def call(self, task_id: str | None = None, key: str | None = None, **step: Any) -> Reply:
        async with self.server.connect() as connection:
            await self.post(connection, task_id, key, **step)
            response = await connection.response()
            assert response.status == 200
            return Reply(parse_events(response.body))

    async def runs(self) -> int:
        async with self.server.connect() as connection:
            await connection.request("POST", "/call", {"name": "count", "input": {}}, self.sid)
            return int(Reply(parse_events((await connection.response()).body)).text)


@pytest.fixture
async def episode(server: LiveServer) -> Episode:
    return await Episode(server).open()


def run_of(reply: Reply) -> int:
    return reply.output["metadata"]["run"]


@pytest.mark.parametrize("stream_after", [60, 0.05])
async def test_cut_before_task_id_then_the_same_again_attaches(stream_after: float) -> None:
    """The tool finishes before the stream would open, or after."""
    with live_server(heartbeat=0.1, stream_after=stream_after) as server:
        episode = await Episode(server).open()
        async with server.connect() as connection:
            await episode.post(connection, text="x", milliseconds=2000)
            await asyncio.sleep(0.01)
        reply = await episode.call(text="x", milliseconds=2000)
        assert (run_of(reply), await episode.runs()) == (1, 1)


async def test_cut_before_task_id_and_long_done_when_the_same_comes_again(episode: Episode) -> None:
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", milliseconds=100)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    reply = await episode.call(text="x", milliseconds=100)
    assert (run_of(reply), await episode.runs()) == (1, 1)


@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["at once", "later"])
@pytest.mark.parametrize("resume", ["task_id", "same again"])
async def test_cut_after_task_id_attaches_either_way(episode: Episode, resume: str, pause: float) -> None:
    """However soon the client returns: the server notices the cut before it reads the new request."""
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", milliseconds=400)
        await connection.until(b"event: task_id\r\ndata: ")
        task_id = (await connection.until(b"\r\n")).decode().strip()
    await asyncio.sleep(pause)
    reply = await episode.call(task_id if resume == "task_id" else None, text="x", milliseconds=400)
    assert reply.task_id == task_id
    assert (run_of(reply), await episode.runs()) == (1, 1)


async def test_after_a_resume_the_same_again_is_a_new_call(episode: Episode) -> None:
    """The agent calls the same tool with the same input once more, and it must run."""
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", milliseconds=200)
        await connection.until(b"event: task_id\r\ndata: ")
        task_id = (await connection.until(b"\r\n")).decode().strip()
    assert run_of(await episode.call(task_id, text="x", milliseconds=200)) == 1
    assert run_of(await episode.call(text="x", milliseconds=200)) == 2


@pytest.mark.parametrize("milliseconds", [0, 150])
async def test_after_the_whole_answer_the_same_again_is_a_new_call(episode: Episode, milliseconds: int) -> None:
    """Also when the connection is cut right after the last byte, which was written."""
    assert run_of(await episode.call(text="x", milliseconds=milliseconds)) == 1
    assert run_of(await episode.call(text="x", milliseconds=milliseconds)) == 2
    assert await episode.runs() == 2


async def test_while_the_first_is_still_connected_the_same_is_a_new_call(episode: Episode) -> None:
    async with episode.server.connect() as first:
        await episode.post(first, text="x", milliseconds=300)
        await first.until(b"event: task_id\r\n")
        second = await episode.call(text="x", milliseconds=300)
        assert run_of(second) == 2
        await first.until(b'"run":1')


async def test_another_input_does_not_attach(episode: Episode) -> None:
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", milliseconds=100)
        await connection.until(b"event: task_id\r\n")
    assert run_of(await episode.call(text="y", milliseconds=100)) == 2
    assert run_of(await episode.call(text="x", milliseconds=100)) == 1


@pytest.mark.parametrize("milliseconds", [0, 100], ids=["one response", "stream"])
async def test_cut_in_the_middle_of_a_large_result(episode: Episode, milliseconds: int) -> None:
    """Its last byte was not written, so a repetition gets the whole result and nothing runs twice."""
    step: dict[str, Any] = {"text": " é", "size": 4_000_000, "milliseconds": milliseconds}
    async with episode.server.connect() as connection:
        await episode.post(connection, **step)
        await connection.until(b"event: chunk\r\n")
    await asyncio.sleep(0.1)
    client = Client(url=episode.server.url)
    reply = await client.call(episode.sid, "step", step)
    assert reply.text == " é" * 4_000_000
    assert run_of(reply) == 1
    await client.close()


async def test_cut_many_times_it_runs_once(episode: Episode) -> None:
    for pause in (0.0, 0.01, 0.06, 0.1, 0.15):
        async with episode.server.connect() as connection:
            await episode.post(connection, text="x", milliseconds=700)
            await asyncio.sleep(pause + 0.02)
        await asyncio.sleep(0.02)
    reply = await episode.call(text="x", milliseconds=700)
    assert (run_of(reply), await episode.runs()) == (1, 1)


@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["at once", "later"])
async def test_inputs_that_only_python_takes_for_equal_do_not_attach(episode: Episode, pause: float) -> None:
    """``1``, ``1.0`` and ``true`` are three inputs, although equal in Python; a repetition is the same JSON."""
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", size=1, milliseconds=200)
        await asyncio.sleep(0.01)
    await asyncio.sleep(pause)
    assert run_of(await episode.call(text="x", size=True, milliseconds=200)) == 2
    assert run_of(await episode.call(text="x", size=1, milliseconds=200.0)) == 3
    assert run_of(await episode.call(text="x", size=1, milliseconds=200)) == 1


class Lost:
    """A request that has lost its connection and still waits for the result."""

    disconnected = True


async def test_a_loss_that_its_request_has_not_noticed_attaches_the_same_json_only() -> None:
    ledger = CallLedger(ResultStore(Settings(), ThreadPool("test", 1)), CallSlots(total=9, per_session=9))
    call, _ = ledger.start("run", {"size": 1}, None)
    ledger.begin_response(call, Lost())
    assert [ledger.start("run", {"size": size}, None)[1] for size in (True, 1.0, 1)] == [True, True, False]


async def test_with_a_key_it_runs_once_whenever_it_is_cut(episode: Episode) -> None:
    """A key attaches also where no loss was noticed: after the whole response, and beside a connected request."""
    step: dict[str, Any] = {"text": "x", "milliseconds": 300}
    async with episode.server.connect() as connection:
        await episode.post(connection, key="k", **step)
        await asyncio.sleep(0.01)
    async with episode.server.connect() as connection:
        await episode.post(connection, key="k", **step)
        await connection.until(b"event: task_id\r\n")
        beside = await episode.call(key="k", **step)
    after = await episode.call(key="k", **step)
    assert beside.events == after.events
    assert (run_of(after), await episode.runs()) == (1, 1)


async def test_an_unread_result_is_still_there_by_its_task_id(episode: Episode) -> None:
    """Byte for byte, any number of times."""
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", size=100_000, milliseconds=100)
        await connection.until(b"event: task_id\r\ndata: ")
        task_id = (await connection.until(b"\r\n")).decode().strip()
    await asyncio.sleep(0.2)
    bodies: list[bytes] = []
    for _ in range(3):
        async with episode.server.connect() as connection:
            await episode.post(connection, task_id, text="x")
            bodies.append((await connection.response()).body)
    assert bodies[0] == bodies[1] == bodies[2]
    assert Reply(parse_events(bodies[0])).text == "x" * 100_000
    assert await episode.runs() == 1


async def test_another_session_does_not_attach(episode: Episode) -> None:
    other = await Episode(episode.server).open()
    async with episode.server.connect() as connection:
        await episode.post(connection, text="x", milliseconds=200)
        await connection.until(b"event: task_id\r\ndata: ")
        task_id = (await connection.until(b"\r\n")).decode().strip()
    assert run_of(await other.call(text="x", milliseconds=200)) == 1
    assert (await other.call(task_id, text="x", milliseconds=200)).events == [("error", "unknown task_id")]
    assert (await episode.runs(), await other.runs()) == (1, 1)
