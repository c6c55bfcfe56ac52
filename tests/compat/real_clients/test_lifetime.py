"""Time limits of sessions: slow set-ups, pings, the time to live."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

import pytest

from .clients import EVERY_CLIENT, OPENREWARD, ClientKind, connected, with_every_client
from .idle import Observed
from .process import RunningServer
from .proxy import proxied

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_slow_set_up(server: RunningServer) -> None:
    """The client of openreward retries after 503s, ors-sdk waits for a single response; the set-up runs once."""

    async def play(kind: ClientKind) -> None:
        token = f"slow-set-up-{kind}"
        async with proxied(server.url) as proxy, connected(kind, proxy.url) as client:
            environment = await client.named("slowstart")
            task = client.task("slowstart", id="slow", number=3, seconds=3, token=token)
            started = time.monotonic()
            async with environment.session(task) as session:
                assert "guess" in [tool.name for tool in await session.tools()]
                assert server.journal.events(token) == ["constructed"]  # tools are listed while the set-up runs
                assert (await session.prompt())[0].text == "The task is slow."
                assert time.monotonic() - started >= 3
                assert (await session.call("guess", number=3)).metadata == {"guesses": 1}
            heads = [bytes(request.passed).split(b"\r\n\r\n")[0].lower() for request in proxy.to("prompt")]
            if client.is_openreward:
                assert heads[0].startswith(b"http/1.1 503")
                assert {b"x-backend-state: starting", b"retry-after: 2"} <= set(heads[0].split(b"\r\n"))
            else:
                assert len(heads) == 1
            assert heads[-1].startswith(b"http/1.1 200")
        assert server.journal.events(token) == ["constructed", "set up", "torn down"]

    await with_every_client(play)


async def test_a_call_during_a_slow_set_up(server: RunningServer) -> None:
    """The call's stream opens at once and waits for the set-up; the tool runs once."""

    async def play(kind: ClientKind) -> None:
        async with proxied(server.url) as proxy, connected(kind, proxy.url) as client:
            environment = await client.named("slowstart")
            task = client.task("slowstart", id="slow", number=3, seconds=1.5)
            async with environment.session(task) as session:
                call = asyncio.create_task(session.call("guess", number=3))
                await asyncio.sleep(0.7)
                assert b"event: task_id" in proxy.to("call")[0].passed
                output = await call
            assert (output.reward, output.metadata) == (1.0, {"guesses": 1})
            assert len(proxy.to("call")) == 1

    await with_every_client(play)


# --- the time to live ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["openreward-async", "openreward-sync", "ors-sdk-async"])
async def test_pings_keep_an_idle_session_alive(idle_sessions: Future[dict[str, Observed]], kind: ClientKind) -> None:
    """The client of openreward pings from a thread of its own, ors-sdk from its event loop."""
    observed = (await asyncio.wrap_future(idle_sessions))[f"idle {kind}"]

    assert observed == Observed("after", ["constructed", "set up"])


async def test_a_client_that_cannot_ping_loses_its_session(idle_sessions: Future[dict[str, Observed]]) -> None:
    """The synchronous client of ors-sdk runs its event loop only during calls."""
    observed = (await asyncio.wrap_future(idle_sessions))["idle ors-sdk-sync"]

    assert observed.events == ["constructed", "set up", "torn down"]
    assert "410, message='Session deleted: no request or ping for 12 s (ORS_SESSION_TTL)'" in observed.answer


async def test_a_session_without_pings_ends(idle_sessions: Future[dict[str, Observed]]) -> None:
    observed = (await asyncio.wrap_future(idle_sessions))["alone"]

    assert observed.events == ["constructed", "set up", "torn down"]
    assert observed.answer == '410 {"detail":"Session deleted: no request or ping for 12 s (ORS_SESSION_TTL)"}'


async def test_a_call_that_runs_keeps_its_session_alive(idle_sessions: Future[dict[str, Observed]]) -> None:
    observed = (await asyncio.wrap_future(idle_sessions))["busy"]

    assert observed.events == ["constructed", "set up", "work"]
    assert '"ok":true' in observed.answer
    # It took longer than the 10 s between the comments that keep a connection from being idle.
    assert "\n: ping" in observed.answer


# --- the server's end ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY_CLIENT)
async def test_a_server_that_is_stopped_under_a_call(
    idle_sessions: Future[dict[str, Observed]], kind: ClientKind
) -> None:
    """The client's stream ends with the reason, and the session is torn down."""
    observed = (await asyncio.wrap_future(idle_sessions))[f"stopped {kind}"]

    assert observed.events == ["constructed", "set up", "work", "torn down"]
    assert observed.answer.startswith("ToolFailed: " if kind in OPENREWARD else "RuntimeError: ")
    assert observed.answer.endswith("SessionGone: Session deleted: the server is shutting down")
