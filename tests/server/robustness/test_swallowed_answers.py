"""Number of runs of a call behind a proxy that swallows responses, as `docs/operation.md` states it.

With an `Idempotency-Key`, which `ors_clients` sends with every call, it runs once. Without a key, the server has
written its whole response and must treat a repetition as a new call: it runs twice, and the second run's reward counts.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Generator
from typing import Any

import aiohttp
import httpx
import pytest
from ors_clients.client.async_client import AsyncClient

from tests.server.robustness.cutting import call_request, each, send
from tests.server.robustness.swallowing import swallowing
from tests.support.events import Reply, parse_events
from tests.support.servers import Running, launched

#: Calls in a test, and the milliseconds before the response to a slow call starts, as a stream.
CALLS, SLOW = 40, 100
FORMS = [pytest.param(0, id="in one response"), pytest.param(SLOW, id="in a stream")]
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    variables = {"ORS_STREAM_AFTER": "0.02", "ORS_HEARTBEAT": "0.01"}
    with launched(
        "server.robustness.counting_server", tmp_path_factory.mktemp("swallowed"), variables=variables
    ) as running:
        yield running


async def opened(server: Running) -> str:
    """Open a session without the proxy. Return its id."""
    sid = f"session-{next(numbers)}"
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as http:
        created = await http.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})
        assert created.status_code == 200, created.text
    return sid


async def call(port: int, sid: str, text: str, milliseconds: int, key: str | None) -> bytes:
    """Make a call. Return the body of the response, empty where it was swallowed."""
    body = {"name": "count", "input": {"text": text, "milliseconds": milliseconds}}
    return (await send(port, call_request(sid, body, key))).body


async def runs_of(server: Running, sid: str) -> dict[str, int]:
    """Return the number of runs of the session's tool by text, as the server reports it."""
    answer = await send(server.port, call_request(sid, {"name": "runs_so_far", "input": {}}))
    return json.loads(Reply(parse_events(answer.body)).text)


@pytest.mark.parametrize("milliseconds", FORMS)
@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
async def test_a_repeated_call(server: Running, milliseconds: int, keyed: bool) -> None:
    sid = await opened(server)

    async with swallowing(server.port) as proxy:

        async def lose_and_retry(number: int) -> None:
            text, key = f"w{number}", f"key-{number}" if keyed else None
            assert await call(proxy.port, sid, text, milliseconds, key) == b""
            reply = Reply(parse_events(await call(proxy.port, sid, text, milliseconds, key)))
            run = 1 if keyed else 2
            assert (reply.output["metadata"], reply.output["reward"]) == ({"run": run}, 0.1 * run)

        await each(CALLS, lose_and_retry)
        assert len(proxy.swallowed) == CALLS
    assert await runs_of(server, sid) == {f"w{number}": 1 if keyed else 2 for number in range(CALLS)}


@pytest.mark.parametrize("milliseconds", FORMS)
async def test_our_client_sends_a_key_with_every_call(server: Running, milliseconds: int) -> None:
    async with (
        swallowing(server.port) as proxy,
        AsyncClient(proxy.url) as client,
        client.environment("counting").session(split="train", index=0) as session,
    ):

        async def count(number: int) -> None:
            result = await session.call("count", {"text": f"w{number}", "milliseconds": milliseconds})
            assert (result.metadata, result.reward) == ({"run": 1}, 0.1)

        await each(CALLS, count)
        assert await runs_of(server, session.id) == {f"w{number}": 1 for number in range(CALLS)}
    assert len(proxy.swallowed) == CALLS
    assert all(b"\r\nIdempotency-Key: " in request for request in proxy.swallowed)


@pytest.mark.parametrize("sdk", ["openreward.api._session.http", "ors.client._http"], ids=["openreward", "ors-sdk"])
async def test_the_sdks_clients_send_none(server: Running, sdk: str) -> None:
    """Their own code for calls: TRL's `OpenRewardSpec` calls through openreward's."""
    resumable_sse: Any = importlib.import_module(sdk).resumable_sse
    sid = await opened(server)
    async with swallowing(server.port) as proxy, aiohttp.ClientSession(proxy.url) as http:
        body = {"name": "count", "input": {"text": "w"}}
        result = await resumable_sse(http, "/call", None, json=body, sid=sid, backoff_base=0.005)
        assert result["output"]["metadata"] == {"run": 2}
        assert len(proxy.swallowed) == 1
    assert await runs_of(server, sid) == {"w": 2}
