"""One HTTP/1.1 connection to the server that is measured: as little client as can be.

An HTTP library costs more CPU a request than the servers under test, so the load would be bound by it. This sends
bytes that are already a request and puts the response together; one request at a time a connection. The time of a
response is taken when its last byte is read, not when the waiting task gets to run.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple, cast

__all__ = ["Address", "Connection", "ConnectionLost", "Failure", "Response", "ResponseReader"]


class Failure(Exception):
    """A request without a correct answer; the text says in which way and is the same for the same kind."""


class ConnectionLost(Failure):
    """The server closed the connection, or none could be made."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class Response(NamedTuple):
    """A complete response."""

    status: int
    body: bytes
    #: When the request was handed to the socket, by ``time.perf_counter``.
    started: float
    #: From then to the response's last byte.
    seconds: float


class ResponseReader:
    """Puts a response together from the pieces that arrive: with a Content-Length, or chunked."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._status = 0
        self._length = 0
        self._chunks: list[bytes] | None = None
        #: Whether the server closes the connection after the last response.
        self.closes = False

    def feed(self, data: bytes) -> tuple[int, bytes] | None:
        """Take a piece; returns status and body once they are complete.

        Raises ``Failure`` for bytes that are no response, or that follow one nobody asked for.
        """
        buffer = self._buffer
        buffer += data
        if not self._status:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            self._read_head(bytes(buffer[:end]).lower())
            del buffer[: end + 4]
        if self._chunks is None:
            if len(buffer) < self._length:
                return None
            body = bytes(buffer[: self._length])
            del buffer[: self._length]
        elif self._read_chunks(self._chunks):
            body = b"".join(self._chunks)
        else:
            return None
        if buffer:
            raise Failure("bytes after the response")
        status, self._status = self._status, 0
        return status, body

    def _read_head(self, head: bytes) -> None:
        if not head.startswith(b"http/1.1 "):
            raise Failure("not an HTTP/1.1 response")
        self._status = int(head[9:12])
        self.closes = b"\r\nconnection: close" in head
        self._chunks = [] if b"\r\ntransfer-encoding: chunked" in head else None
        at = head.find(b"\r\ncontent-length:")
        self._length = 0 if at < 0 else int(head[at + 17 :].split(b"\r\n", 1)[0])

    def _read_chunks(self, chunks: list[bytes]) -> bool:
        buffer, position = self._buffer, 0
        complete = False
        while (end := buffer.find(b"\r\n", position)) >= 0:
            size = int(bytes(buffer[position:end]).split(b";", 1)[0], 16)
            if len(buffer) < end + 4 + size:
                break
            chunks.append(bytes(buffer[end + 2 : end + 2 + size]))
            position = end + 4 + size
            if not size:
                complete = True
                break
        del buffer[:position]
        return complete


class Connection(asyncio.Protocol):
    """A keep-alive connection."""

    def __init__(self) -> None:
        self.open = False
        self._reader = ResponseReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Response] | None = None
        self._started = 0.0

    @classmethod
    async def to(cls, address: Address) -> Connection:
        """Connect. Raises ``ConnectionLost``."""
        try:
            _, connection = await asyncio.get_running_loop().create_connection(cls, *address)
        except OSError as error:
            raise ConnectionLost(f"no connection: {error.strerror}") from error
        return connection

    async def exchange(self, request: bytes) -> Response:
        """Send a request and wait for its response. Raises ``Failure``."""
        if not self.open or self._transport is None:
            raise ConnectionLost("connection lost")
        self._waiting = waiting = asyncio.get_running_loop().create_future()
        self._started = time.perf_counter()
        self._transport.write(request)
        return await waiting

    def close(self) -> None:
        """Close the connection."""
        self.open = False
        if self._transport is not None:
            self._transport.close()

    # --- called by the event loop ------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of ``asyncio.Protocol``."""
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Part of ``asyncio.Protocol``."""
        try:
            complete = self._reader.feed(data)
        except (Failure, ValueError) as error:  # ValueError: a length that is no number
            self._fail(error if isinstance(error, Failure) else Failure("a malformed response"))
            self.close()
            return
        if complete is None:
            return
        seconds = time.perf_counter() - self._started
        if self._reader.closes:
            self.close()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(Response(*complete, self._started, seconds))

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of ``asyncio.Protocol``."""
        self.open = False
        self._fail(ConnectionLost("connection lost"))

    def _fail(self, failure: Failure) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(failure)
