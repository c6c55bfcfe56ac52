"""Fixtures of the protocol's tests: servers in this process, ended after each test, and a server in its own process."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

import pytest

from ors_server import Server, Settings
from tests.support.http_client import Client


class Serve(Protocol):
    """Start a server of environments in this process and get a client of it; keywords are settings."""

    def __call__(
        self, *environments: Any, agent: str = "test", aliases: Mapping[str, str] | None = None, **settings: Any
    ) -> Client: ...


@pytest.fixture
async def serve() -> AsyncGenerator[Serve]:
    """Serve without a lifespan. Afterwards, end the servers' sessions and fail if a task failed unnoticed."""
    servers: list[Server] = []
    clients: list[Client] = []
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))

    def start(
        *environments: Any, agent: str = "test", aliases: Mapping[str, str] | None = None, **settings: Any
    ) -> Client:
        server = Server(list(environments), settings=Settings(**settings), aliases=aliases)
        servers.append(server)
        clients.append(Client(server.app, agent=agent))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()
    for server in servers:
        await server.sessions.close()
    assert unseen == []
