"""Limits and idempotency keys: a request that starts nothing needs no capacity, and a refusal says why (503, 400)."""

import asyncio
from typing import Any

import httpx
import pytest

from ors_server import ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo, Number, said
from tests.support.http_client import Client
from tests.support.waiting import until


class Worker(Echo):
    """Tools that wait, and that count their runs."""

    proceed: asyncio.Event
    runs: list[int]

    @tool(concurrent=True)
    async def wait(self, params: Number) -> ToolOutput:
        self.runs.append(params.number)
        await self.proceed.wait()
        return said(f"run {len(self.runs)}")

    async def score_group(self, candidates: object) -> list[float]:
        await self.proceed.wait()
        return []


def worker() -> tuple[type[Worker], asyncio.Event, list[int]]:
    proceed, runs = asyncio.Event(), list[int]()
    return type("Worker", (Worker,), {"proceed": proceed, "runs": runs}), proceed, runs


def busy(response: httpx.Response, variable: str) -> None:
    """Check that a response makes every real client wait and retry."""
    assert response.status_code == 503, response.text
    assert variable in response.json()["detail"]
    assert response.headers["x-backend-state"] == "starting"
    assert int(response.headers["retry-after"]) > 0


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["max_calls", "max_session_calls"])
async def test_calls_above_a_limit_are_asked_to_wait(serve: Serve, setting: str) -> None:
    """Scoring a group counts as a call; reading does not."""
    environment, proceed, runs = worker()
    settings: Any = {setting: 1}
    client = serve(environment, **settings)
    sid = await client.open()
    running = asyncio.create_task(client.call(sid, "wait", {"number": 1}))
    await until(lambda: runs == [1])
    busy(await client.call_response(sid, "wait", {"number": 2}), f"ORS_{setting.upper()}")
    busy(await client.call_response(sid, "wait", {"number": 1}, key="k"), f"ORS_{setting.upper()}")
    busy(await client.post("/score_group", {"candidates": []}, sid), f"ORS_{setting.upper()}")
    assert (await client.get("/prompt", sid)).status_code == 200
    proceed.set()
    assert (await running).text == "run 1"
    # The refused call has left no trace: its key is free, and it has not run.
    assert (await client.call(sid, "echo", {"text": "x"}, key="k")).text == "x"
    assert runs == [1]


async def test_concurrent_requests_do_not_exceed_the_limit(serve: Serve) -> None:
    class Slow(Echo):
        async def setup(self) -> None:
            await asyncio.sleep(0.05)

    client = serve(Slow, max_sessions=3)
    responses = await asyncio.gather(*(client.create(f"s{number}") for number in range(10)))
    assert sorted(response.status_code for response in responses) == [200] * 3 + [503] * 7
    for response in responses:
        if response.status_code == 503:
            busy(response, "ORS_MAX_SESSIONS")


async def test_sessions_not_yet_bound_count(serve: Serve) -> None:
    class Other(Echo):
        pass

    client = serve(Echo, Other, max_sessions=1)
    await client.open(sid="unbound")
    busy(await client.create("s"), "ORS_MAX_SESSIONS")


async def test_an_ended_session_frees_its_slot(serve: Serve) -> None:
    client = serve(Echo, max_sessions=1, session_ttl=0.2)
    await client.open(sid="a")
    await client.post("/delete", sid="a")
    await client.open(sid="b")
    for _ in range(100):
        if (await client.create("c")).status_code == 200:
            break
        await asyncio.sleep(0.05)
    assert (await client.post("/ping", sid="b")).status_code == 410


# --- repeated requests ---------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["max_calls", "max_session_calls"])
async def test_a_repeated_request_needs_no_capacity(serve: Serve, setting: str) -> None:
    """For a running call, a finished call, a lost call, and by task id."""
    environment, proceed, runs = worker()
    settings: Any = {setting: 1}
    client = serve(environment, **settings)
    sid = await client.open()
    assert (await client.call(sid, "echo", {"text": "done"}, key="done")).text == "done"
    async with client.stream("/call", {"name": "wait", "input": {"number": 1}}, sid) as stream:
        task_id = (await stream.event()).data
    # The lost call goes on and occupies the only slot.
    assert (await client.call(sid, "echo", {"text": "done"}, key="done")).text == "done"
    busy(await client.call_response(sid, "echo", {"text": "x"}), f"ORS_{setting.upper()}")
    again = [
        asyncio.create_task(client.call(sid, "wait", {"number": 1})),
        asyncio.create_task(client.call(sid, "wait", {"number": 1}, task_id=task_id)),
    ]
    await asyncio.sleep(0.1)
    proceed.set()
    assert [(await call).task_id for call in again] == [task_id, task_id]
    assert runs == [1]


async def test_a_conflict_at_the_limit_is_still_a_conflict(serve: Serve) -> None:
    """A request that can never succeed gets a final error instead of a request to wait."""
    environment, _, runs = worker()
    client = serve(environment, max_session_calls=1)
    sid = await client.open()
    running = asyncio.create_task(client.call_response(sid, "wait", {"number": 1}, key="k"))
    await until(lambda: runs == [1])
    assert (await client.call_response(sid, "wait", {"number": 2}, key="k")).status_code == 409
    await client.post("/delete", sid=sid)
    await running


# --- keys ----------------------------------------------------------------------------------------


async def test_an_empty_key_counts_as_no_key(serve: Serve) -> None:
    """Clients that always send the header leave it empty where they have no key."""
    environment, proceed, runs = worker()
    proceed.set()
    client = serve(environment)
    sid = await client.open()
    for number in (1, 1, 2):
        response = await client.call_response(sid, "wait", {"number": number}, key="")
        assert response.status_code == 200, response.text
    assert runs == [1, 1, 2]


async def test_a_lost_call_with_an_empty_key_is_found_as_one_without(serve: Serve) -> None:
    environment, proceed, runs = worker()
    client = serve(environment)
    sid = await client.open()
    lost = asyncio.create_task(client.call(sid, "wait", {"number": 1}, key=""))
    await until(lambda: runs == [1])
    lost.cancel()
    await asyncio.wait((lost,))
    proceed.set()
    assert (await client.call(sid, "wait", {"number": 1})).text == "run 1"
    assert runs == [1]


@pytest.mark.parametrize("length", [256, 1000, 60_000])
async def test_a_long_key_is_400_and_runs_nothing(serve: Serve, length: int) -> None:
    """Keys are kept as long as their session."""
    environment, proceed, runs = worker()
    proceed.set()
    client = serve(environment)
    sid = await client.open()
    response = await client.call_response(sid, "wait", {"number": 1}, key="k" * length)
    assert response.status_code == 400
    assert "Idempotency-Key" in response.json()["detail"]
    assert "255" in response.json()["detail"]
    assert len(response.json()["detail"]) < 400
    assert runs == []


async def test_a_key_of_255_characters_is_accepted(serve: Serve) -> None:
    environment, proceed, runs = worker()
    proceed.set()
    client = serve(environment)
    sid = await client.open()
    for _ in range(2):
        assert (await client.call(sid, "wait", {"number": 1}, key="k" * 255)).text == "run 1"
    assert runs == [1]


async def test_a_key_is_ignored_while_resuming(serve: Serve) -> None:
    client: Client = serve(Echo)
    sid = await client.open()
    reply = await client.call(sid, "echo", {"text": "x"})
    assert (await client.call(sid, "echo", {"text": "x"}, task_id=reply.task_id, key="")).text == "x"
