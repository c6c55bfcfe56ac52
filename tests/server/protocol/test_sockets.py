"""Behaviour that needs a real connection: limits, bodies cut short, keep-alive, and the server's shutdown."""

import asyncio
import json
import resource
from collections.abc import Generator

import pytest

from tests.server.protocol.live import Connection, LiveServer, failure_of_live_server, live_server, request_bytes
from tests.support.events import parse_events
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE

TASK = {"split": "train", "index": 0}
LIMIT = 100_000


@pytest.fixture(scope="module")
def server() -> Generator[LiveServer]:
    with live_server(max_body=LIMIT, heartbeat=0.2, keep_alive=1) as running:
        yield running


async def healthy(server: LiveServer) -> None:
    """Check that the server serves other requests."""
    async with server.connect() as connection:
        await connection.request("GET", "/health")
        assert (await connection.response()).status == 200


# --- the head ------------------------------------------------------------------------------------


async def test_headers_over_64_kib_are_431(server: LiveServer) -> None:
    """Protocol 0.1, "Numbers": httptools enforces no limit, so the protocol class does."""

    async def refused(headers: dict[str, str]) -> None:
        async with server.connect() as connection:
            await connection.request("POST", "/create", TASK, "head", headers)
            response = await connection.response()
            assert response.status == 431
            assert "65536 bytes" in response.detail
            assert "ORS_MAX_HEADERS" in response.detail
            assert await connection.ended()

    many_small = {f"X-{number}": "v" * 100 for number in range(700)}
    await asyncio.gather(refused(many_small), refused({"X-Secrets": "v" * 66_000}))
    await healthy(server)
    async with server.connect() as connection:
        await connection.request("POST", "/ping", None, "head")
        assert (await connection.response()).status == 404


async def test_a_long_url_is_431(server: LiveServer) -> None:
    async with server.connect() as connection:
        await connection.request("GET", "/tools?" + "q" * 70_000)
        assert (await connection.response()).status == 431


async def test_a_header_without_end_is_refused_while_it_comes(server: LiveServer) -> None:
    """A limit that waits for the end of the header has no effect: the server would keep all of it in memory."""
    async with server.connect() as connection:
        await connection.send(b"GET /health HTTP/1.1\r\nHost: server\r\nX-Endless: ")
        for _ in range(20):
            await connection.send(b"v" * 50_000)
        assert (await asyncio.wait_for(connection.head(), PATIENCE))[0] == 431
    await healthy(server)


async def test_headers_of_many_kilobytes_are_taken(server: LiveServer) -> None:
    """6.4 pitfall 15: secrets can have several kB; the limit applies to each request of a connection."""
    async with server.connect() as connection:
        for _ in range(4):
            await connection.request("GET", "/health", headers={"X-Padding": "v" * 60_000})
            assert (await connection.response()).status == 200


# --- the body ------------------------------------------------------------------------------------


def chunked(path: str, sid: str, *chunks: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: server\r\nTransfer-Encoding: chunked\r\nX-Session-ID: {sid}\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


@pytest.mark.parametrize("path", ["/create", "/call", "/tasks"])
async def test_a_body_over_the_limit_with_its_length_is_413_before_it_has_come(server: LiveServer, path: str) -> None:
    async with server.connect() as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: server\r\nX-Session-ID: b\r\nContent-Length: {50 * LIMIT}\r\n\r\n"
        await connection.send(head.encode() + b" " * (2 * LIMIT))
        status, headers = await connection.head()
        assert status == 413
        body = await connection.until(b"}")
        assert len(body) == int(headers["content-length"])
        assert f"{LIMIT} bytes" in json.loads(body)["detail"]
    await healthy(server)


@pytest.mark.parametrize("path", ["/create", "/call", "/tasks"])
async def test_a_body_over_the_limit_without_a_length_is_413(server: LiveServer, path: str) -> None:
    async with server.connect() as connection:
        await connection.send(chunked(path, "b", *[b" " * 30_000] * 4))
        assert (await connection.head())[0] == 413
    await healthy(server)


async def test_a_chunked_body_within_the_limit_is_taken(server: LiveServer) -> None:
    async with server.connect() as connection:
        await connection.send(chunked("/create", "chunked", b'{"split": "tr', b'ain", "index": 0}', b""))
        assert (await connection.response()).body == b'{"sid":"chunked"}'


async def test_a_client_that_sends_all_of_a_large_body_reads_the_413(server: LiveServer) -> None:
    """An ordinary client writes first and then reads; the connection must not be reset meanwhile."""
    client = Client(url=server.url)
    response = await client.http.post("/create", content=b" " * (20 * LIMIT), headers={"X-Session-ID": "b"})
    assert response.status_code == 413
    assert (await client.get("/health")).status_code == 200
    await client.close()


@pytest.mark.parametrize("path", ["/create", "/call", "/score_group", "/tasks"])
async def test_a_truncated_body_has_no_effect(server: LiveServer, path: str) -> None:
    """Bad input: bodies cut short."""
    async with server.connect() as connection:
        data = request_bytes("POST", path, {**TASK, "pad": " " * 500}, "cut")
        await connection.send(data[:-200])
        await asyncio.sleep(0.05)
    async with server.connect() as connection:
        await connection.request("POST", "/ping", None, "cut")
        assert (await connection.response()).status == 404
    await healthy(server)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /call HTTP/1.1\r\nHost: s\r\nContent-Length: many\r\n\r\n",
        b"POST /call HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
    ],
    ids=["tls", "short", "version", "length", "chunk", "header"],
)
async def test_invalid_http_is_400_and_the_connection_closed(server: LiveServer, garbage: bytes) -> None:
    async with server.connect() as connection:
        await connection.send(garbage)
        assert (await connection.head())[0] == 400
    await healthy(server)


async def test_a_client_that_expects_100_continue_gets_it(server: LiveServer) -> None:
    """Before a large body, curl sends ``Expect: 100-continue`` and waits."""
    body = json.dumps(TASK).encode()
    head = f"POST /create HTTP/1.1\r\nHost: s\r\nX-Session-ID: asking\r\nContent-Length: {len(body)}\r\n"
    async with server.connect() as connection:
        await connection.send(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert (await connection.head())[0] == 100
        await connection.send(body)
        assert (await connection.response()).body == b'{"sid":"asking"}'


# --- connections ---------------------------------------------------------------------------------


async def test_many_requests_share_a_connection(server: LiveServer) -> None:
    async with server.connect() as connection:
        await connection.request("POST", "/create", TASK, "shared")
        assert (await connection.response()).status == 200
        for number in range(50):
            await connection.request("POST", "/call", {"name": "count", "input": {}}, "shared")
            response = await connection.response()
            assert response.status == 200, number
            assert parse_events(response.body)[-1].name == "end"


async def test_a_connection_is_kept_after_errors_and_streams(server: LiveServer) -> None:
    async with server.connect() as connection:
        await connection.request("POST", "/create", TASK, "kept")
        await connection.response()
        requests: list[tuple[str, object]] = [
            ("/typo/call", {"name": "count", "input": {}}),
            ("/call", {"name": 1}),
            ("/call", {"name": "nothing", "input": {}}),
        ]
        for path, body in requests:
            await connection.request("POST", path, body, "kept")
            assert (await connection.response()).status in (200, 404, 422)
        await connection.request("POST", "/call", {"name": "step", "input": {"milliseconds": 120}}, "kept")
        response = await connection.response()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert [event.name for event in parse_events(response.body)] == ["task_id", "end"]
        await connection.request("GET", "/health")
        assert (await connection.response()).status == 200


async def test_an_idle_connection_is_closed_after_keep_alive(server: LiveServer) -> None:
    """6.4 pitfall 15: the setting holds, and by default it is above the 60 s of the SDKs' clients."""
    async with server.connect() as connection:
        await connection.request("GET", "/health")
        await connection.response()
        assert not await connection.ended(within=0.6)
        assert await connection.ended()


async def test_a_silent_stream_outlives_keep_alive_and_gets_comments(server: LiveServer) -> None:
    """6.4 pitfall 8, the 30 s rule, with ``ORS_HEARTBEAT`` shortened."""
    async with server.connect() as connection:
        await connection.request("POST", "/create", TASK, "silent")
        await connection.response()
        await connection.request("POST", "/call", {"name": "step", "input": {"milliseconds": 1300}}, "silent")
        status, headers = await connection.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        rest = await connection.until(b"event: end")
        assert rest.index(b"event: task_id") < rest.index(b": ping")
        assert rest.count(b": ping") >= 4


async def test_a_request_sent_while_a_stream_is_open_is_answered_after_it(server: LiveServer) -> None:
    """An open stream has freed the parser of its connection; the next request, cut in two, gets another."""
    async with server.connect() as connection:
        await connection.request("POST", "/create", TASK, "later")
        await connection.response()
        await connection.request("POST", "/call", {"name": "step", "input": {"milliseconds": 500}}, "later")
        await connection.until(b"event: task_id")
        await connection.send(b"GET /health HTTP/1.1\r\nHo")
        await asyncio.sleep(0.05)
        await connection.send(b"st: server\r\n\r\n")
        await connection.until(b"\r\n0\r\n\r\n")
        assert (await connection.response()).status == 200
        # The connection was not idle during the stream, and is now.
        assert not await connection.ended(within=0.3)
        assert await connection.ended()


async def test_a_call_runs_once_where_its_connection_is_lost_with_a_request_behind_it(server: LiveServer) -> None:
    """The request in the pipeline hid the loss: the call counted as delivered, and ran again when it was repeated."""
    call = {"name": "step", "input": {"milliseconds": 500}}
    async with server.connect() as connection:
        await connection.request("POST", "/create", TASK, "piped")
        await connection.response()
        await connection.request("POST", "/call", call, "piped")
        await connection.until(b"event: task_id")
        for _ in range(3):
            await connection.request("POST", "/ping", None, "piped")
        await asyncio.sleep(0.05)
    async with server.connect() as connection:
        await connection.request("POST", "/call", call, "piped")
        assert b'"run":1' in (await connection.until(b"\r\n0\r\n\r\n"))
        await connection.request("GET", "/health")
        assert (await connection.response()).status == 200


async def test_trailers_over_64_kib_are_431(server: LiveServer) -> None:
    """The limit on a body does not count them, and the parser passes on each."""
    start = b"POST /create HTTP/1.1\r\nHost: server\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    async with server.connect() as connection:
        await connection.send(start + b"X-Trailer: %b\r\n" % (b"v" * 1000) * 80)
        responses = await connection.until(b"ORS_MAX_HEADERS")
        assert b" 431 " in responses
    await healthy(server)


async def test_a_trailer_is_not_a_header(server: LiveServer) -> None:
    """A gateway routes by the head; the worker must read the same session id."""
    async with server.connect() as connection:
        for sid in ("of-the-head", "of-the-trailer"):
            await connection.request("POST", "/create", TASK, sid)
            assert (await connection.response()).status == 200
        start = chunked("/delete", "of-the-head", b"{}")
        await connection.send(start + b"0\r\nX-Session-ID: of-the-trailer\r\n\r\n")
        assert b"of-the-head" in (await connection.response()).body
        await connection.request("POST", "/ping", None, "of-the-trailer")
        assert (await connection.response()).status == 200


async def test_a_call_during_set_up_answers_its_head_at_once(server: LiveServer) -> None:
    """Section 9: before any byte, openreward waits 30 s and then calls again."""
    async with server.connect() as connection, server.connect() as other:
        create = {"env_name": "wire", "task_spec": {"setup": 60_000}}
        await connection.request("POST", "/create", create, "set up")
        assert (await connection.response()).status == 200
        await connection.request("POST", "/call", {"name": "step", "input": {"text": "x"}}, "set up")
        async with asyncio.timeout(30):
            assert (await connection.head())[0] == 200
            await connection.until(b"event: task_id\r\n")
        await other.request("POST", "/delete", None, "set up")
        assert (await other.response()).status == 200


async def test_a_client_too_slow_for_its_result_blocks_no_other(server: LiveServer) -> None:
    async with server.connect() as lazy, server.connect() as other:
        await lazy.request("POST", "/create", TASK, "lazy")
        await lazy.response()
        step = {"name": "step", "input": {"text": "x", "size": 12_000_000}}
        await lazy.request("POST", "/call", step, "lazy")
        await lazy.head()
        for _ in range(5):
            await other.request("GET", "/health")
            assert (await asyncio.wait_for(other.response(), PATIENCE)).status == 200


async def test_a_hundred_connections_at_once(server: LiveServer) -> None:
    client = Client(url=server.url)
    responses = await asyncio.gather(*(client.create("hundred") for _ in range(100)))
    assert {response.status_code for response in responses} == {200}
    replies = await asyncio.gather(*(client.call("hundred", "step", {"milliseconds": 100}) for _ in range(100)))
    assert sorted(reply.output["metadata"]["run"] for reply in replies) == list(range(1, 101))
    await client.close()


# --- the end -------------------------------------------------------------------------------------


async def test_the_servers_end_tells_open_streams_and_tears_down() -> None:
    """A SIGTERM ends the sessions first: their streams get an event with the reason and are not cut."""
    with live_server() as server:
        async with server.connect() as stream:
            await open_stream(stream, "ending")
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            rest = await stream.until(b"event: error\r\n")
            data = await stream.until(b"\r\n")
            assert b"event: end" not in rest
            assert b"shutting down" in data
            status, output = await asyncio.wait_for(stopping, PATIENCE)
        assert status in (0, -15)
        assert output == ["teardown"]


async def test_the_servers_end_does_not_wait_for_a_blocked_thread() -> None:
    """Code that cannot be stopped is abandoned once every limit has passed."""
    with live_server(shutdown_timeout=0.3, teardown_timeout=0.3) as server:
        async with server.connect() as connection:
            await connection.request("POST", "/create", TASK, "blocked")
            await connection.response()
            await connection.request("POST", "/call", {"name": "block", "input": {"milliseconds": 60_000}}, "blocked")
            await connection.until(b"event: task_id\r\n")
            status, _ = await asyncio.wait_for(asyncio.to_thread(server.stop), PATIENCE)
        assert status in (0, -15)


async def open_stream(connection: Connection, sid: str) -> None:
    """Start a call that runs for a minute, and read up to its ``task_id``."""
    await connection.request("POST", "/create", TASK, sid)
    await connection.response()
    await connection.request("POST", "/call", {"name": "step", "input": {"milliseconds": 60_000}}, sid)
    await connection.until(b"event: task_id\r\n")


async def test_ors_variables_reach_the_server_and_an_idle_session_ends() -> None:
    """``ORS_SESSION_TTL`` shortened: an episode outlives it only because of its pings."""
    with live_server(session_ttl=0.4) as server:
        client = Client(url=server.url)
        for sid in ("pinged", "idle"):
            await client.open(sid=sid)
        for _ in range(12):
            await asyncio.sleep(0.1)
            assert (await client.post("/ping", sid="pinged")).status_code == 200
        assert (await client.get("/prompt", "idle")).status_code == 410
        assert (await client.get("/prompt", "pinged")).status_code == 200
        await client.close()


async def test_the_limit_on_open_files_is_raised() -> None:
    """Protocol 0.1, "Numbers": RLIMIT_NOFILE up to its hard limit at the start."""
    with live_server(file_limit=64) as server:
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard
        connections = [await asyncio.open_connection(server.host, server.port) for _ in range(150)]
        await healthy(server)
        for _, writer in connections:
            writer.close()


async def test_a_port_in_use_is_named_with_its_remedy(server: LiveServer) -> None:
    """Bad input: a port in use."""
    output = await asyncio.to_thread(failure_of_live_server, port=server.port)
    assert f"Port {server.port} on 127.0.0.1 is in use" in output
    assert "--port" in output
    await healthy(server)
