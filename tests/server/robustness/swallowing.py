"""A proxy that reads the whole response to a call and forwards nothing, like a gateway that ends meanwhile.

The server has then written its last byte without noticing a loss, so it cannot know that its client got nothing. Each
call is swallowed once; a repetition, and every other request, is forwarded.
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
    """The proxy's record. Requests are identified by their bytes, including an idempotency key."""

    def __init__(self, upstream: int) -> None:
        self.port = 0
        #: Requests whose response was swallowed.
        self.swallowed: list[bytes] = []
        self._upstream = upstream

    @property
    def url(self) -> str:
        """The proxy's URL."""
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
        """Return the server's whole response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            head, separator, body = request.partition(b"\r\n\r\n")
            writer.write(_CONNECTION.sub(b"", head) + b"\r\nConnection: close" + separator + body)
            return await reader.read()
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def swallowing(upstream: int) -> AsyncGenerator[Swallowing]:
    """Run the proxy in front of a port of this machine."""
    proxy = Swallowing(upstream)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # the client closed first
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
