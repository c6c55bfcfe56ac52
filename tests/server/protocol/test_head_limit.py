"""The limit on a request's head, whatever came before it on the connection and however the bytes are cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from ors_server.http.uvicorn_protocol import http_protocol

LIMIT = 4000
_BODY = 9000
_CHUNK = 1000


class _Transport(asyncio.Transport):
    """Keep what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def _refuse_at_once(_scope: Any, _receive: Any, send: Any) -> None:
    """Answer before the body has come, as a server does whose limit it exceeds."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _read_first(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await _refuse_at_once(scope, receive, send)


def _with_length() -> bytes:
    return b"POST /create HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % _BODY + b"x" * _BODY


def _in_chunks() -> bytes:
    chunks = b"%x\r\n%b\r\n" % (_CHUNK, b"x" * _CHUNK) * (_BODY // _CHUNK)
    return b"POST /create HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _head(size: int, headers: int) -> bytes:
    """Return a request without a body whose head has ``size`` bytes."""
    lines = [b"X-%02d: " % number for number in range(headers)]
    room = size - len(b"GET /health HTTP/1.1\r\n\r\n") - sum(len(line) + 2 for line in lines)
    values = [b"v" * (room // headers) for _ in lines]
    values[0] += b"v" * (room % headers)
    fields = b"".join(line + value + b"\r\n" for line, value in zip(lines, values, strict=True))
    head = b"GET /health HTTP/1.1\r\n" + fields + b"\r\n"
    assert len(head) == size
    return head


async def _answers(app: Any, data: bytes, *cuts: int) -> bytes:
    """Send bytes on a new connection, cut at some positions; return all that is answered."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, http=http_protocol(LIMIT), log_config=None, access_log=False)
    config.load()
    made: Any = config.http_protocol_class
    protocol = made(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    transport = _Transport()
    protocol.connection_made(transport)
    for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        protocol.data_received(data[start:end])
        for _ in range(5):  # turns of the loop, in which the application answers
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    return transport.written


@pytest.mark.parametrize("app", [_refuse_at_once, _read_first])
@pytest.mark.parametrize("before", [_with_length, _in_chunks])
@pytest.mark.parametrize("headers", [1, 20])
async def test_the_limit_holds_behind_any_body(app: Any, before: Any, headers: int) -> None:
    """Bytes that came with the end of a body were not counted: a head that began there passed."""
    body = before()
    for size, refused in ((LIMIT, False), (LIMIT + 1, True), (LIMIT + 3000, True)):
        data = body + _head(size, headers)
        for first in (len(body) - 3000, len(body) - 10, len(body)):
            for second in (len(body) + 1, len(body) + 40, len(body) + 2500, len(data) - 1):
                written = await _answers(app, data, first, second)
                assert (b" 431 " in written) == refused, (size, first, second)
                assert written.count(b" 200 ") == (1 if refused else 2), (size, first, second)


@pytest.mark.parametrize("headers", [1, 20])
async def test_the_limit_does_not_depend_on_the_cuts(headers: int) -> None:
    for size, refused in ((LIMIT, False), (LIMIT + 1, True)):
        data = _head(1000, 1) + _head(size, headers)
        for cuts in ((), (500,), (1000,), (1001,), (999, 3000), (1500, 3000, 4000), (len(data) - 1,)):
            assert (b" 431 " in await _answers(_read_first, data, *cuts)) == refused, (size, cuts)
