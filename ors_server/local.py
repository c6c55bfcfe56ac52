"""One environment class served to this process alone: the interface of the clients' local mode.

    server = LocalServer(MyEnvironment)
    await server(scope, receive, send)      # any request of an episode, as an ASGI server would pass it
    await server.close()

Requests are answered by the server's own routes without the web framework around them: building the framework's
application takes longer than an episode.
"""

from __future__ import annotations

from typing import Any

from ors_server.http.exchange import Exchange
from ors_server.http.routes.episodes import EpisodeRoutes
from ors_server.http.routes.table import answer
from ors_server.server import Server
from ors_server.settings import Settings

__all__ = ["FOREVER", "LocalServer"]

#: Seconds of ten years: a client in the same process does not vanish, and does not need a stream kept open.
FOREVER = 10 * 365 * 86_400.0


class LocalServer:
    """An ASGI application with the routes of episodes (``/create``, ``/call``, …) on one environment class.

    Sessions do not expire. The other settings are those of a server (``ORS_CALL_TIMEOUT`` and so on). Raises
    ``DefinitionError`` and ``TypeError`` for a class that a server would refuse.
    """

    def __init__(self, environment: type[Any]) -> None:
        self._settings = Settings(session_ttl=FOREVER, stream_after=FOREVER, setup_wait_long=FOREVER)
        self._sessions = Server([environment], settings=self._settings).sessions
        self._routes = EpisodeRoutes(self._sessions).table

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request. Raises ``KeyError`` for a path that is not an episode's."""
        route = self._routes[scope["path"].lstrip("/")]
        await answer(route, Exchange(scope, receive, send, None), self._settings.return_errors)

    async def close(self) -> None:
        """Tear down the environments of all sessions, and end the threads that ran them."""
        await self._sessions.close()
