"""A gateway's connections beside hostile clients; the worker behind it is a socket whose responses the test writes."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ors_server.cluster.gateway import downstream
from ors_server.cluster.gateway.downstream import Downstream
from ors_server.cluster.gateway.members.health import watch
from ors_server.cluster.gateway.members.placed_ids import Place, PlacedIds
from ors_server.cluster.gateway.members.workers import LOST_AFTER, Life, Member, Worker, Workers
from ors_server.cluster.gateway.proxy.framing import read_head
from ors_server.cluster.gateway.routing.auth import Guard
from ors_server.cluster.gateway.routing.router import Router
from ors_server.keys.keys import Keys
from tests.support.waiting import PATIENCE, until

#: The writers' transports are ``Any``: typeshed has no ``pause_reading`` for them.
Streams = tuple[asyncio.StreamReader, Any]
IDS = PlacedIds(b"k" * 32)
#: More than the gateway and the kernel's buffers of the connections around it hold.
LARGE = 16 * 2**20


@dataclass
class Between:
    """A gateway of this process, and the connections that it has opened to its only worker."""

    port: int
    worker: Worker
    downstreams: set[Downstream]
    accepted: asyncio.Queue[Streams]
    #: Both ends that the test holds: connections of clients, and those to the worker.
    held: list[Streams]

    async def client(self, sock: socket.socket | None = None) -> Streams:
        """Connect to the gateway, or take a socket that is connected."""
        streams = await asyncio.open_connection(sock=sock or socket.create_connection(("127.0.0.1", self.port)))
        self.held.append(streams)
        return streams

    async def upstream(self) -> Streams:
        """Return the gateway's next connection to the worker."""
        return await asyncio.wait_for(self.accepted.get(), PATIENCE)

    async def health(self) -> bytes:
        """Return the status line of a request on another connection."""
        reader, writer = await self.client()
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        return (await response(reader))[0]

    def transport(self) -> Any:
        """Return the transport of the only client's connection."""
        (connection,) = self.downstreams
        return connection._transport  # pyright: ignore[reportPrivateUsage] - its buffer is what the test measures


@pytest.fixture
async def between(tmp_path: Path) -> AsyncGenerator[Between]:
    accepted: asyncio.Queue[Streams] = asyncio.Queue()
    held: list[Streams] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append((reader, writer))
        accepted.put_nowait((reader, writer))

    path = tmp_path / "worker.sock"
    behind = await asyncio.start_unix_server(accept, path)
    workers = Workers()
    (worker,), _ = workers.replace([Member(0, 0, f"unix:{path}")])
    worker.report({"sessions": 0, "max_sessions": 9})
    downstreams: set[Downstream] = set()
    router = Router(workers, IDS)
    server = await asyncio.get_running_loop().create_server(
        lambda: Downstream(router, downstreams, 2**16, Guard(Keys(Path("/nonexistent")))), "127.0.0.1", 0
    )
    yield Between(server.sockets[0].getsockname()[1], worker, downstreams, accepted, held)
    server.close()
    behind.close()
    for _, writer in held:
        writer.transport.abort()
    worker.die()
    await until(lambda: not downstreams and not worker.connections)


async def within(work: Any, seconds: float = PATIENCE) -> Any:
    return await asyncio.wait_for(work, seconds)


async def response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the status line and the body of a response with a length."""
    head = await within(reader.readuntil(b"\r\n\r\n"))
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head.split(b"\r\n")[0], await within(reader.readexactly(length))


def plain(body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *lines, b"", body])


@pytest.mark.parametrize("framing", [b"Content-Length: 25", b"Transfer-Encoding: chunked"])
async def test_a_request_cannot_be_hidden_behind_connect(between: Between, framing: bytes) -> None:
    """The parser takes what follows the head of CONNECT for the next request, whatever length the head names."""
    reader, writer = await between.client()
    writer.write(b"CONNECT http://x/health HTTP/1.1\r\n" + framing + b"\r\n\r\nGET /_ors/state HTTP/1.1\r\n\r\n")
    assert (await response(reader))[0] == b"HTTP/1.1 400 Bad Request"
    assert between.accepted.empty()


async def test_an_answer_to_head_has_no_body(between: Between) -> None:
    reader, writer = await between.client()
    for target in (b"/ping", b"/_ors/state", b"/delete"):
        sid = IDS.make(Place(3, 3)).encode()
        writer.write(b"HEAD " + target + b" HTTP/1.1\r\nX-Session-ID: " + sid + b"\r\n\r\n")
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    for _ in range(3):
        await within(reader.readuntil(b"\r\n\r\n"))
    assert await response(reader) == (b"HTTP/1.1 200 OK", b'{"status":"ok"}')


async def test_a_bad_request_after_a_good_one_is_told_why(between: Between) -> None:
    reader, writer = await between.client()
    writer.write(b"GET /x HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    upstream.write(plain(b"one"))
    assert (await response(reader))[1] == b"one"
    writer.write(b"nonsense\r\n\r\n")
    assert (await response(reader))[0] == b"HTTP/1.1 400 Bad Request"


async def test_a_client_that_waits_for_100_continue_gets_it_from_a_gateway(between: Between) -> None:
    reader, writer = await between.client()
    writer.write(b"POST /create_session HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert await within(reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await response(reader))[0] == b"HTTP/1.1 200 OK"


async def respond_beyond_buffers(between: Between) -> tuple[Streams, Streams]:
    """Return a client that has not read its whole response, and the connection to the worker, which has sent it."""
    client = await between.client()
    client[1].transport.pause_reading()
    client[1].write(b"GET /x HTTP/1.1\r\n\r\n")
    reader, upstream = await between.upstream()
    await reader.readuntil(b"\r\n\r\n")
    upstream.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while between.transport().get_write_buffer_size() < 150_000:
        upstream.write(b"c350\r\n" + b"x" * 50_000 + b"\r\n")
        await asyncio.sleep(0.001)
    # With these bytes the gateway has more than it keeps, and pauses.
    upstream.write(b"1d4c0\r\n" + b"x" * 120_000 + b"\r\n0\r\n\r\n")
    await asyncio.sleep(0.05)
    return client, (reader, upstream)


async def test_a_connection_whose_response_was_read_slowly_serves_again(between: Between) -> None:
    (reader, writer), (upstream_reader, upstream) = await respond_beyond_buffers(between)
    writer.transport.resume_reading()
    last = b""
    while not last.endswith(b"\r\n0\r\n\r\n"):
        last = last[-7:] + await within(reader.read(2**16))
    await until(lambda: bool(between.worker.idle))
    writer.write(b"GET /y HTTP/1.1\r\n\r\n")
    await within(upstream_reader.readuntil(b"\r\n\r\n"))
    upstream.write(plain(b"two"))
    assert (await response(reader))[1] == b"two"


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n", b"Connection: keep-alive\r\nKeep-Alive: 5\r\n"])
async def test_a_worker_keeps_its_connection_open_for_a_client_of_http_1_0(between: Between, more: bytes) -> None:
    """It would otherwise count a response as delivered that the client has not got."""
    request = b"GET /x HTTP/1.0\r\nX-A: 1.0\r\n" + more + b"\r\n"
    reader, writer = await between.client()
    writer.write(request)
    upstream_reader, upstream = await between.upstream()
    for body in (b"one", b"two"):
        if body == b"two":
            reader, writer = await between.client()
            writer.write(request)
        head = await within(upstream_reader.readuntil(b"\r\n\r\n"))
        assert head.startswith(b"GET /x HTTP/1.1\r\n")
        assert b"\r\nX-A: 1.0\r\n" in head
        assert b"onnection" not in head
        upstream.write(plain(body, b"connection: keep-alive"))
        answer = await within(reader.read())
        assert answer.endswith(b"\r\n\r\n" + body)
        assert b"\r\nconnection: close\r\n" in answer
        assert b"keep-alive" not in answer
    # A client that has gone with its response unread leaves it unconfirmed.
    _, writer = await between.client()
    writer.write(b"GET /x HTTP/1.0\r\n\r\n")
    await within(upstream_reader.readuntil(b"\r\n\r\n"))
    upstream.write(plain(b"x" * LARGE))
    await asyncio.sleep(0.05)
    writer.transport.abort()
    with contextlib.suppress(ConnectionResetError):
        assert await within(upstream_reader.read()) == b""  # no blank line
    assert not between.worker.idle


async def test_a_connection_that_its_worker_closes_serves_no_other_request(between: Between) -> None:
    """A request that were sent on it would be lost with it."""
    reader, writer = await between.client()
    writer.write(b"GET /x HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    upstream.write(plain(b"one", b"connection: close"))
    assert (await response(reader))[1] == b"one"
    assert not between.worker.idle
    assert await within(upstream_reader.read()) == b"\r\n"  # the blank line confirms the response


async def test_a_response_that_is_left_in_the_gateway_counts_as_lost(between: Between) -> None:
    (_, writer), (upstream_reader, _) = await respond_beyond_buffers(between)
    writer.transport.abort()
    with contextlib.suppress(ConnectionResetError):
        assert await within(upstream_reader.read(), 0.5) == b""  # no blank line, which would confirm it
    assert not between.worker.idle


async def test_a_client_that_sends_and_never_reads_is_read_no_further(between: Between) -> None:
    sock = socket.create_connection(("127.0.0.1", between.port))
    _, writer = await between.client(sock)
    writer.transport.pause_reading()
    await until(lambda: bool(between.downstreams))
    for each in (sock, between.transport().get_extra_info("socket")):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            each.setsockopt(socket.SOL_SOCKET, option, 4096)
    writer.write(b"GET /_ors/x HTTP/1.1\r\n\r\n" * 20_000)  # the responses take 2.7 MB
    previous = -1
    while (size := between.transport().get_write_buffer_size()) != previous or not size:
        previous = size
        await asyncio.sleep(0.2)
    assert size < 2**19
    assert writer.transport.get_write_buffer_size() > 0, "all of it was read"
    assert (await between.health()) == b"HTTP/1.1 200 OK"


async def test_an_upload_waits_for_a_worker_that_does_not_read(between: Between) -> None:
    reader, writer = await between.client()
    writer.write(b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % LARGE + b"x" * LARGE)
    upstream_reader, upstream = await between.upstream()
    upstream.transport.pause_reading()
    await asyncio.sleep(0.3)
    (connection,) = between.worker.connections
    buffered = connection._transport.get_write_buffer_size()  # type: ignore[attr-defined]
    assert buffered < 2**20
    upstream.transport.resume_reading()
    head = await within(upstream_reader.readuntil(b"\r\n\r\n"))
    assert b"x-ors-gateway" in head
    await within(upstream_reader.readexactly(LARGE))
    upstream.write(plain(b"ok"))
    assert (await response(reader))[1] == b"ok"


async def test_a_refusal_reaches_a_client_that_is_still_sending(between: Between) -> None:
    reader, writer = await between.client()
    writer.write(b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % LARGE)
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    for part in range(16):
        writer.write(b"x" * 2**20)
        await within(writer.drain())
        if not part:
            await upstream_reader.readexactly(2**19)
            upstream.write(plain(b"too large").replace(b"200 OK", b"413 Content Too Large"))
            await asyncio.sleep(0.1)
    assert await response(reader) == (b"HTTP/1.1 413 Content Too Large", b"too large")
    assert not between.worker.connections  # the rest of the body would be read there as a request
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    assert await response(reader) == (b"HTTP/1.1 200 OK", b'{"status":"ok"}')


async def test_a_pipelined_request_waits_for_the_response_before_it(between: Between) -> None:
    reader, writer = await between.client()
    writer.write(b"GET /x HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\nGET /y HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(0.05)
    upstream.write(plain(b"x"))
    assert (await response(reader))[1] == b"x"
    assert (await response(reader))[1] == b'{"status":"ok"}'
    await within(upstream_reader.readuntil(b"\r\n\r\n"))
    upstream.write(plain(b"y"))
    assert (await response(reader))[1] == b"y"


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\ncontent-length: 1\r\n\r\na",
        plain(b"a") + b"and more",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2**19,
    ],
)
async def test_garbage_of_a_worker_ends_the_two_connections_alone(between: Between, garbage: bytes) -> None:
    reader, writer = await between.client()
    writer.write(b"GET /x HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    upstream.write(garbage)
    with contextlib.suppress(ConnectionResetError):
        assert b"and more" not in await within(reader.read())
    assert not between.worker.idle
    assert await between.health() == b"HTTP/1.1 200 OK"


async def test_bytes_of_a_worker_without_a_request_reach_no_client(between: Between) -> None:
    reader, writer = await between.client()
    writer.write(b"GET /x HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    upstream.write(plain(b"x"))
    await response(reader)
    upstream.write(plain(b"unasked"))
    await asyncio.sleep(0.05)
    writer.write(b"GET /y HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    upstream.write(plain(b"y"))
    assert (await response(reader))[1] == b"y"


async def test_a_client_that_goes_before_it_has_read_leaves_its_response_unconfirmed(between: Between) -> None:
    body = b"x" * LARGE
    reader, writer = await between.client()
    writer.write(b"GET /x HTTP/1.1\r\n\r\n")
    upstream_reader, upstream = await between.upstream()
    await upstream_reader.readuntil(b"\r\n\r\n")
    upstream.write(plain(body))
    await within(reader.readexactly(1000))
    writer.transport.abort()
    with contextlib.suppress(ConnectionResetError):
        assert await within(upstream_reader.read()) == b""  # no blank line
    assert not between.worker.idle


@pytest.mark.parametrize(
    ("error", "status", "life"),
    [
        (OSError(errno.EMFILE, "Too many open files"), b"503 Service Unavailable", Life.SERVING),
        (BlockingIOError(errno.EAGAIN, "the socket's queue is full"), b"503 Service Unavailable", Life.SERVING),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), b"410 Gone", Life.DEAD),
        (FileNotFoundError(errno.ENOENT, "no socket"), b"410 Gone", Life.DEAD),
    ],
)
async def test_a_worker_has_ended_only_where_no_process_listens(
    between: Between, monkeypatch: pytest.MonkeyPatch, error: OSError, status: bytes, life: Life
) -> None:
    async def fail(*_: object) -> None:
        raise error

    reader, writer = await between.client()
    monkeypatch.setattr(downstream, "connect", fail)
    writer.write(b"POST /ping HTTP/1.1\r\nX-Session-ID: " + IDS.make(Place(0, 0)).encode() + b"\r\n\r\n")
    assert (await response(reader))[0] == b"HTTP/1.1 " + status
    monkeypatch.setattr("ors_server.cluster.gateway.members.health.open_stream", fail)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(watch(between.worker), 0.3)
    assert between.worker.life is life


async def test_the_end_of_a_lease_ends_the_requests_under_way_and_a_report_renews_it(between: Between) -> None:
    """An environment has blocked its worker: it counts as dead until it reports again."""
    reader, writer = await between.client()
    ping = b"POST /ping HTTP/1.1\r\nX-Session-ID: " + IDS.make(Place(0, 0)).encode() + b"\r\n\r\n"
    writer.write(ping)
    await between.upstream()
    between.worker.pass_time(LOST_AFTER + 1)
    with contextlib.suppress(ConnectionResetError):
        assert await within(reader.read()) == b""
    reader, writer = await between.client()
    writer.write(ping)
    assert (await response(reader))[0] == b"HTTP/1.1 410 Gone"
    between.worker.report({"sessions": 1, "max_sessions": 9})
    writer.write(ping)
    _, upstream = await between.upstream()
    upstream.write(plain(b"alive"))
    assert (await response(reader))[1] == b"alive"


def test_ids_that_no_gateway_made_are_not_kept() -> None:
    workers = Workers()
    [worker], _ = workers.replace([Member(0, 1, "unix:/nowhere")])
    worker.report({"sessions": 0, "max_sessions": 1})
    router = Router(workers, IDS)
    sid = IDS.make(worker.place)
    for name in (sid, f"  {sid} ", sid.upper(), PlacedIds(b"another").make(worker.place), "x" * 36):
        router.route(read_head(f"POST /ping HTTP/1.1\r\nX-Session-ID: {name}\r\n\r\n".encode()))
    assert router.placed == {sid.encode(): worker}
