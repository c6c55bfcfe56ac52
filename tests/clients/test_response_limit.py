"""Responses above a limit are cut: on sockets, through httpx, in this process, and in the endpoint of an evaluation."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from ors_benchmarks.rollout.engines.base import UrlEngine
from ors_clients.client.async_client import AsyncClient
from ors_clients.conformance.wire import LARGEST, Wire
from ors_clients.errors import ClientError, ConfigurationError, InfrastructureFailure, ResponseTooLarge
from ors_clients.evaluation.endpoints.endpoint import ChatEndpoint, EndpointFailed, Usage
from ors_clients.rollouts.sinks import RolloutsSink
from ors_clients.samplers import CompletionsSampler
from ors_clients.trainers.miles.chat_completions import complete
from ors_clients.training.process_state import close_all
from ors_clients.transport.asgi import ApplicationTransport
from ors_clients.transport.base import ConnectionLost, Headers, Request, Transport, response_limit
from ors_clients.transport.bounded_httpx import BoundedAsyncClient, BoundedClient
from ors_clients.transport.httpx_transport import HttpxTransport
from ors_clients.transport.sockets import SocketTransport

from ors_server.errors import OrsError
from tests.clients.test_client_sockets import listening

LIMIT = 1_000_000
_OK = b"HTTP/1.1 200 OK\r\n"
_EVENTS = _OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


#: Responses that do not end, piece by piece.
ENDLESS: dict[str, Callable[[], Iterable[bytes]]] = {
    "length": lambda: itertools.chain([_OK + b"Content-Length: 9000000000\r\n\r\n"], itertools.repeat(b"x" * 65536)),
    "chunks": lambda: itertools.chain(
        [_OK + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(_chunk(b"x" * 65536))
    ),
    "until the end": lambda: itertools.chain([_OK + b"\r\n"], itertools.repeat(b"x" * 65536)),
    "an error": lambda: itertools.chain(
        [b"HTTP/1.1 500 No\r\nContent-Length: 9000000000\r\n\r\n"], itertools.repeat(b"x" * 65536)
    ),
    "events": lambda: itertools.chain(
        [_EVENTS], itertools.repeat(_chunk(b"event: chunk\ndata: " + b"x" * 60000 + b"\n\n"))
    ),
    "one line": lambda: itertools.chain([_EVENTS], itertools.repeat(_chunk(b"data: " + b"x" * 60000))),
    "comments": lambda: itertools.chain([_EVENTS], itertools.repeat(_chunk(b": " + b"x" * 60000 + b"\n"))),
}


class Flood:
    """A server that answers every request with one of ``ENDLESS``; it counts what it has sent."""

    def __init__(self, pieces: Callable[[], Iterable[bytes]]) -> None:
        self.pieces = pieces
        self.sent = self.requests = 0
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            try:
                for piece in self.pieces():
                    writer.write(piece)
                    await writer.drain()
                    self.sent += len(piece)
            finally:
                self.ended.set()


def _request() -> Request:
    return Request("GET", "/x", (Headers([]),), limit=LIMIT)


@pytest.mark.combinations
@pytest.mark.parametrize("kind", ["sockets", "httpx"])
@pytest.mark.parametrize("form", ENDLESS)
async def test_an_endless_response_is_cut(kind: str, form: str) -> None:
    flood = Flood(ENDLESS[form])
    taken: list[bytes] = []
    async with listening(flood.serve) as port:
        url = f"http://127.0.0.1:{port}"
        transport: Transport = SocketTransport("127.0.0.1", port) if kind == "sockets" else HttpxTransport(url)
        with pytest.raises(ResponseTooLarge, match=r"more than 1000000 bytes.*ORS_RESPONSE_LIMIT"):
            await transport.exchange(_request(), taken.append)
        await asyncio.wait_for(flood.ended.wait(), 20)  # the connection is closed
        await transport.close()
    assert sum(map(len, taken)) <= LIMIT
    assert LIMIT // 2 < flood.sent < 100 * LIMIT


async def test_an_endless_head_is_cut() -> None:
    flood = Flood(lambda: itertools.chain([_OK], itertools.repeat(b"A: " + b"x" * 60000 + b"\r\n")))
    async with listening(flood.serve) as port:
        transport = SocketTransport("127.0.0.1", port)
        # The parser may have a limit of its own, which is a loss.
        with pytest.raises((ResponseTooLarge, ConnectionLost)):
            await transport.exchange(_request())
        await asyncio.wait_for(flood.ended.wait(), 20)
        await transport.close()


async def test_a_small_body_that_unpacks_to_a_large_one_is_cut() -> None:
    packed = gzip.compress(bytes(5 * LIMIT))
    assert len(packed) < LIMIT // 10
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with listening(Flood(lambda: [_OK + head + packed]).serve) as port:
        transport = HttpxTransport(f"http://127.0.0.1:{port}")
        with pytest.raises(ResponseTooLarge):
            await transport.exchange(_request())
        await transport.close()


@pytest.mark.parametrize("events", [False, True])
async def test_in_this_process_too(events: bool) -> None:
    async def application(
        scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        kind = b"text/event-stream" if events else b"text/plain"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})

    transport = ApplicationTransport(application)
    with pytest.raises(ResponseTooLarge):
        await transport.exchange(_request(), lambda piece: None)
    await transport.close()


@pytest.mark.parametrize("size", [LIMIT - 200, LIMIT - 100])
async def test_a_response_within_the_limit_is_whole(size: int) -> None:
    head = b"Content-Length: %d\r\n\r\n" % size
    async with listening(Flood(lambda: [_OK + head + b"x" * size]).serve) as port:
        transport = SocketTransport("127.0.0.1", port)
        assert len((await transport.exchange(_request())).body) == size
        await transport.close()


async def test_a_client_asks_once_and_raises_an_infrastructure_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_RESPONSE_LIMIT", str(LIMIT))
    flood = Flood(ENDLESS["chunks"])
    async with listening(flood.serve) as port, AsyncClient(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(InfrastructureFailure, match="more than 1000000 bytes"):
            await client.environments()
    assert flood.requests == 1


@pytest.mark.parametrize("text", ["many", "-1", "0", "1e9", "\u0661"])
def test_a_setting_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_RESPONSE_LIMIT", text)
    with pytest.raises(ConfigurationError, match="ORS_RESPONSE_LIMIT"):
        response_limit()
    monkeypatch.delenv("ORS_RESPONSE_LIMIT")
    assert response_limit() == 256 * 2**20


@pytest.mark.parametrize("form", ["length", "an error", "one line", "comments"])
async def test_an_endpoint_of_an_evaluation(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_RESPONSE_LIMIT", str(LIMIT))
    flood = Flood(ENDLESS[form])
    async with listening(flood.serve) as port:
        endpoint = ChatEndpoint(f"http://127.0.0.1:{port}", "m", stream=True)
        with pytest.raises(EndpointFailed, match="more than 1000000 bytes") as error:
            await endpoint.complete([{"role": "user", "content": "x"}], [], usage=Usage())
        assert error.value.kind == "answer too large"
        await endpoint.close()
    assert flood.requests == 1


# --- every other reader of a response ------------------------------------------------------------


async def _models(url: str) -> object:
    endpoint = ChatEndpoint(url, "m")
    try:
        return await endpoint.connect()
    finally:
        await endpoint.close()


async def _upload(url: str) -> object:
    sink = RolloutsSink(url, api_key="", first_pause=0.01)
    return await asyncio.to_thread(lambda: list(sink.upload([[b"{}"]])))


async def _miles(url: str) -> object:
    try:
        return await complete(f"{url}/v1/chat/completions", {})
    finally:
        await close_all()


async def _engine(url: str) -> object:
    sampler = CompletionsSampler(url, "m")
    try:
        return await sampler.requests.post("/v1/completions", {}, {})
    finally:
        await sampler.close()


async def _check(url: str) -> object:
    wire = Wire(url)
    try:
        answer = await wire.get("/health")
        assert len(answer.body) <= LARGEST
        return answer.problem
    finally:
        await wire.close()


#: What reads a response, and what it says of one without an end.
READERS: dict[str, tuple[Callable[[str], Awaitable[object]], str]] = {
    "an endpoint's models": (_models, "None"),
    "an upload": (_upload, "more than 1000000 bytes"),
    "Miles' session server": (_miles, "more than 1000000 bytes"),
    "an engine": (_engine, "more than 1000000 bytes"),
    "a benchmark's engine": (lambda url: UrlEngine.open(url, "m"), "more than 1000000 bytes"),
    "check": (_check, "over 8 MiB, cut"),
}


@pytest.mark.combinations
@pytest.mark.parametrize("form", ["length", "chunks", "an error"])
@pytest.mark.parametrize("reader", READERS)
async def test_every_reader_of_a_response_has_a_limit(reader: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_RESPONSE_LIMIT", str(LIMIT))
    read, said = READERS[reader]
    flood = Flood(ENDLESS[form])
    async with listening(flood.serve) as port:
        try:
            outcome = await asyncio.wait_for(read(f"http://127.0.0.1:{port}"), 20)
        except (ClientError, OrsError) as error:
            outcome = error
        await asyncio.wait_for(flood.ended.wait(), 20)
    assert said in str(outcome)
    assert (flood.requests, flood.sent < 100 * LIMIT) == (1, True)


async def test_a_bounded_client_unpacks_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_RESPONSE_LIMIT", str(LIMIT))
    for size in (LIMIT, LIMIT + 1):
        packed = gzip.compress(bytes(size))
        head = b"Content-Encoding: gzip\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(packed)
        async with listening(Flood(lambda whole=_OK + head + packed: [whole]).serve) as port:
            url = f"http://127.0.0.1:{port}"
            with contextlib.nullcontext() if size <= LIMIT else pytest.raises(ResponseTooLarge):
                async with BoundedAsyncClient() as client:
                    response = await client.get(url)
                    assert (response.status_code, len(response.content)) == (200, size)
            with (
                contextlib.nullcontext() if size <= LIMIT else pytest.raises(ResponseTooLarge),
                BoundedClient() as client,
            ):
                response = await asyncio.to_thread(client.get, url)
                assert (response.headers["content-type"], len(response.content)) == ("text/plain", size)
