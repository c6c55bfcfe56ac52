"""Episodes without a server: an environment class, a task, and a session to call its tools in.

    async with local(MyEnvironment, {"target": 7}) as session:
        print(await session.prompt())
        print(await session.call("guess", {"number": 7}))

For notebooks, tests and debuggers: everything runs in this process. It is the server's own code that runs the
environment, down to the bytes of every answer, so that what holds here holds when it is served: tools are found,
validated and refused by the same rules, rewards are checked, the episode ends when a tool says so, and an environment
written for either SDK runs as it would there. Only the network is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ors_clients.client import RETRIES
from ors_clients.environments import create_body
from ors_clients.models import Task
from ors_clients.sessions import AsyncSession
from ors_clients.sync_client import Session
from ors_clients.transport.asgi import ApplicationTransport
from ors_clients.transport.base import Headers
from ors_clients.transport.connection import Connection
from ors_server.http.exchange import Exchange
from ors_server.http.routes.episodes import EpisodeRoutes
from ors_server.http.routes.table import answer
from ors_server.server import Server
from ors_server.settings import Settings

__all__ = ["LocalSession", "local", "local_sync"]

#: Longer than any process lives: nobody goes away from a local session, and nobody waits at the other end of a stream.
_FOREVER = 10 * 365 * 86_400.0


class LocalSession(AsyncSession):
    """One episode in this process, with everything that ``AsyncSession`` has."""

    def __init__(self, environment: type[Any], choice: Mapping[str, Any], secrets: Mapping[str, str] | None) -> None:
        settings = Settings(session_ttl=_FOREVER, stream_after=_FOREVER, setup_wait_long=_FOREVER)
        server = Server([environment], settings=settings)
        self._sessions = server.sessions
        # The server's own routes, without the web framework around them: to build that takes longer than an episode.
        routes = EpisodeRoutes(server.sessions).table

        async def application(scope: Any, receive: Any, send: Any) -> None:
            route = routes[scope["path"].lstrip("/")]
            await answer(route, Exchange(scope, receive, send, None), settings.return_errors)

        self._application = ApplicationTransport(application)
        connection = Connection("http://local", "", _FOREVER, RETRIES, self._application)
        super().__init__(connection, None, Headers([]), choice, secrets)

    async def close(self) -> None:
        """End the episode: tear the environment down and let its threads go."""
        try:
            await super().close()
        finally:
            await asyncio.shield(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        await self._sessions.close()
        await self._application.close()


def local(
    environment: type[Any],
    task: Task | Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    index: int | None = None,
    secrets: Mapping[str, str] | None = None,
) -> LocalSession:
    """A session on an environment class, in this process; to be opened and closed like a server's (``AsyncSession``).

    ``task`` is what the environment gets as its ``task_spec``; or the class is asked for task ``index`` of ``split``.
    Raises ``DefinitionError`` for a class that a server would refuse, and ``ConfigurationError`` unless there is
    exactly one task. Setting names of the server (``ORS_CALL_TIMEOUT`` and the like) hold here too.
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
    """``local`` for programs without an event loop."""
    return Session(LocalSession(environment, create_body(task, split, index), secrets))
