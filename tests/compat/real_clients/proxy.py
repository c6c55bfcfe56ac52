"""A TCP proxy between a client and the server that loses connections on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Request:
    """A request that was forwarded, and the forwarded part of its response."""

    path: str
    head: bytes
    body: bytearray = field(default_factory=bytearray)
    passed: bytearray = field(default_factory=bytearray)
    cut: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Cut:
    """Lose the connection of the next `times` requests to a path.

    The loss happens after a number of bytes of the response, or after the event that contains a marker.
    """

    path: str
    after: int | bytes
    times: int


class Proxy:
    """Forwards everything, except for the connections that a `Cut` loses."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._cuts: list[Cut] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self, path: str, after: int | bytes, times: int = 1) -> None:
        """Lose connections; `path` is the last segment, for example "call"."""
        self._cuts.append(Cut(path, after, times))

    def to(self, path: str) -> list[Request]:
        """Return the requests to a path so far, in order."""
        return [request for request in self.requests if _last(request.path) == path]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: writer.close())  # also where it is cancelled before its first step

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        current: list[Request] = []
        tasks = {
            asyncio.create_task(self._requests(reader, upstream_writer, current)),
            asyncio.create_task(self._responses(upstream_reader, writer, current)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Before any await, because `stop` may cancel this, too.
            for end in (writer, upstream_writer):
                end.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, current: list[Request]
    ) -> None:
        while data := await reader.read(65536):
            # Without pipelining, which no client here uses, the next request comes only after the response.
            if data.startswith((b"POST /", b"GET /")):
                head, _, body = data.partition(b"\r\n\r\n")
                request = Request(head.split(b" ", 2)[1].decode(), head, bytearray(body))
                self.requests.append(request)
                current[:] = [request]
            else:
                current[0].body += data
            writer.write(data)
            await writer.drain()

    async def _responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, current: list[Request]
    ) -> None:
        while data := await reader.read(65536):
            request = current[0]
            allowed = self._allowed(request, data)
            request.passed += data[:allowed]
            writer.write(data[:allowed])
            await writer.drain()
            if allowed < len(data):
                request.cut = True
                return

    def _allowed(self, request: Request, data: bytes) -> int:
        """Return how many bytes of `data` may pass. Fewer than its length end the connection and use up a cut."""
        for cut in self._cuts:
            if cut.times and cut.path == _last(request.path):
                if isinstance(cut.after, int):
                    allowed = cut.after - len(request.passed)
                else:
                    allowed = _end_of_event(bytes(request.passed) + data, cut.after) - len(request.passed)
                if allowed < len(data):
                    cut.times -= 1
                    return max(allowed, 0)
                return len(data)
        return len(data)


def _last(path: str) -> str:
    return path.partition("?")[0].rpartition("/")[2]


def _end_of_event(response: bytes, marker: bytes) -> int:
    start = response.find(marker)
    end = response.find(b"\r\n\r\n", start) if start >= 0 else -1
    return end + 4 if end >= 0 else len(response) + 1


@contextlib.asynccontextmanager
async def proxied(url: str) -> AsyncGenerator[Proxy]:
    """Run a proxy in front of a server."""
    proxy = Proxy(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
