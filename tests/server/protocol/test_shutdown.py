"""The address a server listens on, and its shutdown: requests it still answers, and signals that shorten the wait."""

import asyncio
import signal
import socket
import subprocess
import sys
import time

import pytest
from pydantic import ValidationError

from ors_server import Settings
from tests.server.protocol.live import Connection, LiveServer, live_server, open_session
from tests.support.http_client import Client
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

TASK = {"split": "train", "index": 0}


# --- the address ---------------------------------------------------------------------------------


def test_an_empty_host_is_refused() -> None:
    """The system would listen on every interface, which is not intended."""
    with pytest.raises(ValidationError, match="host"):
        Settings(host="")


def test_an_empty_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ORS_HOST=` in a file of variables."""
    monkeypatch.setenv("ORS_HOST", "")
    with pytest.raises(ValidationError, match="host"):
        Settings()


async def test_an_empty_host_to_run_is_refused() -> None:
    code = "from tests.server.protocol.live_server import *; Server([Wire]).run(host='', port=0)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=subprocess.PIPE, cwd=ROOT)
    try:
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE * 6)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode != 0
    assert b"host" in errors.lower()


async def test_an_ipv6_address_can_be_listened_on() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with live_server(host="::1") as server:
        assert server.url == f"http://[::1]:{server.port}"
        client = Client(url=server.url)
        async with client.http:
            sid = await client.open()
            assert (await client.call(sid, "count")).text == "0"
        with pytest.raises(OSError, match=r".+"):
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()


# --- the end -------------------------------------------------------------------------------------


async def blocked(server: LiveServer, name: str = "block") -> None:
    """Open a session with a call that blocks a thread."""
    await open_session(server, "blocked")
    async with server.connect() as connection:
        step = {"name": name, "input": {"milliseconds": 60_000} if name == "block" else {}}
        await connection.request("POST", "/call", step, "blocked")
        await connection.until(b"event: task_id\r\n")


async def stopping(connection: Connection) -> None:
    """Wait until the server has noticed the signal; a second one before that would be one with it."""
    status = 200
    while status == 200:
        await connection.request("GET", "/ready")
        status = (await connection.response()).status
    assert status == 503


async def gone(server: LiveServer, within: float) -> bool:
    """Return whether the process ends within this many seconds."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if server.process.poll() is not None:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_new_sessions_are_refused_while_it_stops_and_an_interrupt_cuts_the_wait() -> None:
    with live_server(shutdown_timeout=60, teardown_timeout=60) as server:
        async with server.connect() as connection:
            await connection.request("GET", "/ready")
            assert (await connection.response()).status == 200
            await blocked(server)
            server.process.send_signal(signal.SIGTERM)
            await stopping(connection)
            # A session opened now would be torn down at once, without its client's knowledge.
            await connection.request("POST", "/create", TASK, "late")
            response = await connection.response()
            assert response.status == 503, response
            assert "shutting down" in response.detail or "stopping" in response.detail
            await connection.request("GET", "/health")
            assert (await connection.response()).status == 200
        assert not await gone(server, 0.5), "the first signal did not wait for the call"
        server.process.send_signal(signal.SIGINT)
        assert await gone(server, 30), "the second signal was ignored"


async def test_a_tool_that_never_ends_is_not_waited_for_after_two_signals() -> None:
    """With no limit near, not even a default."""
    with live_server() as server:
        await blocked(server, "stuck")
        async with server.connect() as connection:
            await connection.request("GET", "/ready")
            assert (await connection.response()).status == 200
            server.process.send_signal(signal.SIGINT)
            await stopping(connection)
        assert not await gone(server, 0.3)
        server.process.send_signal(signal.SIGINT)
        assert await gone(server, 30)
