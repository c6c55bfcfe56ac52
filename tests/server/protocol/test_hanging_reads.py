"""`get_prompt`, `get_messages` and `list_task_tools` that never return: they have a limit, and so has the session."""

import asyncio
import threading
from typing import Any

import pytest

from ors_server import ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, said
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until

READS = {"get_prompt": "/prompt", "get_messages": "/messages", "list_task_tools": "/task_tools"}


class Noting(Echo):
    """Records the events of its session."""

    notes: list[str]

    @tool
    async def work(self) -> ToolOutput:
        self.notes.append("work")
        await asyncio.Event().wait()
        return said("worked", 1.0)

    async def teardown(self) -> None:
        self.notes.append("teardown")


def hanging(method: str, *, released: threading.Event | None = None) -> tuple[type[Noting], list[str]]:
    """Return an environment with a method that never returns: on a thread until it is released, else on the loop."""
    notes: list[str] = []

    async def hang(self: Any) -> Any:
        notes.append("read")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            notes.append("cancelled")
            raise

    def hang_on_thread(self: Any) -> Any:
        assert released is not None
        notes.append("read")
        released.wait(PATIENCE)
        notes.append("released")
        return []

    return type("Hanging", (Noting,), {"notes": notes, method: hang if released is None else hang_on_thread}), notes


async def lost(client: Client, sid: str) -> None:
    """Check that every later request of the session gets the same error."""
    for response in (
        await client.get("/prompt", sid),
        await client.get("/messages", sid),
        await client.get("/task_tools", sid),
        await client.call_response(sid, "echo", {"text": "x"}),
        await client.post("/ping", sid=sid),
    ):
        assert response.status_code == 410
        assert response.json()["detail"].startswith("Session lost: InfrastructureError: ")
        assert "ORS_SETUP_TIMEOUT" in response.json()["detail"]


@pytest.mark.parametrize("method", READS)
async def test_past_the_set_ups_time_it_is_an_infrastructure_error(serve: Serve, method: str) -> None:
    environment, notes = hanging(method)
    client = serve(environment, setup_timeout=0.2, agent="openreward-sdk/0.1.167")
    sid = await client.open()
    async with asyncio.timeout(PATIENCE / 2):
        response = await client.get(READS[method], sid)
    assert response.status_code == 503
    assert response.json()["detail"].startswith("InfrastructureError: ")
    assert method in response.json()["detail"]
    assert "ORS_SETUP_TIMEOUT" in response.json()["detail"]
    assert "x-backend-state" not in response.headers
    await lost(client, sid)
    await until(lambda: notes == ["read", "cancelled", "teardown"])


async def test_calls_beside_it_end_without_a_reward(serve: Serve) -> None:
    environment, notes = hanging("get_prompt")
    client = serve(environment, setup_timeout=0.3)
    sid = await client.open()
    working = asyncio.create_task(client.call(sid, "work"))
    await until(lambda: "work" in notes)
    assert (await client.get("/prompt", sid)).status_code == 503
    reply = await asyncio.wait_for(working, PATIENCE / 2)
    assert reply.names == ["task_id", "error"]
    assert "InfrastructureError" in reply.error
    await until(lambda: notes[-1] == "teardown")


@pytest.mark.parametrize("method", READS)
async def test_the_end_of_the_session_cancels_it(serve: Serve, method: str) -> None:
    """Two requests, from two clients."""
    environment, notes = hanging(method)
    client = serve(environment)
    sid = await client.open()
    readings = [asyncio.create_task(client.get(READS[method], sid)) for _ in range(2)]
    await until(lambda: notes.count("read") == 2)
    async with asyncio.timeout(PATIENCE / 2):
        await client.post("/delete", sid=sid)
        responses = await asyncio.gather(*readings)
    assert sorted(notes) == ["cancelled", "cancelled", "read", "read", "teardown"]
    assert notes[-1] == "teardown"
    for response in responses:
        assert (response.status_code, response.json()) == (410, {"detail": "Session deleted"})


async def test_on_a_thread_its_client_gets_an_error_and_teardown_waits(serve: Serve) -> None:
    released = threading.Event()
    environment, notes = hanging("get_prompt", released=released)
    client = serve(environment, setup_timeout=0.2, teardown_timeout=5)
    sid = await client.open()
    async with asyncio.timeout(PATIENCE / 2):
        assert (await client.get("/prompt", sid)).status_code == 503
    await lost(client, sid)
    await asyncio.sleep(0.1)
    assert notes == ["read"]
    released.set()
    await until(lambda: notes == ["read", "released", "teardown"])


async def test_at_shutdown_it_blocks_nothing(serve: Serve) -> None:
    environment, notes = hanging("get_prompt")
    client = serve(environment)
    sid = await client.open()
    reading = asyncio.create_task(client.get("/prompt", sid))
    await until(lambda: notes == ["read"])
    app: Any = client.app
    async with asyncio.timeout(PATIENCE / 2):
        await app.sessions.close()
        assert (await reading).status_code == 410
    assert notes == ["read", "cancelled", "teardown"]


async def test_a_disconnected_reader_does_not_keep_its_session_alive(serve: Serve) -> None:
    """Its session ends, whether the method goes on or stops when the reader disconnects."""
    environment, notes = hanging("get_prompt")
    client = serve(environment, session_ttl=0.2, setup_timeout=0.3)
    sid = await client.open()
    reading = asyncio.create_task(client.get("/prompt", sid))
    await until(lambda: notes == ["read"])
    reading.cancel()
    await until(lambda: "teardown" in notes)
    assert (await client.post("/ping", sid=sid)).status_code == 410


async def test_a_slow_read_within_the_limit_is_served(serve: Serve) -> None:
    class Slow(Echo):
        async def get_prompt(self) -> Any:
            await asyncio.sleep(0.1)
            return []

    client = serve(Slow, setup_timeout=1)
    sid = await client.open()
    assert (await client.get("/prompt", sid)).json() == []
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"
