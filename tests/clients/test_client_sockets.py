"""HTTP/1.1 in valid and invalid forms: the transport on sockets against bytes that a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path

import httpx
import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.errors import CallOutcomeUnknown, ConfigurationError, ServerUnavailable
from ors_clients.transport.base import ConnectionLost, Headers, OutOfTime, Request, Transport
from ors_clients.transport.httpx_transport import HttpxTransport
from ors_clients.transport.sockets import SocketTransport

from tests.server.protocol.live import live_server

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]

GET = Request("GET", "/x", (Headers([("A", "b")]),))


class Wire:
    """A server that answers each request with the next of its byte strings; None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers: Sequence[bytes | None] = answers
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                answer, *self.answers = self.answers
                if answer is None:
                    break
                closes = answer.endswith(b"<close>")
                for piece in answer.removesuffix(b"<close>").split(b"<pause>"):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                if closes:
                    break


@contextlib.asynccontextmanager
async def listening(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(handler(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # the event loop closes leftovers in its next turns


@contextlib.asynccontextmanager
async def wired(wire: Wire) -> AsyncGenerator[SocketTransport]:
    async with listening(wire.serve) as port:
        transport = SocketTransport("127.0.0.1", port)
        try:
            yield transport
        finally:
            await transport.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nContent-<pause>Length: 2\r\n\r\nh<pause>i",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n<pause>1;e=f\r\ni\r\n0\r\nTrailer: t\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n<pause>HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\n\r\nhi<close>",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi<close>",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi<close>",
    ],
    ids=["plain", "pieces", "chunked", "continue", "hints", "until the end", "1.0", "last"],
)
async def test_responses_in_every_form(answer: bytes) -> None:
    wire = Wire(answer, OK)
    async with wired(wire) as transport:
        response = await transport.exchange(GET)
        assert (response.status, response.body) == (200, b"hi")
        assert (await transport.exchange(GET)).body == b"hi"
        assert wire.connections == (2 if answer.endswith(b"<close>") else 1)
    assert wire.requests[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nA: b\r\n" in wire.requests[0]


@pytest.mark.parametrize("status", [204, 304, 404])
async def test_responses_without_a_body(status: int) -> None:
    async with wired(Wire(b"HTTP/1.1 %d Some\r\nContent-Length: 0\r\n\r\n" % status)) as transport:
        response = await transport.exchange(GET)
        assert (response.status, response.body) == (status, b"")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"<close>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhi<close>",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n<close>",
        b"SSH-2.0-OpenSSH_9.2\r\n<close>",
        b"HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n<close>",
    ],
    ids=["closed", "nothing", "short", "unfinished chunks", "not HTTP", "nonsense length"],
)
async def test_an_invalid_response_is_a_loss(answer: bytes | None) -> None:
    async with wired(Wire(answer)) as transport:
        with pytest.raises(ConnectionLost) as lost:
            await transport.exchange(GET)
        assert (lost.value.sent, lost.value.stale) == (True, False)


async def test_no_server_listens() -> None:
    async with listening(Wire().serve) as port:
        pass
    with pytest.raises(ConnectionLost, match="no connection") as lost:
        await SocketTransport("127.0.0.1", port).exchange(GET)
    assert not lost.value.sent
    with pytest.raises(ConnectionLost) as lost:
        await SocketTransport("no-such-host.invalid", 80).exchange(GET)
    assert not lost.value.sent


async def test_a_kept_connection_that_the_server_closed(caplog: pytest.LogCaptureFixture) -> None:
    """Distinguished from a connection that was lost during a request."""
    wire = Wire(OK, None)
    async with wired(wire) as transport:
        await transport.exchange(GET)
        with pytest.raises(ConnectionLost) as lost:
            await transport.exchange(GET)  # the server reads it and closes, as after a long idle time
        assert lost.value.stale
        wire.answers = [OK]
        assert (await transport.exchange(GET)).status == 200
    assert not caplog.records


async def test_a_connection_closed_while_idle_is_not_used() -> None:
    wire = Wire(OK + b"<close>", OK)
    async with wired(wire) as transport:
        await transport.exchange(GET)
        await asyncio.sleep(0.05)
        assert (await transport.exchange(GET)).status == 200
    assert wire.connections == 2


async def test_a_connection_idle_for_too_long_is_not_used() -> None:
    wire = Wire(OK, OK, OK)
    async with wired(wire) as transport:
        await transport.exchange(GET)
        await asyncio.sleep(0.05)
        await transport.exchange(Request("GET", "/x", (), longest_idle=0.01))
        assert wire.connections == 2
        await transport.exchange(GET)
        assert wire.connections == 2


async def test_a_connection_freed_meanwhile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for a file descriptor uses no connection that requests of its kind must not use."""
    monkeypatch.setattr("ors_clients.transport.sockets._most_connections", lambda: 1)
    monkeypatch.setattr("ors_clients.transport.sockets.raise_file_limit", lambda: False)
    slow = b"<pause>" * 10 + OK
    wire = Wire(slow, OK, slow, OK)
    async with wired(wire) as transport:
        first = asyncio.create_task(transport.exchange(GET))
        await asyncio.sleep(0.02)
        assert (await transport.exchange(Request("GET", "/x", (), longest_idle=-1.0))).body == b"hi"
        await first
        assert wire.connections == 2
        first = asyncio.create_task(transport.exchange(GET))
        await asyncio.sleep(0.02)
        assert (await transport.exchange(GET)).body == b"hi"
        await first
        assert wire.connections == 2


async def test_unsolicited_bytes_end_a_connection() -> None:
    wire = Wire(OK + b"<pause>HTTP/1.1 500 Late\r\nContent-Length: 0\r\n\r\n", OK)
    async with wired(wire) as transport:
        await transport.exchange(GET)
        await asyncio.sleep(0.05)
        assert (await transport.exchange(GET)).status == 200
    assert wire.connections == 2


async def test_after_a_cancelled_request_its_connection_is_not_used() -> None:
    wire = Wire(b"<pause><pause><pause><pause><pause>" + OK, OK)
    async with wired(wire) as transport:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await transport.exchange(GET)
        assert (await transport.exchange(GET)).body == b"hi"
    assert wire.connections == 2


async def test_the_connection_of_a_cancelled_request_is_closed() -> None:
    """So the server learns at once that the client no longer waits for the result."""
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            await reader.read()
        closed.set()

    async with listening(serve) as port:
        transport = SocketTransport("127.0.0.1", port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await transport.exchange(GET)
        async with asyncio.timeout(60):
            await closed.wait()
        await transport.close()


async def test_a_deadline() -> None:
    async with wired(Wire(b"<pause>" * 500)) as transport:
        with pytest.raises(OutOfTime):
            await transport.exchange(Request("GET", "/x", (), deadline=time.monotonic() + 0.1))


async def test_a_stream_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection counts as lost, unlike a late first byte, for which there is no limit."""
    monkeypatch.setattr("ors_clients.transport.http11._SILENCE", 0.5)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = Wire(b"<pause>" * 120 + head + b"3\r\n:x\n\r\n" + b"<pause>" * 500)
    seen: list[bytes] = []
    async with wired(wire) as transport:
        with pytest.raises(ConnectionLost, match="silent"):
            await transport.exchange(GET, seen.append)
    assert seen == [b":x\n"]


@pytest.mark.parametrize("kind", ["sockets", "httpx"])
async def test_a_response_that_does_not_begin(kind: str) -> None:
    """With a time limit, it is a loss of a sent request."""
    in_time = b"<pause>" * 30 + OK
    async with listening(Wire(b"<pause>" * 3000, in_time).serve) as port:
        transport: Transport = SocketTransport("127.0.0.1", port)
        if kind == "httpx":
            transport = HttpxTransport(f"http://127.0.0.1:{port}", httpx.AsyncClient)
        begun = time.monotonic()
        with pytest.raises(ConnectionLost, match="did not begin in time") as lost:
            await transport.exchange(Request("GET", "/x", (), first_byte=0.3))
        assert (lost.value.sent, lost.value.stale) == (True, False)
        assert time.monotonic() - begun >= 0.3
        assert (await transport.exchange(Request("GET", "/x", (), first_byte=30.0))).body == b"hi"
        await transport.close()


NAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: task_id\ndata: t\n\n"


class Mute:
    """A server that opens sessions, and answers calls with the given bytes only, followed by silence."""

    def __init__(self, said: bytes = b"", *, promise: bool) -> None:
        self.said = said
        self.created = "X-Idempotent-Calls: true\r\n" if promise else ""
        self.calls: list[dict[str, str]] = []

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self.said)
        await asyncio.Event().wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                await reader.readexactly(int(headers.get("content-length", "0")))
                if "/call " in first:
                    self.calls.append(headers)
                    await self.answer(writer)
                    break
                writer.write(f'HTTP/1.1 200 OK\r\n{self.created}Content-Length: 12\r\n\r\n{{"sid":"s1"}}'.encode())


@pytest.mark.parametrize("said", [False, True], ids=["nothing", "a name and nothing more"])
@pytest.mark.parametrize("promise", [False, True])
async def test_a_call_that_is_never_answered(said: bool, promise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client retries where nothing can happen twice, until the retries end."""
    monkeypatch.setattr("ors_clients.transport.connection._FIRST_PAUSE", 0.02)
    for name in (
        "client.session_calls._FIRST_BYTE",
        "client.session_calls._FIRST_BYTE_OF_OTHERS",
        "transport.http11._SILENCE",
    ):
        monkeypatch.setattr(f"ors_clients.{name}", 0.3)
    monkeypatch.setattr("ors_clients.client.session_calls._PROGRESS", 0.2)
    mute = Mute(NAMED if said else b"", promise=promise)
    async with (
        listening(mute.serve) as port,
        AsyncClient(f"http://127.0.0.1:{port}", api_key="", retries=1) as client,
        client.environment("e").session(split="train", index=0) as session,
    ):
        asked_again = promise or said
        with pytest.raises(ServerUnavailable if asked_again else CallOutcomeUnknown):
            await asyncio.wait_for(session.call("work"), 30)
    assert len(mute.calls) == (2 if asked_again else 1)
    assert len({headers["idempotency-key"] for headers in mute.calls}) == 1


class Breaking(Mute):
    """A server whose streams break after a while, except the fifth."""

    async def answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self.said)
        for _ in range(10):
            await asyncio.sleep(0.03)
            writer.write(b":\n")
        if len(self.calls) == 5:
            writer.write(b'event: end\ndata: {"ok":true,"output":{"blocks":[],"reward":1}}\n\n')


async def test_a_continuing_stream_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_clients.transport.connection._FIRST_PAUSE", 0.02)
    monkeypatch.setattr("ors_clients.client.session_calls._PROGRESS", 0.1)
    breaking = Breaking(NAMED, promise=False)
    async with (
        listening(breaking.serve) as port,
        AsyncClient(f"http://127.0.0.1:{port}", api_key="", retries=1) as client,
        client.environment("e").session(split="train", index=0) as session,
    ):
        assert (await session.call("work")).reward == 1.0
    assert len(breaking.calls) == 5


async def test_only_events_go_to_the_listener() -> None:
    refused = b"HTTP/1.1 503 No\r\nContent-Type: text/event-stream\r\nContent-Length: 2\r\n\r\nno"
    seen: list[bytes] = []
    async with wired(Wire(OK, refused)) as transport:
        assert (await transport.exchange(GET, seen.append)).body == b"hi"
        assert (await transport.exchange(GET, seen.append)).body == b"no"
    assert seen == []


@pytest.mark.parametrize("packed", [True, False])
async def test_events_through_httpx_are_unpacked(packed: bool) -> None:
    """The client requests no compression, but some gateways compress nevertheless."""
    events = b"event: end\ndata: 1\n\n"
    body = gzip.compress(events) if packed else events
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    head += b"Content-Encoding: gzip\r\n" if packed else b""
    broken = head + b"Content-Length: 8\r\n\r\nno gzip!"
    wire = Wire(head + b"Content-Length: %d\r\n\r\n" % len(body) + body, broken)
    seen: list[bytes] = []
    async with listening(wire.serve) as port:
        url = f"http://127.0.0.1:{port}"
        transport = HttpxTransport(url, httpx.AsyncClient)
        connection = AsyncClient(url, api_key="", transport=transport)._connection  # pyright: ignore[reportPrivateUsage]
        await connection.once("POST", "/call", on_data=seen.append)
        assert b"".join(seen) == events
        assert b"\r\naccept-encoding: identity\r\n" in wire.requests[0].lower()
        if packed:
            with pytest.raises(ConnectionLost):
                await connection.once("POST", "/call", on_data=seen.append)
        await transport.close()


async def test_httpx_takes_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n["a"]', OK)
    async with listening(wire.serve) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        async with AsyncClient("http://environments.invalid/prefix", api_key="key", transport="httpx") as client:
            assert await client.environments() == ["a"]
    assert wire.requests[0].startswith(b"GET http://environments.invalid/prefix/list_environments HTTP/1.1\r\n")
    assert b"\r\nx-api-key: key\r\n" in wire.requests[0].lower()
    with pytest.raises(ConfigurationError, match="carrier"):
        AsyncClient("http://environments.invalid", transport="carrier pigeon")  # pyright: ignore[reportArgumentType]


def test_values_that_would_forge_a_header() -> None:
    for value in ("a\r\nX-Evil: 1", "a\nb", "a\0b"):
        with pytest.raises(ConfigurationError):
            Headers([("A", value)])
    assert "secret" not in repr(Headers([("A", "secret")]))


# --- against a real server -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sockets", "httpx"])
async def test_idle_connections_that_the_server_closes(kind: str) -> None:
    with live_server(keep_alive=1) as server:
        transport: Transport | None = None
        if kind == "httpx":
            transport = HttpxTransport(server.url, lambda: httpx.AsyncClient(trust_env=False))
        async with (
            AsyncClient(server.url, transport=transport) as client,
            client.environment("wire").session(split="train", index=0) as session,
        ):
            for _ in range(2):
                assert (await session.call("step", {"text": "x", "milliseconds": 100})).text == "x"
                time.sleep(1.3)  # noqa: ASYNC251 - the event loop must not see the server close them
            assert (await session.call("count")).text == "2"


@pytest.mark.long
async def test_more_calls_than_files(tmp_path: Path) -> None:
    """The other calls wait their turn; nothing fails."""
    with live_server() as server:
        program = tmp_path / "program.py"
        program.write_text(f"""
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (320, 320))
from ors_clients.client.async_client import AsyncClient

async def main():
    async with AsyncClient({server.url!r}) as client:
        async with client.environment("wire").session(split="train", index=0) as session:
            calls = [session.call("step", {{"text": str(n), "milliseconds": 50}}) for n in range(200)]
            assert [result.text for result in await asyncio.gather(*calls)] == [str(n) for n in range(200)]
    print("done")

asyncio.run(main())
""")
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, str(program)], capture_output=True, text=True, timeout=60
        )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.long
async def test_more_calls_than_files_were_allowed(tmp_path: Path) -> None:
    """The soft limit is raised when it is reached."""
    with live_server() as server:
        program = tmp_path / "program.py"
        program.write_text(f"""
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (320, 1024))
from ors_clients.client.async_client import AsyncClient

async def main():
    async with AsyncClient({server.url!r}) as client:
        async with client.environment("wire").session(split="train", index=0) as session:
            await asyncio.gather(*(session.call("step", {{"milliseconds": 200}}) for n in range(150)))
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

asyncio.run(main())
""")
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, str(program)], capture_output=True, text=True, timeout=60
        )
    assert done.stdout == "1024\n", done.stderr


async def test_tls(tmp_path: Path) -> None:
    """Verified by default; a context adds your own authority."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificate, is not here")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    async with listening(Wire(OK, OK).serve, served) as port:
        with pytest.raises(ConnectionLost, match="certificate"):
            await SocketTransport("127.0.0.1", port, secure=True).exchange(GET)
        trusting = ssl.create_default_context(cafile=certificate)
        transport = SocketTransport("127.0.0.1", port, secure=True, tls=trusting)
        assert (await transport.exchange(GET)).body == b"hi"
        await transport.close()
