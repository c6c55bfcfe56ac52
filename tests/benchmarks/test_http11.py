"""Timed requests over one connection; ``tests/clients`` tests the HTTP parsing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from ors_benchmarks.harness.http11 import Address, Connection, ConnectionLost

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
SIMPLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nhel\r\n2;note=1\r\nlo\r\n0\r\n\r\n"
)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(handler: Handler) -> AsyncGenerator[Connection]:
    """Return a connection to a server with this handler."""
    handled = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handler(reader, writer)
            writer.close()
            await writer.wait_closed()
        handled.set()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        connection = await Connection.to(Address(*server.sockets[0].getsockname()))
        try:
            yield connection
        finally:
            connection.close()
            await handled.wait()


async def exchange_with(handler: Handler) -> bytes:
    """Send one request to a server with this handler."""
    async with connected(handler) as connection:
        response = await connection.exchange(REQUEST)
        assert 0 < response.seconds < 60
        return response.body


def sending(data: bytes) -> Handler:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)

    return send


@pytest.mark.parametrize("response", [SIMPLE, CHUNKED], ids=["length", "chunked"])
async def test_an_answer(response: bytes) -> None:
    assert await exchange_with(sending(response)) == b"hello"


@pytest.mark.parametrize("sent", [b"", SIMPLE[:-1], CHUNKED[:-1]])
async def test_a_connection_that_ends_too_early(sent: bytes) -> None:
    with pytest.raises(ConnectionLost):
        await exchange_with(sending(sent))


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH\r\n\r\n", SIMPLE + b"more", CHUNKED + b"more", SIMPLE.replace(b"5", b"five")]
)
async def test_bytes_that_are_not_a_response(data: bytes) -> None:
    with pytest.raises(ConnectionLost, match="HTTP"):
        await exchange_with(sending(data))


async def test_a_closing_connection_is_not_used_again() -> None:
    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for response in (SIMPLE, CHUNKED):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(response)
        await reader.read()  # until the client closes

    async with connected(answer_twice) as connection:
        assert connection.open
        await connection.exchange(REQUEST)
        assert connection.open
        await connection.exchange(REQUEST)
        assert not connection.open


async def test_no_server_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost):
            await Connection.to(Address(*bound.getsockname()))
