"""One HTTP/1.1 connection to the server that is measured, with the time each response took.

The load sends bytes that are already a request, over the connections of ``ors_clients``: 30 µs of CPU a call, where an
HTTP library takes more than the servers under test. A response's time ends when its last byte is read, not when the
waiting task gets to run.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from ors_clients.transport import base
from ors_clients.transport.http11 import HttpConnection, reason_of

__all__ = ["Address", "Connection", "ConnectionLost", "Failure", "Response"]

#: Bytes of a response; peers of a benchmark send far less.
_LARGEST = 2**28


class Failure(Exception):
    """A request without a correct answer; the text is the same for the same kind of failure."""


class ConnectionLost(Failure):
    """The server closed the connection or sent no HTTP, or no connection could be made."""


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int


class Response(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    #: When the request was handed to the socket, by ``time.monotonic``.
    started: float
    #: From then to the response's last byte.
    seconds: float


class Connection:
    """A keep-alive connection, for one request at a time."""

    def __init__(self) -> None:
        self.open = False
        self._http = HttpConnection(self)

    @classmethod
    async def to(cls, address: Address) -> Connection:
        """Connect. Raises ``ConnectionLost``."""
        connection = cls()
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection._http, *address)
        except OSError as error:
            raise ConnectionLost(f"no connection: {reason_of(error)}") from error
        return connection

    async def exchange(self, request: bytes) -> Response:
        """Send a request and wait for its response. Raises ``ConnectionLost``."""
        started = time.monotonic()
        try:
            response = await self._http.exchange(request, None, None, limit=_LARGEST)
        except BaseException as error:  # a cancellation too: the response may still come
            self.close()
            if isinstance(error, base.ConnectionLost):
                raise ConnectionLost(str(error)) from None
            raise
        self.open = self._http.usable
        return Response(response.status, response.body, started, self._http.last_byte - started)

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        self._http.abort()

    # --- called by the connection ------------------------------------------------------------

    def opened(self, connection: HttpConnection) -> None:
        """Part of ``Owner``."""
        self.open = True

    def lost(self, connection: HttpConnection) -> None:
        """Part of ``Owner``."""
        self.open = False
