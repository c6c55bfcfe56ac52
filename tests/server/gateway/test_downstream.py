"""A client's connection to a gateway: the bytes that reach its worker, and refusals."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from ors_server.cluster.gateway.downstream import Downstream
from ors_server.cluster.gateway.members.placed_ids import PlacedIds
from ors_server.cluster.gateway.members.workers import Member, Workers
from ors_server.cluster.gateway.proxy.framing import read_head
from ors_server.cluster.gateway.proxy.upstream import Upstream
from ors_server.cluster.gateway.routing.auth import Guard
from ors_server.cluster.gateway.routing.router import Router
from ors_server.cluster.gateway.routing.session_lookup import Search
from ors_server.keys.keys import Keys

RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Transport:
    """A socket that takes everything at once."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "192.0.2.1", 1

    def set_write_buffer_limits(self, **_: int) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Pair:
    """A connection of a client and one of a worker, joined by a gateway."""

    def __init__(self) -> None:
        workers, ids = self.workers, self.ids = Workers(), PlacedIds(b"key")
        [worker], _ = workers.replace([Member(0, 1, "unix:/nowhere")])
        worker.report({"sessions": 0, "max_sessions": 1})
        self.sid = ids.make(worker.place)
        self.client, self.worker = Transport(), Transport()
        self.downstream = Downstream(Router(workers, ids), set(), 65_536, Guard(Keys(Path("/nonexistent"))))
        self.downstream.connection_made(self.client)
        self.upstream = Upstream(worker)
        self.upstream.connection_made(self.worker)
        worker.idle.append(self.upstream)
        self.call()  # the first request of a connection carries a greeting
        self.worker.writes.clear()
        self.client.writes.clear()

    def request(self, body: bytes = b"{}") -> bytes:
        head = f"POST /call HTTP/1.1\r\nHost: here\r\nX-Session-ID: {self.sid}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def call(self) -> None:
        self.downstream.data_received(self.request())
        self.upstream.data_received(RESPONSE)


@pytest.fixture
async def pair() -> Pair:
    return Pair()


async def test_a_head_and_its_body_reach_the_worker_in_one_write(pair: Pair) -> None:
    pair.call()
    assert pair.worker.writes == [pair.request()]
    assert pair.client.writes == [RESPONSE]


async def test_two_requests_in_one_piece_wait_for_each_other(pair: Pair) -> None:
    pair.downstream.data_received(pair.request() * 2)
    assert pair.worker.writes == [pair.request()]


async def test_a_request_in_pieces_is_passed_on_as_it_comes(pair: Pair) -> None:
    whole = pair.request(b"x" * 100)
    for cut in (10, len(whole) - 60, len(whole) - 1):
        pair.worker.writes.clear()
        pair.downstream.data_received(whole[:cut])
        pair.downstream.data_received(whole[cut:])
        assert b"".join(pair.worker.writes) == whole
        pair.upstream.data_received(RESPONSE)


async def test_known_requests_reach_the_workers_of_their_sessions(pair: Pair) -> None:
    """Sessions take turns on one connection, with bodies of other lengths, and end up where their ids say."""
    pair.call()
    [other], _ = pair.workers.replace([Member(0, 1, "unix:/nowhere"), Member(1, 1, "unix:/elsewhere")])
    other.report({"sessions": 0, "max_sessions": 1})
    transport, upstream = Transport(), Upstream(other)
    upstream.connection_made(transport)
    other.idle.append(upstream)
    first, second = pair.sid, pair.ids.make(other.place)
    for number in range(5):
        pair.sid = second if number % 2 else first
        pair.downstream.data_received(pair.request(b"x" * 3**number))
        writes = transport.writes if number % 2 else pair.worker.writes
        assert writes[-1].endswith(pair.request(b"x" * 3**number).partition(b"\r\n")[2])
        (upstream if number % 2 else pair.upstream).data_received(RESPONSE)
    assert pair.client.writes == [RESPONSE] * 6


async def test_known_requests_of_a_dead_worker_are_gone(pair: Pair) -> None:
    pair.call()
    pair.upstream.worker.die()
    pair.downstream.data_received(pair.request())
    assert pair.client.writes[-1].startswith(b"HTTP/1.1 410 ")
    assert len(pair.worker.writes) == 1


async def test_a_known_request_in_pieces_or_with_the_next_one_is_read(pair: Pair) -> None:
    pair.call()
    whole = pair.request(b"x" * 10)
    for cut in range(1, len(whole)):
        pair.worker.writes.clear()
        pair.downstream.data_received(whole[:cut])
        pair.downstream.data_received(whole[cut:] + whole[:5])
        assert b"".join(pair.worker.writes) == whole
        pair.upstream.data_received(RESPONSE)
        pair.downstream.data_received(whole[5:])
        await asyncio.sleep(0)
        assert b"".join(pair.worker.writes) == whole * 2
        pair.upstream.data_received(RESPONSE)


async def test_a_known_response_in_pieces_is_passed_on_as_it_comes(pair: Pair) -> None:
    for cut in range(1, len(RESPONSE)):
        pair.client.writes.clear()
        pair.downstream.data_received(pair.request())
        pair.upstream.data_received(RESPONSE[:cut])
        pair.upstream.data_received(RESPONSE[cut:])
        assert b"".join(pair.client.writes) == RESPONSE
        assert pair.upstream.worker.idle == [pair.upstream]


async def test_wrong_keys_in_known_requests_are_counted(pair: Pair) -> None:
    """After a few an address has to wait, whether its requests were read or recognised."""
    refusal = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
    line = b"\r\nX-API-Key: wrong\r\n"
    for _ in range(20):
        pair.downstream.data_received(pair.request().replace(b"\r\n", line, 1))
        pair.upstream.data_received(refusal)
    pair.downstream.data_received(pair.request().replace(b"\r\n", line, 1))
    assert len(pair.worker.writes) == 20
    assert pair.client.writes[:20] == [refusal] * 20
    assert pair.client.writes[20].startswith(b"HTTP/1.1 429 ")


@pytest.mark.parametrize(
    "bad",
    [
        b"no HTTP\r\n\r\n",
        b"POST /call HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /call HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
    ],
    ids=["no HTTP", "two lengths", "no chunk"],
)
async def test_a_later_request_of_a_connection_is_refused_with_the_reason(pair: Pair, bad: bytes) -> None:
    pair.call()
    pair.downstream.data_received(bad)
    [_, refusal] = pair.client.writes
    assert refusal.startswith(b"HTTP/1.1 400 ")
    assert len(pair.worker.writes) == 1


async def test_what_clients_choose_fills_no_memory() -> None:
    """A gateway remembers paths and where sessions live: with 64 KiB each, they would be hundreds of megabytes."""
    workers = Workers()
    [worker], _ = workers.replace([Member(0, 1, "unix:/nowhere")])
    worker.report({"sessions": 0, "max_sessions": 1})
    router = Router(workers, PlacedIds(b"key"))
    tracemalloc.start()
    try:
        for number in range(300):
            long = f"{number}-{'x' * 30_000}"
            head = read_head(f"GET /{long} HTTP/1.1\r\n\r\n".encode())
            assert router.route(head) is worker
            router.note(Search(long, (), creates=False), worker)
        assert tracemalloc.get_traced_memory()[0] < 2**20
    finally:
        tracemalloc.stop()
