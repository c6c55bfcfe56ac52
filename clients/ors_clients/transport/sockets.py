"""HTTP/1.1 on sockets: a small client for the requests that trainers send by the million.

Why not httpx, which the rest of this project uses: the processor time of a call is taken from the trainer's own loop.
With 64 sessions that call at once on a machine of two cores, a call took 0.18 ms here, 1.1 ms through the
``openreward`` client, and 3.7 ms through this client with httpx beneath (one session: 0.28, 1.6 and 1.8 ms; 4,096
sessions: 0.20 and 3.9 ms, and minutes with httpx; docs/performance.md). ``ors-server bench clients`` measures them
again. httpx builds a request, a response and a chain of streams for each call, and looks through all its connections
for a free one; here a request is one ``write`` of bytes that were mostly encoded before, the connection used last is
the next one used, and httptools, which the server uses too, parses the response.

Invariants: a connection carries one request at a time; it is used again only after a complete response that the server
did not say was its last; one whose request was cancelled or timed out is closed, because its response may still come.
No request is ever sent twice here. Connections belong to the event loop they were made on: a pool for each loop.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from ors_containers.linux.limits.file_limit import raise_file_limit

from ors_clients.transport.base import ConnectionLost, OutOfTime, Request, Response
from ors_clients.transport.http11 import HttpConnection, reason_of

__all__ = ["SocketTransport"]

#: Seconds to connect in.
_CONNECT_LIMIT = 15.0
#: Seconds an idle connection is kept: less than the 60 s after which servers close theirs.
_KEEP = 50.0
#: Files left to the rest of the process when connections take all that it may open.
_SPARE_FILES = 256


class SocketTransport:
    """Requests to one server. ``tls`` replaces the default verification, for your own certificate authority."""

    threads = True

    def __init__(self, host: str, port: int, *, secure: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self._place = _Address(host, port, (tls or ssl.create_default_context()) if secure else None)
        shown = f"[{host}]" if ":" in host else host
        self._host_line = f"{shown}:{port}" if port != (443 if secure else 80) else shown
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = weakref.WeakKeyDictionary()

    async def exchange(self, request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        """Send a request and wait for its response (``Transport``)."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = _Pool(loop, self._place)
        head = f"{request.method} {request.target} HTTP/1.1\r\nHost: {self._host_line}\r\n".encode()
        parts = [head, *[headers.encoded for headers in request.headers]]
        if request.method == "POST":
            parts.append(b"Content-Length: %d\r\n" % len(request.body))
        parts += (b"\r\n", request.body)
        connection = pool.idle(request.longest_idle) or await pool.connect(request.longest_idle, request.deadline)
        try:
            response = await connection.exchange(
                b"".join(parts), request.deadline, on_data, request.first_byte, limit=request.limit
            )
        except BaseException:  # a cancellation too: the next request would read the rest of this response
            connection.abort()
            raise
        pool.give_back(connection)
        return response

    async def close(self) -> None:
        """Close this event loop's connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()


class _Address:
    """The address of a server."""

    __slots__ = ("host", "peer", "port", "tls")

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self.host = host
        self.port = port
        self.tls = tls
        #: The address that a connection was made to.
        self.peer: str | None = None

    async def connect(self, protocol: Callable[[], HttpConnection]) -> HttpConnection:
        """Connect. Raises what the event loop raises."""
        loop = asyncio.get_running_loop()
        try:
            transport, connection = await loop.create_connection(protocol, self.host, self.port, ssl=self.tls)
        except RuntimeError:
            # While the process exits, no thread can be started that looks a name up.
            if self.peer is None:
                raise OSError("the process is ending") from None
            name = None if self.tls is None else self.host
            transport, connection = await loop.create_connection(
                protocol, self.peer, self.port, ssl=self.tls, server_hostname=name
            )
        peer: Any = transport.get_extra_info("peername")
        if peer:
            self.peer = peer[0]
        return connection


class _Pool:
    """The connections of one event loop; the one that was used last is used first."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: _Address) -> None:
        self._loop = weakref.ref(loop)
        self._place = place
        self._idle: deque[HttpConnection] = deque()
        self._open: set[HttpConnection] = set()
        self._connecting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    # --- taking and giving back --------------------------------------------------------------

    def idle(self, longest: float) -> HttpConnection | None:
        """Return a kept connection that was used within so many seconds."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                continue
            if time.monotonic() - connection.last_byte > longest:
                self._idle.append(connection)  # those below it are older still
                return None
            connection.kept = True
            return connection
        return None

    def give_back(self, connection: HttpConnection) -> None:
        """Keep or close a connection whose response is complete."""
        if connection.usable:
            self._idle.append(connection)
            self._let_one_in()
        else:
            connection.abort()

    async def connect(self, longest_idle: float, deadline: float | None) -> HttpConnection:
        """Open a connection; at the limit, wait for a connection that another request has finished with.

        Raises ``ConnectionLost`` and ``OutOfTime``.
        """
        while len(self._open) + self._connecting >= _most_connections():
            if raise_file_limit():
                continue
            if self._idle:
                self._idle.popleft().abort()
                break
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await asyncio.wait_for(waiter, None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise OutOfTime from None
            connection = self.idle(min(longest_idle, _KEEP))
            if connection is not None:
                return connection
        limit = _CONNECT_LIMIT if deadline is None else min(_CONNECT_LIMIT, deadline - time.monotonic())
        self._connecting += 1
        try:
            async with asyncio.timeout(limit):
                connection = await self._place.connect(lambda: HttpConnection(self))
        except TimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise OutOfTime from None
            raise ConnectionLost(f"no connection within {limit:.0f} s", sent=False) from None
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise ConnectionLost(f"no connection: {reason_of(error)}", sent=False) from None
        finally:
            self._connecting -= 1
        if self._timer is None:
            self._watch()
        return connection

    def opened(self, connection: HttpConnection) -> None:
        """Note a connection that was opened."""
        self._open.add(connection)

    def lost(self, connection: HttpConnection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)
        self._let_one_in()

    def _let_one_in(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def close(self) -> None:
        """Close every connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop closes them in its next turn

    # --- time --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Check deadlines, silent streams and old connections once a second: one timer for all requests."""
        now = time.monotonic()
        for connection in list(self._open):
            connection.check(now)
        while self._idle and now - self._idle[0].last_byte > _KEEP:
            self._idle.popleft().abort()
        loop = self._loop()
        self._timer = loop.call_later(1.0, self._watch) if loop is not None and self._open else None


def _most_connections() -> int:
    """Return the most connections of a pool: nearly all files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else max(16, soft - _SPARE_FILES)
