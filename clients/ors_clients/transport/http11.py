"""One HTTP/1.1 connection and the response that is being read from it.

It carries one request at a time, and is used again only after a complete response that the server did not say was its
last. ``ConnectionLost`` says whether the connection had been kept from an earlier request,
and whether any byte of the response had come.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

from ors_clients.errors import ResponseTooLarge
from ors_clients.transport.base import ConnectionLost, OutOfTime, Response

__all__ = ["HttpConnection", "reason_of"]

#: Seconds an open event stream may be silent; every server sends a comment each 10 to 15 s.
_SILENCE = 60.0
#: Probes that find a dead peer, in seconds: while a request waits for hours, nothing else would.
_PROBES = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class Owner(Protocol):
    """The owner of a connection, which is notified of its begin and end."""

    def opened(self, connection: HttpConnection) -> None: ...
    def lost(self, connection: HttpConnection) -> None: ...


class HttpConnection(asyncio.Protocol):
    """A connection. A caller that cancels a request on it has to ``abort`` it, because the response may still come."""

    __slots__ = (
        "_begin_by",
        "_body",
        "_complete",
        "_deadline",
        "_headers",
        "_limit",
        "_on_data",
        "_owner",
        "_parser",
        "_received",
        "_started",
        "_streams",
        "_transport",
        "_until_end",
        "_waiting",
        "kept",
        "last_byte",
        "usable",
    )

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Response] | None = None
        self._on_data: Callable[[bytes], None] | None = None
        #: Deadline of the request, and of its response's first byte, by ``time.monotonic``.
        self._deadline: float | None = None
        self._begin_by: float | None = None
        #: Bytes of the response so far, its head included, and those after which it is cut.
        self._received = self._limit = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        #: Whether any byte of the response has come, and whether its body goes to ``on_data``.
        self._started = self._streams = False
        #: Whether the body ends with the connection.
        self._until_end = False
        self._complete: Response | None = None
        #: Whether it has carried an earlier request, and can carry another.
        self.kept = False
        self.usable = False
        #: When the last byte came, by ``time.monotonic``.
        self.last_byte = time.monotonic()

    async def exchange(
        self,
        request: bytes,
        deadline: float | None,
        on_data: Callable[[bytes], None] | None,
        first_byte: float | None = None,
        *,
        limit: int,
    ) -> Response:
        """Send a request and wait for its response.

        Raises ``ConnectionLost``, ``OutOfTime``, and ``ResponseTooLarge`` after ``limit`` bytes.
        """
        if self._transport is None:
            raise ConnectionLost("the server closed the connection", sent=False, stale=True)
        self._waiting = asyncio.get_running_loop().create_future()
        self._on_data, self._deadline = on_data, deadline
        self._received, self._limit = 0, limit
        self._begin_by = None if first_byte is None else time.monotonic() + first_byte
        self._started = self._streams = self._until_end = False
        self._headers, self._body = {}, []
        self.usable = False
        self._transport.write(request)
        try:
            return await self._waiting
        finally:
            self._waiting = self._on_data = None

    def check(self, now: float) -> None:
        """Fail a request whose time is over."""
        if self._waiting is None:
            return
        if self._deadline is not None and now > self._deadline:
            self._fail(OutOfTime())
        elif self._begin_by is not None and now > self._begin_by and not self._started:
            self._fail(ConnectionLost("the response did not begin in time", sent=True))
        elif self._streams and now - self.last_byte > _SILENCE:
            self._fail(self._lost(f"the event stream was silent for {_SILENCE:.0f} s"))

    def abort(self) -> None:
        """Close it at once, whatever is on its way."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of ``asyncio.Protocol``."""
        self._transport = cast(asyncio.Transport, transport)
        self._owner.opened(self)
        sock: Any = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):  # not every system has these options
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, seconds in _PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)

    def data_received(self, data: bytes) -> None:
        """Part of ``asyncio.Protocol``."""
        self.last_byte = time.monotonic()
        if self._waiting is None or self._waiting.done():
            self.abort()  # unrequested bytes: the next response could not be found behind them
            return
        self._started = True
        self._received += len(data)
        if self._received > self._limit:
            self._body = []
            self._fail(ResponseTooLarge(self._limit))
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(self._lost(f"what came is not a HTTP response ({error})"))
            return
        if self._complete is not None:
            response, self._complete = self._complete, None
            self._waiting.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of ``asyncio.Protocol``."""
        self.usable = False
        self._transport = None
        if self._until_end and exc is None and self._waiting is not None and not self._waiting.done():
            self.on_message_complete()
            assert self._complete is not None
            self._waiting.set_result(self._complete)
        else:
            self._fail(self._lost("the connection was lost" + ("" if exc is None else f": {reason_of(exc)}")))
        self._parser = None  # it refers to this object
        self._owner.lost(self)

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(reason, sent=True, stale=self.kept and not self._started)

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    # --- httptools ---------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a callback of the parser."""
        self._headers[name.lower().decode("latin-1")] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Handle a callback of the parser."""
        status = self._parser.get_status_code()
        headers = self._headers
        self._streams = (
            self._on_data is not None
            and status == 200
            and headers.get("content-type", "").lower().startswith("text/event-stream")
        )
        self._until_end = status >= 200 and "content-length" not in headers and "transfer-encoding" not in headers

    def on_body(self, data: bytes) -> None:
        """Handle a callback of the parser."""
        if self._streams:
            assert self._on_data is not None
            self._on_data(data)
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """Handle a callback of the parser."""
        status = self._parser.get_status_code()
        if status < 200:  # an interim response
            self._headers = {}
            return
        body = self._body
        self._complete = Response(status, self._headers, body[0] if len(body) == 1 else b"".join(body))
        self.usable = self._transport is not None and self._parser.should_keep_alive() and not self._until_end


def reason_of(error: BaseException) -> str:
    """Return the text of a network error."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
