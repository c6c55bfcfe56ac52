"""Episodes without a server: an environment class, a task, and a session to call its tools in.

    async with local(MyEnvironment, {"target": 7}) as session:
        print(await session.prompt())
        print(await session.call("guess", {"number": 7}))

For notebooks, tests and debuggers: everything runs in this process. The server's own code runs the environment, down to
the bytes of every response (``ors_server.local``). So tools are found, validated and refused by the same rules, rewards
are checked, the episode ends when a tool says so, and an environment written for either SDK runs as it would on a
server. Only the network is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ors_clients.client.async_client import RETRIES
from ors_clients.client.environments import create_body
from ors_clients.client.sessions import AsyncSession
from ors_clients.client.sync_client import Session
from ors_clients.models import Task
from ors_clients.transport.asgi import ApplicationTransport
from ors_clients.transport.base import Headers
from ors_clients.transport.connection import Connection
from ors_server.local import FOREVER, LocalServer

__all__ = ["LocalSession", "local", "local_sync"]


class LocalSession(AsyncSession):
    """One episode in this process, with the methods of ``AsyncSession``."""

    def __init__(self, environment: type[Any], choice: Mapping[str, Any], secrets: Mapping[str, str] | None) -> None:
        self._server = LocalServer(environment)
        self._application = ApplicationTransport(self._server)
        connection = Connection("http://local", "", FOREVER, RETRIES, self._application)
        super().__init__(connection, None, Headers([]), choice, secrets)

    async def close(self) -> None:
        """End the episode: tear the environment down and end its threads."""
        try:
            await super().close()
        finally:
            await asyncio.shield(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        await self._server.close()
        await self._application.close()


def local(
    environment: type[Any],
    task: Task | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    index: int | None = None,
    secrets: Mapping[str, str] | None = None,
) -> LocalSession:
    """Make a session on an environment class in this process; open and close it like a server's (``AsyncSession``).

    ``task`` is the environment's ``task_spec``; without it the class is asked for task ``index`` of ``split``. Raises
    ``DefinitionError`` for a class that a server would refuse, and ``ConfigurationError`` unless exactly one task is
    named. The server's environment variables (``ORS_CALL_TIMEOUT`` and so on) apply.
    """
    return LocalSession(environment, create_body(task, split, index), secrets)


def local_sync(
    environment: type[Any],
    task: Task | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    index: int | None = None,
    secrets: Mapping[str, str] | None = None,
) -> Session:
    """Make a session like ``local`` for programs without an event loop."""
    return Session(LocalSession(environment, create_body(task, split, index), secrets))
