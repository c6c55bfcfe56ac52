"""Fixtures: the servers for the real clients, each in a process of its own, and the clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import httpx
import pytest
import pytest_asyncio

from .clients import EVERY_CLIENT, OPENREWARD, ORS, Client, ClientKind, connected
from .idle import TIME_TO_LIVE, Observed, play_idle_sessions
from .process import RunningServer, serving


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> Generator[None]:
    """Turn off the query for newer clients at a package index, and proxies for the loopback device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
        patch.delenv("OPENREWARD_URL", raising=False)
        patch.delenv("ORS_API_KEY", raising=False)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1,localhost")
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, surroundings: None) -> Generator[RunningServer]:
    """Serve many environments, written for three SDKs."""
    with serving("all", tmp_path_factory.mktemp("servers") / "all", ORS_SETUP_WAIT="1") as running:
        yield running


@pytest.fixture(scope="session")
def lone_server(tmp_path_factory: pytest.TempPathFactory, surroundings: None) -> Generator[RunningServer]:
    """Serve one environment, with sessions that live for seconds."""
    with serving("one", tmp_path_factory.mktemp("servers") / "one", ORS_SESSION_TTL=str(TIME_TO_LIVE)) as running:
        yield running


@pytest.fixture(scope="session")
def doomed_server(tmp_path_factory: pytest.TempPathFactory, surroundings: None) -> Generator[RunningServer]:
    """Serve an environment; the server is stopped while clients use it."""
    with serving("one", tmp_path_factory.mktemp("servers") / "doomed") as running:
        yield running


@pytest.fixture(scope="session")
def idle_sessions(lone_server: RunningServer, doomed_server: RunningServer) -> Generator[Future[dict[str, Observed]]]:
    """Play sessions that wait for many seconds, on a thread with an event loop of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="idle") as thread:
        yield thread.submit(lambda: asyncio.run(play_idle_sessions(lone_server, doomed_server)))


@pytest.fixture(scope="session", autouse=True)
def early_start(request: pytest.FixtureRequest) -> None:
    """Start the idle sessions early, so that they wait while other tests run, if tests that need them run."""
    items = cast("list[pytest.Function]", request.session.items)
    if any("idle_sessions" in item.fixturenames for item in items):
        request.getfixturevalue("idle_sessions")


@pytest.fixture(params=EVERY_CLIENT)
def kind(request: pytest.FixtureRequest) -> ClientKind:
    return request.param


# Clients live as long as the session and are used by all its tests, as in a trainer; so all tests share its event loop.


@pytest_asyncio.fixture(params=EVERY_CLIENT, scope="session", loop_scope="session")
async def client(request: pytest.FixtureRequest, server: RunningServer) -> AsyncGenerator[Client]:
    """Return each of the real clients."""
    async with connected(request.param, server.url) as connection:
        yield connection


@pytest_asyncio.fixture(params=OPENREWARD, scope="session", loop_scope="session")
async def openreward_client(request: pytest.FixtureRequest, server: RunningServer) -> AsyncGenerator[Client]:
    """Return both clients of openreward, for features that ors-sdk does not have."""
    async with connected(request.param, server.url) as connection:
        yield connection


@pytest_asyncio.fixture(params=ORS, scope="session", loop_scope="session")
async def ors_client(request: pytest.FixtureRequest, server: RunningServer) -> AsyncGenerator[Client]:
    """Return both clients of ors-sdk, for features in which they differ."""
    async with connected(request.param, server.url) as connection:
        yield connection


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def http(server: RunningServer) -> AsyncGenerator[httpx.AsyncClient]:
    """Return a plain HTTP client, to inspect the state that a client's session left."""
    async with httpx.AsyncClient(base_url=server.url) as connection:
        yield connection
