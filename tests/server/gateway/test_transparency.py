"""A gateway beside its worker alone: the same bytes in give the same bytes out, wherever they are cut."""

import asyncio
import itertools
import json
import random
import re
from collections.abc import Generator, Sequence

import pytest

from tests.server.gateway.conftest import Several
from tests.server.protocol.live import LiveServer, live_server
from tests.support.waiting import PATIENCE

numbers = itertools.count()


@pytest.fixture(scope="module")
def alone() -> Generator[LiveServer]:
    with live_server() as server:
        yield server


def request(method: str, target: str, body: object = None, *lines: str, chunked: bool = False) -> bytes:
    """Return a request of HTTP/1.1 with these further header lines."""
    content = b"" if body is None else json.dumps(body).encode()
    if chunked:
        framing = "Transfer-Encoding: chunked"
        content = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (content[:7], content[7:]) if part)
        content += b"0\r\n\r\n"
    else:
        framing = f"Content-Length: {len(content)}"
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: server", framing, *lines, "", ""]).encode() + content


def conversation(sid: str) -> list[bytes]:
    """Return requests of one session, some of them wrong; the last one ends the connection."""
    id_line = f"X-Session-ID: {sid}"
    step = {"name": "step", "input": {"text": "x", "size": 3}}
    return [
        request("GET", "/health"),
        request("GET", "/ready"),
        request("POST", "/create", {"split": "train", "index": 0}, id_line),
        request("POST", "/call", step, id_line),
        request("POST", "/wire/call", step, id_line, chunked=True),
        request("POST", "/call", {"name": "step", "input": {"text": "é", "size": 100_000}}, id_line),
        request("POST", "/call", {"name": "step", "input": {"milliseconds": 120}}, id_line),
        request("POST", "/call", {"name": "no such tool", "input": {}}, id_line),
        request("POST", "/call", {"input": 1}, id_line),
        request("POST", "/call", None, id_line),
        request("GET", "/prompt"),
        request("GET", "/wire/tools"),
        request("GET", "/nowhere/tools"),
        request("PUT", "/call", step, id_line),
        request("POST", "/wire/tasks", {"split": "train"}),
        request("HEAD", "/nothing"),
        request("POST", "/ping", {}, f"X-Session-ID:   {sid}  "),
        request("POST", "/call/", step, id_line),
        request("POST", "/c%61ll?x=1", step, id_line),
        request("GET", "http://server/version"),
        b"\r\n" + request("POST", "/ping", None, "X-Session-ID: nobody knows it"),
        request("POST", "/ping", None, "X-Session-ID:"),
        request("POST", "/ping", None, "X-Session-ID: \u00a0"),
        request("POST", "/ping", None, "X-Session-ID: \u00e9\u4e16"),
        request("POST", "/ping", None, f"X-Session-ID: {sid.upper()}"),
        request("POST", "/ping", None, "X-Session-ID: " + "y" * 5000),
        request("POST", "/ping", None, id_line, "X-ORS-Gateway: ", "X-ORS-Gateway: x"),
        request("GET", "http://server/%5fors/state"),
        request("GET", "/%255fors/state"),
        request("POST", "/delete", None, id_line),
        request("GET", "/list_environments", None, "Connection: close"),
    ]


async def answers(port: int, parts: Sequence[bytes], pause: float) -> list[bytes]:
    """Return the responses to bytes that are sent in these parts, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)

    sending = asyncio.create_task(send())
    received = await asyncio.wait_for(reader.read(), 60)
    sending.cancel()
    writer.close()
    return split(received)


def split(data: bytes) -> list[bytes]:
    """Return the responses one by one, without the ids of calls and the framing of streams, which differ."""
    responses: list[bytes] = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = {line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in head.split(b"\r\n")[1:]}
        if b"content-length" in lines:
            length = int(lines[b"content-length"])
            body, data = rest[:length], rest[length:]
            if rest.startswith(b"HTTP/1.1"):  # the answer to HEAD
                body, data = b"", rest
        elif lines.get(b"transfer-encoding") == b"chunked":
            body, data = b"", rest
            while True:
                size, _, data = data.partition(b"\r\n")
                body += data[: int(size, 16)]
                data = data[int(size, 16) + 2 :]
                if not int(size, 16):
                    break
        else:
            body, data = rest, b""
        body = re.sub(rb"(event: task_id\r\ndata: )\w+", rb"\1ID", body)
        kept = sorted(name for name in lines if name not in (b"content-length", b"transfer-encoding"))
        responses.append(head.split(b"\r\n")[0] + b" " + b",".join(kept) + b" " + body)
    return responses


CUTS = ["request by request", "all at once", "byte by byte", "anywhere 1", "anywhere 2", "anywhere 3"]
#: The id of a session, which the client chose or a gateway placed.
IDS = [*((cuts, "chosen") for cuts in CUTS), ("request by request", "placed"), ("anywhere 4", "placed")]


@pytest.mark.parametrize(("cuts", "ids"), IDS)
async def test_the_same_bytes_in_the_same_bytes_out(several: Several, alone: LiveServer, cuts: str, ids: str) -> None:
    sid = f"transparent-{next(numbers)}"
    if ids == "placed":
        with several.client() as client:
            sid = client.post("/create_session").json()["sid"]
    requests = conversation(sid)
    data = b"".join(requests)
    pause = 0.0
    if cuts == "request by request":
        parts, pause = requests, 0.02
    elif cuts == "all at once":
        parts = [data]
    elif cuts == "byte by byte":
        parts = [data[position : position + 1] for position in range(len(data))]
    else:
        draw = random.Random(cuts)
        positions = sorted({0, len(data), *(draw.randrange(len(data)) for _ in range(60))})
        parts = [data[start:stop] for start, stop in itertools.pairwise(positions)]
    through, direct = await answers(several.running.port, parts, pause), await answers(alone.port, parts, pause)
    assert through == direct
    assert len(through) == len(requests)


async def test_a_line_end_of_a_body_is_no_confirmation(several: Several) -> None:
    """A blank line between two requests confirms a response; in a chunked body it belongs to the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", several.running.port)
    for _ in range(2):
        writer.write(b"POST /wire/num_tasks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b"11", b"\r\n", b'{"split":"train"}', b"\r\n", b"0\r\n", b"\r\n"):
            await asyncio.sleep(0.03)
            writer.write(part)
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert await asyncio.wait_for(reader.readexactly(15), PATIENCE) == b'{"num_tasks":2}'
    writer.close()


async def test_identical_calls_of_http_1_0_run_each(several: Several, alone: LiveServer) -> None:
    """A worker alone closes the connection after such a response; that does not say that the response was lost."""
    for port in (several.running.port, alone.port):
        sid = f"X-Session-ID: one-{next(numbers)}"
        body = {"name": "step", "input": {"text": "same"}}
        await answers(port, [request("POST", "/create", {"split": "train", "index": 0}, sid, "Connection: close")], 0)
        for run in (b"1", b"2", b"3"):
            data = request("POST", "/call", body, sid).replace(b"HTTP/1.1", b"HTTP/1.0")
            (answer,) = await answers(port, [data], 0)
            assert b'"run":' + run in answer
