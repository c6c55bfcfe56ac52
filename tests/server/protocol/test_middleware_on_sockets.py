"""A user's middleware sees every response, also those that our own server could write without going through ASGI."""

import asyncio
from collections.abc import Generator

import pytest

from tests.server.protocol.live import LiveServer, RawResponse, call, live_server, open_session
from tests.support.events import Reply, parse_events

TASK = {"split": "train", "index": 0}
ORIGIN = {"Origin": "http://page"}


@pytest.fixture(scope="module")
def server() -> Generator[LiveServer]:
    with live_server("cors", "function", heartbeat=0.05) as running:
        yield running


def stamped(response: RawResponse) -> None:
    """Check that both middlewares have seen the response."""
    assert response.headers.get("x-stamp") == "function", response
    assert response.headers.get("access-control-allow-origin") == "http://page", response


#: Requests in order, with their expected status.
REQUESTS: list[tuple[str, str, object, int]] = [
    ("GET", "/health", None, 200),
    ("GET", "/wire/tools", None, 200),
    ("GET", "/typo/tools", None, 404),
    ("POST", "/tasks", {"split": "train"}, 200),
    ("POST", "/task", {"split": "none", "index": 0}, 400),
    ("POST", "/create_session", None, 200),
    ("GET", "/prompt", None, 404),
    ("POST", "/create", TASK, 200),
    ("GET", "/prompt", None, 200),
    ("GET", "/wire/messages", None, 200),
    ("GET", "/task_tools", None, 200),
    ("POST", "/call", {"name": "count", "input": {}}, 200),
    ("POST", "/call", {"name": "step", "input": {"text": "x", "size": 300_000}}, 200),
    ("POST", "/call", {"name": "step", "input": {"milliseconds": 200}}, 200),
    ("POST", "/call", {"name": 3}, 422),
    ("POST", "/score_group", {"candidates": []}, 404),
    ("GET", "/openapi.json", None, 200),
    ("GET", "/nothing", None, 404),
    ("POST", "/ping", None, 200),
    ("POST", "/delete", None, 200),
    ("POST", "/ping", None, 410),
]


@pytest.mark.long
async def test_every_response_goes_through_both(server: LiveServer) -> None:
    await every_response(server, "x-stamp", "access-control-allow-origin")


async def test_every_response_goes_through_one() -> None:
    """All over one connection, which must be usable after each response."""
    with live_server("cors") as own:
        await every_response(own, "access-control-allow-origin")


async def every_response(server: LiveServer, *headers: str) -> None:
    async with server.connect() as connection:
        for method, path, body, status in REQUESTS:
            await connection.request(method, path, body, "all", ORIGIN)
            response = await connection.response()
            assert response.status == status, (path, response)
            assert [name for name in headers if name not in response.headers] == [], (path, response)


async def test_a_cors_preflight_is_answered(server: LiveServer) -> None:
    """The middleware answers a CORS preflight by itself."""
    async with server.connect() as connection:
        headers = {**ORIGIN, "Access-Control-Request-Method": "POST"}
        await connection.request("OPTIONS", "/call", headers=headers)
        response = await connection.response()
        assert response.status == 200
        assert "POST" in response.headers["access-control-allow-methods"]


async def test_results_are_whole_through_it(server: LiveServer) -> None:
    await open_session(server, "whole")
    async with server.connect() as connection:
        assert (await call(connection, "whole", "step", text="é", size=100_000)).text == "é" * 100_000
        await connection.request("POST", "/call", {"name": "step", "input": {"milliseconds": 400}}, "whole", ORIGIN)
        response = await connection.response()
        stamped(response)
        assert response.body.count(b": ping") >= 2
        assert Reply(parse_events(response.body)).names == ["task_id", "end"]


@pytest.mark.parametrize("milliseconds", [30, 300])
async def test_a_lost_call_is_attached_to_through_it(server: LiveServer, milliseconds: int) -> None:
    """Protocol 0.1: executed once, whether its stream has begun or not."""
    sid = f"lost {milliseconds}"
    await open_session(server, sid)
    async with server.connect() as connection:
        step = {"name": "step", "input": {"text": "x", "milliseconds": milliseconds}}
        await connection.request("POST", "/call", step, sid)
        await asyncio.sleep(milliseconds / 2000)
    await asyncio.sleep(0.5)
    async with server.connect() as connection:
        assert (await call(connection, sid, "step", text="x", milliseconds=milliseconds)).text == "x"
        assert (await call(connection, sid, "count")).text == "1"
