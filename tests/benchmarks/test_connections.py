"""Responses put together from whatever pieces arrive, and connections that are lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from ors_benchmarks.harness.http11 import Address, Connection, ConnectionLost, Failure, ResponseReader

SIMPLE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nhel\r\n2;note=1\r\nlo\r\n0\r\n\r\n"
)
EMPTY = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.mark.parametrize(
    ("response", "status", "body"),
    [(SIMPLE, 200, b"hello"), (CHUNKED, 200, b"hello"), (EMPTY, 404, b"")],
    ids=["length", "chunked", "empty"],
)
def test_a_response_cut_anywhere(response: bytes, status: int, body: bytes) -> None:
    for cut in range(1, len(response)):
        reader = ResponseReader()
        assert reader.feed(response[:cut]) is None
        assert reader.feed(response[cut:]) == (status, body)


def test_a_response_byte_by_byte() -> None:
    reader = ResponseReader()
    outcomes = [reader.feed(bytes([byte])) for byte in CHUNKED]
    assert outcomes[-1] == (200, b"hello")
    assert not any(outcomes[:-1])


def test_responses_one_after_the_other() -> None:
    reader = ResponseReader()
    assert [reader.feed(response) for response in (SIMPLE, EMPTY, SIMPLE)] == [
        (200, b"hello"),
        (404, b""),
        (200, b"hello"),
    ]


def test_the_end_of_the_connection_is_noticed() -> None:
    reader = ResponseReader()
    reader.feed(SIMPLE)
    assert not reader.closes
    reader.feed(CHUNKED)
    assert reader.closes


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n\r\n", SIMPLE + b"more", CHUNKED + b"more"])
def test_bytes_that_are_no_response(data: bytes) -> None:
    with pytest.raises(Failure):
        ResponseReader().feed(data)


async def exchange_with(handler: Handler) -> bytes:
    """One request to a server that this handler makes."""
    handled = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await handler(reader, writer)
        writer.close()
        await writer.wait_closed()
        handled.set()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        connection = await Connection.to(Address(*server.sockets[0].getsockname()))
        try:
            response = await connection.exchange(b"GET / HTTP/1.1\r\n\r\n")
            assert 0 < response.seconds < 10
            return response.body
        finally:
            connection.close()
            await handled.wait()


async def test_an_answer() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SIMPLE)
        await writer.drain()

    assert await exchange_with(answer) == b"hello"


@pytest.mark.parametrize("sent", [b"", SIMPLE[:-1], CHUNKED[:-1]])
async def test_a_connection_that_ends_too_early(sent: bytes) -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)

    with pytest.raises(ConnectionLost):
        await exchange_with(cut)


async def test_a_length_that_is_no_number() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SIMPLE.replace(b"5", b"five"))
        await reader.read()  # until the client has had enough

    with pytest.raises(Failure, match="malformed"):
        await exchange_with(nonsense)


async def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionLost):
            await Connection.to(Address(*bound.getsockname()))
