"""Section 9, "No limits": limits on sessions, calls and output; and accurate counts."""

import asyncio
import threading

import pytest

from ors_server import Blocks, InfrastructureFailure, TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, Number, said
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until


class Worker(Echo):
    """Calls with every outcome."""

    proceed: asyncio.Event

    @tool(concurrent=True)
    async def wait(self, params: Number) -> ToolOutput:
        await self.proceed.wait()
        return said("waited")

    @tool(concurrent=True)
    async def fail(self) -> ToolOutput:
        raise ValueError("no")

    @tool(concurrent=True)
    def lose(self) -> ToolOutput:
        raise InfrastructureFailure("The machine is gone")

    @tool(concurrent=True)
    async def hang(self) -> ToolOutput:
        await asyncio.Event().wait()
        return said()

    @tool(concurrent=True)
    def hang_blocking(self) -> ToolOutput:
        threading.Event().wait(0.5)
        return said()


def worker() -> tuple[type[Worker], asyncio.Event]:
    proceed = asyncio.Event()
    return type("Worker", (Worker,), {"proceed": proceed}), proceed


async def busy(client: Client, sid: str, number: int = 0) -> tuple[int, str]:
    """Make a call that waits. Return the status and the detail."""
    response = await client.call_response(sid, "wait", {"number": number})
    return response.status_code, response.text


async def test_sessions_above_the_limit_are_asked_to_wait(serve: Serve) -> None:
    """With the headers on which real clients retry; a session that exists is still served."""
    client = serve(Echo, max_sessions=2)
    await client.open(sid="a")
    await client.open(sid="b")
    response = await client.create("c")
    assert response.status_code == 503
    assert "ORS_MAX_SESSIONS" in response.json()["detail"]
    assert response.headers["x-backend-state"] == "starting"
    assert response.headers["retry-after"] == "2"
    assert (await client.create("b")).status_code == 200
    assert (await client.post("/ping", sid="c")).status_code == 404
    await client.post("/delete", sid="a")
    assert (await client.create("c")).status_code == 200


async def test_sessions_that_failed_are_not_counted(serve: Serve) -> None:
    client = serve(Echo, max_sessions=1)
    for number in range(3):
        assert (await client.create(f"s{number}", {"split": "train", "index": 99})).status_code == 400
    assert (await client.create("s")).status_code == 200


async def test_calls_of_one_session_above_the_limit_are_asked_to_wait(serve: Serve) -> None:
    environment, proceed = worker()
    client = serve(environment, max_session_calls=2)
    sid, other = await client.open(), await client.open()
    running = [asyncio.create_task(busy(client, sid, number)) for number in range(2)]
    await asyncio.sleep(0.05)
    response = await client.call_response(sid, "wait", {"number": 2})
    assert response.status_code == 503
    assert "ORS_MAX_SESSION_CALLS" in response.json()["detail"]
    assert response.headers["x-backend-state"] == "starting"
    assert (await client.call(other, "echo", {"text": "on"})).text == "on"
    proceed.set()
    assert [(await call)[0] for call in running] == [200, 200]
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


async def test_attaching_to_a_call_needs_no_capacity(serve: Serve) -> None:
    """A client that has lost its connection must be able to return to its own call."""
    environment, proceed = worker()
    client = serve(environment, max_session_calls=1)
    sid = await client.open()
    keyed = asyncio.create_task(client.call(sid, "wait", {"number": 0}, key="k"))
    await asyncio.sleep(0.1)
    again = asyncio.create_task(client.call_response(sid, "wait", {"number": 0}, key="k"))
    await asyncio.sleep(0.1)
    proceed.set()
    assert (await again).status_code == 200
    assert (await keyed).text == "waited"
    proceed.clear()
    async with client.stream("/call", {"name": "wait", "input": {"number": 1}}, sid) as stream:
        task_id = (await stream.event()).data
    lost = asyncio.create_task(client.call_response(sid, "wait", {"number": 1}))
    await asyncio.sleep(0.1)
    proceed.set()
    response = await lost
    assert response.status_code == 200
    assert task_id in response.text


async def test_calls_of_all_sessions_have_a_limit_and_every_end_counts(serve: Serve) -> None:
    """However a call ends, its slot is free again."""
    environment, proceed = worker()
    client = serve(environment, max_calls=2, call_timeout=0.3)
    for name in ("fail", "fail", "unknown", "lose", "lose", "win", "win", "hang", "hang_blocking"):
        await client.call(await client.open(), name)
    for name in ("hang", "hang_blocking", "hang"):
        sid = await client.open()
        call = asyncio.create_task(client.call_response(sid, name))
        await asyncio.sleep(0.02)
        await client.post("/delete", sid=sid)
        await call
    for _ in range(3):
        sid = await client.open()
        await asyncio.gather(client.call_response(sid, "hang"), client.post("/delete", sid=sid))
    await asyncio.sleep(0.6)  # until the blocked threads have ended
    sids = [await client.open() for _ in range(3)]
    running = [asyncio.create_task(busy(client, sid)) for sid in sids[:2]]
    await asyncio.sleep(0.05)
    response = await client.call_response(sids[2], "wait", {"number": 0})
    assert response.status_code == 503
    assert "ORS_MAX_CALLS" in response.json()["detail"]
    proceed.set()
    assert [(await call)[0] for call in running] == [200, 200]
    assert (await client.call(sids[2], "echo", {"text": "on"})).text == "on"


async def test_an_output_over_the_limit_is_an_error_that_names_it(serve: Serve) -> None:
    client = serve(Echo, max_output=10_000)
    sid = await client.open()
    assert len((await client.call(sid, "echo", {"text": "x" * 9_000})).text) == 9_000
    error = (await client.call(sid, "echo", {"text": "x" * 10_000})).error
    assert "'echo'" in error
    assert "10000" in error
    assert "ORS_MAX_OUTPUT" in error
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


# --- reading methods that never end --------------------------------------------------------------


class Thinking(Echo):
    """Its prompt never returns."""

    notes: list[str]

    async def get_prompt(self) -> Blocks:
        self.notes.append("prompt")
        await asyncio.Event().wait()
        return [TextBlock(text="never")]

    async def teardown(self) -> None:
        self.notes.append("teardown")


def thinking() -> tuple[type[Thinking], list[str]]:
    notes: list[str] = []
    return type("Thinking", (Thinking,), {"notes": notes}), notes


async def test_a_deletion_stops_a_hanging_prompt(serve: Serve) -> None:
    """Asynchronous code can be cancelled, as a call can; otherwise the instance would never be torn down."""
    environment, notes = thinking()
    client = serve(environment, teardown_timeout=0.3)
    sid = await client.open()
    reading = asyncio.create_task(client.get("/prompt", sid))
    await until(lambda: notes != [])
    await client.post("/delete", sid=sid)
    done, _ = await asyncio.wait((reading,), timeout=2)
    assert notes == ["prompt", "teardown"]
    assert done
    assert reading.result().status_code == 410


async def test_a_hanging_prompt_does_not_keep_its_session_forever(serve: Serve) -> None:
    """Running code keeps its session from being reaped, so a prompt needs a limit as a call does."""
    environment, notes = thinking()
    client = serve(environment, session_ttl=0.3, setup_timeout=0.3)
    sid = await client.open()
    async with asyncio.timeout(PATIENCE / 2):
        response = await client.get("/prompt", sid)
        assert response.status_code == 503
        assert "ORS_SETUP_TIMEOUT" in response.json()["detail"]
        await until(lambda: notes[-1] == "teardown")


# --- exceptions without a text -----------------------------------------------------------------


class Unspeakable(Exception):
    """An exception whose text raises in turn."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("mode", ["none", "exception", "stacktrace"])
async def test_an_exception_whose_text_raises_is_reported(serve: Serve, mode: str) -> None:
    class Failing(Echo):
        @tool
        async def fail(self) -> ToolOutput:
            raise Unspeakable

        def get_prompt(self) -> Blocks:
            raise Unspeakable

    client = serve(Failing, return_errors=mode)
    sid = await client.open()
    async with asyncio.timeout(PATIENCE / 2):
        error = (await client.call(sid, "fail")).error
    assert ("Unspeakable" in error) is (mode != "none")
    response = await client.get("/prompt", sid)
    assert response.status_code == 500
    assert ("Unspeakable" in response.json()["detail"]) is (mode != "none")
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"
