"""The rule of delivery behind a proxy: when a written response counts as delivered, and what a repetition means."""

import asyncio
import itertools
import socket
import struct
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.server.protocol.live import Connection, LiveServer, failure_of_live_server, live_server, request_bytes
from tests.support.events import Reply, parse_events

numbers = itertools.count()


class Upstream:
    """A proxy's connection to the server, which ends as the proxy chooses."""

    def __init__(self, connection: Connection, raw: socket.socket) -> None:
        self.connection = connection
        self._raw = raw

    async def call(
        self, sid: str, key: str | None = None, milliseconds: int = 0, size: int = 1, *, gateway: bool = False
    ) -> int:
        """Make the call whose repetition is looked at; return how often the tool had run."""
        body = {"name": "step", "input": {"text": "x", "milliseconds": milliseconds, "size": size}}
        headers = {} if key is None else {"Idempotency-Key": key}
        if gateway:
            headers["X-ORS-Gateway"] = ""
        await self.connection.send(request_bytes("POST", "/call", body, sid, headers))
        reply = Reply(parse_events((await self.connection.response()).body))
        assert reply.text == "x" * size
        return int(reply.output["metadata"]["run"])

    async def reset(self) -> None:
        """Reset the connection."""
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.connection.cut()
        await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Close the connection in an orderly way."""
        await self.connection.cut()
        await asyncio.sleep(0.05)


class Place:
    """A server and how a proxy connects to it."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Upstream]:
        raw = socket.create_connection(("127.0.0.1", self.server.port))
        reader, writer = await asyncio.open_connection(sock=raw, limit=2**20)
        connection = Connection(reader, writer)
        try:
            yield Upstream(connection, raw)
        finally:
            await connection.cut()

    async def open(self) -> str:
        """Open a session."""
        sid = f"delivery-{next(numbers)}"
        async with self.connect() as upstream:
            await upstream.connection.request("POST", "/create", {"split": "train", "index": 0}, sid)
            assert (await upstream.connection.response()).status == 200
        return sid


@pytest.fixture(scope="module")
def proxied() -> Generator[Place]:
    with live_server(listen="tcp:127.0.0.1:0") as server:
        yield Place(server)


@pytest.fixture(scope="module")
def behind_gateway() -> Generator[Place]:
    with live_server(listen="tcp:127.0.0.1:0", as_worker=True) as server:
        yield Place(server)


@pytest.fixture(scope="module")
def direct() -> Generator[Place]:
    with live_server() as server:
        yield Place(server)


@pytest.mark.parametrize("milliseconds", [0, 150], ids=["one response", "stream"])
@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])
async def test_a_reset_after_the_whole_response_makes_the_same_call_attach(
    proxied: Place, milliseconds: int, size: int
) -> None:
    """The proxy died with the response, which no client has."""
    sid = await proxied.open()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid, None, milliseconds, size) == 1
        await upstream.reset()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid, None, milliseconds, size) == 1
        assert await upstream.call(sid, None, milliseconds, size) == 2


async def test_for_a_client_that_is_connected_directly_the_written_response_is_delivered(direct: Place) -> None:
    sid = await direct.open()
    async with direct.connect() as upstream:
        assert await upstream.call(sid) == 1
        await upstream.reset()
    async with direct.connect() as upstream:
        assert await upstream.call(sid) == 2


async def test_the_next_request_on_the_connection_confirms_the_response_before(proxied: Place) -> None:
    sid, other = await proxied.open(), await proxied.open()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid) == 1
        assert await upstream.call(other) == 1
        await upstream.reset()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid) == 2
        assert await upstream.call(other) == 1


async def test_an_orderly_close_confirms_the_response(proxied: Place) -> None:
    sid = await proxied.open()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid) == 1
        await upstream.close()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid) == 2


async def test_a_gateway_confirms_before_it_closes_and_else_the_response_is_lost(behind_gateway: Place) -> None:
    """The end of its process closes its sockets as an orderly end would."""
    sid = await behind_gateway.open()
    async with behind_gateway.connect() as upstream:
        assert await upstream.call(sid, gateway=True) == 1
        await upstream.close()
    async with behind_gateway.connect() as upstream:
        assert await upstream.call(sid, gateway=True) == 1
        await upstream.connection.send(b"\r\n")
        await upstream.close()
    async with behind_gateway.connect() as upstream:
        assert await upstream.call(sid, gateway=True) == 2
        assert await upstream.call(sid) == 3


async def test_a_client_cannot_pass_for_a_gateway_through_another_proxy(proxied: Place) -> None:
    """Its header would make an orderly end of the proxy's connection a loss of another client's response."""
    sid = await proxied.open()
    for run in (1, 2, 3):
        async with proxied.connect() as upstream:
            assert await upstream.call(sid, gateway=True) == run
            await upstream.close()


async def test_on_another_connection_the_same_call_is_a_new_one_while_the_first_is_open(proxied: Place) -> None:
    """An agent that calls the same tool twice, through a pool of connections."""
    sid = await proxied.open()
    async with proxied.connect() as first, proxied.connect() as second:
        assert await first.call(sid) == 1
        assert await second.call(sid) == 2
        assert await first.call(sid) == 3


async def test_after_two_seconds_the_response_is_delivered_whatever_follows(proxied: Place) -> None:
    sid = await proxied.open()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid) == 1
        await asyncio.sleep(2.2)
        await upstream.reset()
    async with proxied.connect() as upstream:
        assert await upstream.call(sid) == 2


async def test_with_a_key_the_end_of_the_connection_means_nothing(proxied: Place) -> None:
    sid = await proxied.open()
    for end in (Upstream.reset, Upstream.close):
        async with proxied.connect() as upstream:
            assert await upstream.call(sid, "key") == 1
            await end(upstream)
    async with proxied.connect() as upstream:
        assert await upstream.call(sid, "another key") == 2


@pytest.mark.long
async def test_the_socket_of_a_killed_server_is_replaced_and_that_of_a_living_one_is_not() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.sock")
        with live_server(listen=f"unix:{path}") as server:
            assert f"Another server listens at {path}" in failure_of_live_server(listen=f"unix:{path}")
            assert path.is_socket()
            server.process.kill()
            server.process.wait()
        assert path.is_socket()
        with live_server(listen=f"unix:{path}"):
            reader, writer = await asyncio.open_unix_connection(str(path))
            connection = Connection(reader, writer)
            await connection.request("GET", "/health")
            assert (await connection.response()).status == 200
            await connection.cut()


async def test_a_unix_socket_serves_and_its_file_goes_with_the_server() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "server.sock")
        with live_server(listen=f"unix:{path}") as server:
            assert path.stat().st_mode & 0o777 == 0o600
            reader, writer = await asyncio.open_unix_connection(str(path))
            connection = Connection(reader, writer)
            await connection.request("GET", "/health")
            assert (await connection.response()).status == 200
            await connection.cut()
            server.stop()
        assert list(Path(folder).iterdir()) == []
