"""The client of a server, for programs with an event loop; ``sync_client`` is for programs without one.

    async with AsyncClient("http://host:8080") as client:
        async with client.environment("terminal").session(split="train", index=0) as session:
            prompt = await session.prompt()
            result = await session.call("bash", {"command": "ls"})

One client serves any number of sessions at once, also from several event loops one after another.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self, cast

from ors_clients.client.environments import AsyncEnvironment
from ors_clients.models import unexpected_response
from ors_clients.transport.base import Transport
from ors_clients.transport.connection import Connection

__all__ = ["RETRIES", "TIMEOUT", "AsyncClient"]

#: Seconds a request may take; the servers' own limit on set-ups, which prompts wait for.
TIMEOUT = 900.0
#: Tries after a first one that failed.
RETRIES = 5


class AsyncClient:
    """A client of one server.

    ``base_url`` is ``ORS_URL``, ``OPENREWARD_SESSION_URL`` or ``http://127.0.0.1:8080`` where it is not given, and
    ``api_key`` is ``ORS_API_KEY``, or ``OPENREWARD_API_KEY`` for the servers that it belongs to
    (``ors_clients.api_keys``). ``timeout`` is for everything but tool calls, which have their own: in seconds, with
    all waiting and ``retries``. ``transport="httpx"`` sends the requests through httpx, with its
    proxies, HTTP/2 and certificates (``ors_clients.transport.httpx_transport``); by default they go over own sockets.

    Raises ``ConfigurationError`` for an address or number that cannot be used. Nothing is sent yet.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        transport: Transport | Literal["httpx"] | None = None,
    ) -> None:
        self._connection = Connection(base_url, api_key, timeout, retries, transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    @property
    def url(self) -> str:
        """The server's address."""
        return self._connection.url

    async def environments(self) -> list[str]:
        """Return the names of the server's environments, its default first. Raises ``ServerUnavailable``."""
        names: Any = await self._connection.json("GET", "/list_environments")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("list[Any]", names)):
            raise unexpected_response("a list of environments")
        return cast("list[str]", names)

    def environment(self, name: str | None = None) -> AsyncEnvironment:
        """Return an environment by name, or the server's default one. Its first use refuses a wrong name."""
        return AsyncEnvironment(self._connection, name)

    async def close(self) -> None:
        """Close the connections. Sessions are ended by themselves (``AsyncSession.close``)."""
        await self._connection.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
