"""Acceptor: many connections are accepted at a time, and a process that has run out of files recovers."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import cast

import pytest
import uvloop

from ors_server.http import acceptor as module
from ors_server.http.acceptor import Acceptor

COUNT = 200


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writing = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from it
        writing.write(b"hello")
        writing.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as made:
        yield made


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as made:
        yield made


def test_a_crowd_is_accepted_in_a_few_turns(listening: socket.socket, runner: asyncio.Runner) -> None:
    clients = [socket.create_connection(listening.getsockname(), timeout=10) for _ in range(COUNT)]

    async def serve() -> int:
        loop = asyncio.get_running_loop()
        greeted = 0

        class Counting(Greeting):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal greeted
                super().connection_made(transport)
                greeted += 1

        acceptor = Acceptor(listening, Counting, loop)
        turns = 0
        while greeted < COUNT and turns < 10 * COUNT:
            turns += 1
            await asyncio.sleep(0)
        acceptor.close()
        await acceptor.wait_closed()
        return turns

    turns = runner.run(serve())
    assert [client.recv(5) for client in clients] == [b"hello"] * COUNT
    # With one connection a turn it would be 200 and more.
    assert turns < COUNT / 4
    for client in clients:
        client.close()


def test_small_writes_are_not_delayed(listening: socket.socket, runner: asyncio.Runner) -> None:
    async def serve() -> int:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.BaseTransport] = loop.create_future()

        class Noting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set_result(transport)

        acceptor = Acceptor(listening, Noting, loop)
        with socket.create_connection(listening.getsockname()):
            transport = await made
            option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            transport.close()
        acceptor.close()
        acceptor.close()  # closing is idempotent
        return option

    assert runner.run(serve())


class Exhausted(socket.socket):
    """A listening socket of a process at its limit of open files, until the limit is lifted."""

    refusals = 3
    refused: asyncio.Event

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            self.refused.set()
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.parametrize("close_early", [False, True])
def test_out_of_files(
    runner: asyncio.Runner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    close_early: bool,
) -> None:
    monkeypatch.setattr(module, "REST", 0.01)
    with Exhausted() as exhausted:
        exhausted.bind(("127.0.0.1", 0))
        exhausted.listen()

        async def serve() -> bytes:
            loop = asyncio.get_running_loop()
            exhausted.refused = asyncio.Event()
            acceptor = Acceptor(exhausted, Greeting, loop)
            reader, writer = await asyncio.open_connection(*exhausted.getsockname())
            if close_early:
                await exhausted.refused.wait()
                acceptor.close()
                await asyncio.sleep(0.05)
            greeting = b"" if close_early else await reader.readexactly(5)
            acceptor.close()
            writer.close()
            return greeting

        assert runner.run(serve()) == (b"" if close_early else b"hello")
        assert exhausted.refusals == (2 if close_early else 0)
    assert "cannot accept connections" in caplog.text
