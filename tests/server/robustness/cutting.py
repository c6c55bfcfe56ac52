"""A proxy that loses connections at a chosen byte.

It forwards one request per connection and cuts it where a header of the request says: after a number of bytes of the
request, so that the server receives only these, or of the response, so that the client does. The connection ends
orderly or by a reset, as both occur. A repeated request with the same header is forwarded whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

__all__ = ["UNCUT", "Cut", "Partial", "call_request", "cutting", "each", "send"]

#: Seconds after which a request counts as hung.
PATIENCE = 20.0

_PLAN = re.compile(rb"\r\nX-Cut: ([a-z]+) ([a-z]+) (\d+) ?(\S*)\r\n")


class Cut(NamedTuple):
    """Position and kind of a loss: after a number of bytes in one direction, by an orderly end or a reset."""

    direction: Literal["request", "response"]
    manner: Literal["end", "reset"]
    after: int

    def header(self, name: str = "") -> str:
        """Return the value of `X-Cut`; `name` distinguishes requests that are cut at the same position."""
        return f"{self.direction:z>8} {self.manner:z>5} {self.after:06d} {name}"


#: A request with this `X-Cut` is forwarded whole.
UNCUT = "zzzznone zzzzz 000000 "


class Partial(NamedTuple):
    """The part of a response that arrived, and whether the connection was lost before its end."""

    raw: bytes
    cut: bool

    @property
    def status(self) -> int:
        """The status. Raises if it has not arrived."""
        return int(self.raw.split(b" ", 2)[1])

    @property
    def body(self) -> bytes:
        """The body as far as it arrived, with its chunks joined."""
        head, separator, rest = self.raw.partition(b"\r\n\r\n")
        if not separator:
            return b""
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        body = b""
        while rest:
            size, separator, rest = rest.partition(b"\r\n")
            if not separator or not int(size, 16):
                break
            body += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        return body


def call_request(sid: str, body: Mapping[str, Any], key: str | None = None, cut: Cut | None = None) -> bytes:
    """Return a `/call` as bytes; its length does not depend on the position of the cut."""
    content = json.dumps(body).encode()
    lines = [
        "POST /call HTTP/1.1",
        "Host: server",
        f"Content-Length: {len(content)}",
        "Connection: close",
        f"X-Session-ID: {sid}",
        f"X-Cut: {UNCUT if cut is None else cut.header()}",
    ]
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    return "\r\n".join([*lines, "", ""]).encode() + content


async def send(port: int, request: bytes) -> Partial:
    """Send a request over a connection of its own and read until its end or loss."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        raw = bytearray()
        cut = False
        try:
            writer.write(request)
            await writer.drain()
            while data := await reader.read(65536):
                raw += data
        except ConnectionError:
            cut = True
        finally:
            await _close(writer)
    return Partial(bytes(raw), cut)


@contextlib.asynccontextmanager
async def cutting(upstream: int) -> AsyncGenerator[int]:
    """Run a proxy in front of a port of this machine. Yield its own port."""
    connections: set[asyncio.Task[None]] = set()
    used: set[bytes] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_one_request(reader, writer, upstream, used))
        connections.add(task)
        task.add_done_callback(connections.discard)
        task.add_done_callback(lambda _: writer.close())  # also where it is cancelled before its first step

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=2**22, backlog=4096)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


async def _one_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: int, used: set[bytes]
) -> None:
    reset = False
    up_writer: asyncio.StreamWriter | None = None
    try:
        request = await _read_request(reader)
        plan = _PLAN.search(request)
        assert plan is not None
        direction, manner, after = plan[1].strip(b"z"), plan[2].strip(b"z"), int(plan[3])
        if plan[4]:
            if plan[4] in used:
                direction = manner = b"none"
            used.add(plan[4])
        reset = manner == b"reset"
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", upstream, limit=2**22)
        up_writer.write(request[:after] if direction == b"request" else request)
        await up_writer.drain()
        if direction != b"request":
            await _pass(up_reader, writer, after if direction == b"response" else None)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # one of the two ends closed first
    finally:
        # The server's side first, so that the server can know of the loss when a client retries at once.
        try:
            for end in (up_writer, writer):
                if end is not None:
                    await (_reset if reset else _close)(end)
        finally:  # where this is cancelled meanwhile
            for end in (up_writer, writer):
                if end is not None:
                    end.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
    return head + (await reader.readexactly(int(length[1])) if length is not None else b"")


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    passed = 0
    while limit is None or passed < limit:
        data = await reader.read(65536)
        if not data:
            return
        if limit is not None:
            data = data[: limit - passed]
        passed += len(data)
        writer.write(data)
        await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, after the written bytes have been sent."""
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await _close(writer)


async def each(count: int, work: Callable[[int], Awaitable[None]], at_once: int = 32) -> None:
    """Run `work` for each number, several at a time; raise the first failure with its number."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            try:
                await work(number)
            except BaseException as error:  # only adds the number: it is raised again
                error.add_note(f"at {number} of {count}")
                raise

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
