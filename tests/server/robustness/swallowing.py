"""A proxy that takes the whole answer to a call and passes none of it on: what a gateway does that ends meanwhile.

The server has written its last byte then and saw no connection break, so it cannot know that its client got nothing.
Each call is swallowed once; a request that comes again, and all others, are passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

__all__ = ["Swallowing", "swallowing"]

_CONNECTION = re.compile(rb"\r\nconnection: [^\r]*", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Swallowing:
    """What the proxy did. A request is told from others by its bytes, its key among them where it has one."""

    def __init__(self, upstream: int) -> None:
        self.port = 0
        #: Calls whose answer was swallowed, as they were sent.
        self.swallowed: list[bytes] = []
        self._upstream = upstream

    @property
    def url(self) -> str:
        """The proxy's address."""
        return f"http://127.0.0.1:{self.port}"

    async def one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request of a connection, then close it."""
        request = await _read_request(reader)
        answer = await self._answer(request)
        if request.split(b" ", 2)[1].endswith(b"/call") and request not in self.swallowed:
            self.swallowed.append(request)
        else:
            writer.write(answer)
            await writer.drain()

    async def _answer(self, request: bytes) -> bytes:
        """The whole of the server's answer, which it has ended in order."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            head, separator, body = request.partition(b"\r\n\r\n")
            writer.write(_CONNECTION.sub(b"", head) + b"\r\nConnection: close" + separator + body)
            return await reader.read()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def swallowing(upstream: int) -> AsyncGenerator[Swallowing]:
    """The proxy in front of a port of this machine."""
    proxy = Swallowing(upstream)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the client went first
                await proxy.one_request(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
    proxy.port = int(server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return head + (await reader.readexactly(int(length[1])) if length is not None else b"")
