"""Boundaries of HTTP/1.1 messages: where a head ends, and where the body after it.

A gateway passes bytes on as they came and reads no more of a message than its boundaries. Heads of requests are checked
by the parser that the workers use (llhttp, strict), so that gateway and worker never disagree about where a request
ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import httptools

__all__ = [
    "NO_BODY",
    "BadRequest",
    "ChunkedBody",
    "FixedBody",
    "Head",
    "ResponseHead",
    "read_head",
    "read_response_head",
    "unchunked",
    "with_close",
]

_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_LONGEST_LINE = 1024
_CONNECTION = re.compile(rb"\r\nconnection:[^\r\n]*\r\n", re.IGNORECASE)
_EVENTS = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream", re.IGNORECASE)
#: The headers of a response that say where its body ends.
_FRAMING = re.compile(
    rb"\r\n(?:content-length:[ \t]*(\d+)|transfer-encoding:[ \t]*(chunked)|connection:[ \t]*(close))[ \t]*(?=\r\n)",
    re.IGNORECASE,
)


class BadRequest(Exception):
    """Bytes that are not a request which can be passed on; the text says why."""


class FixedBody:
    """A body of a known length in bytes."""

    __slots__ = ("_left",)
    #: Another chunk cannot be added to it.
    extensible = False

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def complete(self) -> bool:
        """True once all of it was taken."""
        return not self._left

    def take(self, data: bytes) -> int:
        """Return how many of the bytes belong to the body."""
        taken = min(self._left, len(data))
        self._left -= taken
        return taken


class ChunkedBody:
    """A chunked body, whose bytes stay as they are."""

    __slots__ = ("_left", "_line", "_state", "complete")

    def __init__(self) -> None:
        self.complete = False
        #: ``size`` of the next chunk, ``data``, the ``end`` of a chunk's data, or ``trailer``.
        self._state = "size"
        self._left = 0
        self._line = b""

    @property
    def extensible(self) -> bool:
        """True between two chunks, where a further chunk can be added."""
        return self._state == "size" and not self._line and not self.complete

    def take(self, data: bytes) -> int:
        """Return how many of the bytes belong to the body. Raises ``BadRequest`` where they are not chunks."""
        position = 0
        while position < len(data) and not self.complete:
            if self._state == "data":
                taken = min(self._left, len(data) - position)
                self._left -= taken
                position += taken
                if not self._left:
                    self._state, self._left = "end", 2
                continue
            newline = data.find(b"\n", position)
            stop = len(data) if newline < 0 else newline + 1
            self._line += data[position:stop]
            position = stop
            if len(self._line) > _LONGEST_LINE:
                raise BadRequest("a line of a chunked body is too long")
            if newline >= 0:
                self._read_line()
        return position

    def _read_line(self) -> None:
        line, self._line = self._line, b""
        if self._state == "size":
            size = _SIZE_LINE.fullmatch(line)
            if size is None:
                raise BadRequest("the size of a chunk is not a number")
            self._left = int(size[1], 16)
            self._state = "data" if self._left else "trailer"
        elif self._state == "end":
            if line != b"\r\n":
                raise BadRequest("a chunk is longer than its size")
            self._state = "size"
        elif line == b"\r\n":
            self.complete = True
        elif not line.endswith(b"\r\n"):
            raise BadRequest("a trailer does not end in CRLF")


#: Headers that concern one connection.
_CONNECTION_HEADERS = (b"connection", b"keep-alive", b"proxy-connection")


def unchunked(data: bytes) -> bytes:
    """Return the content of a complete chunked body, which a ``ChunkedBody`` has read."""
    chunks: list[bytes] = []
    position = 0
    while True:
        start = data.index(b"\n", position) + 1
        size = int(data[position:start].partition(b";")[0], 16)
        if not size:
            return b"".join(chunks)
        chunks.append(data[start : start + size])
        position = start + size + 2


class Head:
    """The head of a request."""

    __slots__ = ("body", "complete", "data", "headers", "keep_alive", "method", "parser", "placed", "target", "version")

    def __init__(self, data: bytes) -> None:
        #: As it came, with the empty line.
        self.data = data
        self.method = b""
        self.target = b""
        self.version = "1.1"
        self.keep_alive = True
        #: Values by name in lower case.
        self.headers: dict[bytes, list[bytes]] = {}
        self.body: FixedBody | ChunkedBody = NO_BODY
        self.complete = False
        #: Whether its session's id named its worker.
        self.placed = False
        self.parser: Any = None

    def values(self, name: bytes) -> Sequence[bytes]:
        """Return the values of a header; ``name`` in lower case."""
        return self.headers.get(name, ())

    @property
    def expects_continue(self) -> bool:
        """True where the client waits for ``100 Continue`` before it sends the body."""
        return any(value.strip().lower() == b"100-continue" for value in self.values(b"expect"))

    def forget(self) -> None:
        """Free what only routing needs: the response may be a stream that stays open for long."""
        self.data = b""
        self.headers = _NO_HEADERS

    # --- called by the parser ----------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers.setdefault(name.lower(), []).append(value)

    def on_headers_complete(self) -> None:
        """Take note of the empty line."""
        self.complete = True
        # Asked now: once a message without a body is complete, the parser knows only of the next one.
        self.keep_alive = self.parser.should_keep_alive()

    def without(self, *names: bytes) -> bytes:
        """Return the head without some headers."""
        lines = [self.data[: self.data.index(b"\r\n") + 2]]
        lines += (
            line + b"\r\n"
            for line in self.data[len(lines[0]) : -4].split(b"\r\n")
            if line.partition(b":")[0].strip().lower() not in names
        )
        return b"".join([*lines, b"\r\n"])

    def persistent(self, *without: bytes) -> bytes:
        """Return the head, without some headers, as that of HTTP/1.1 for a connection that stays open."""
        data = self.without(*without, *_CONNECTION_HEADERS)
        end = data.index(b"\r\n")
        return data[: end - 1] + b"1" + data[end:]


NO_BODY = FixedBody(0)
_NO_HEADERS: dict[bytes, list[bytes]] = {}


def read_head(data: bytes) -> Head:
    """Read the head of a request, with its empty line. Raises ``BadRequest``."""
    head = Head(data)
    parser: Any = httptools.HttpRequestParser(head)
    head.parser = parser
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # passed on as any request: the workers upgrade nothing
    except httptools.HttpParserError as error:
        raise BadRequest(str(error) or "not an HTTP request") from None
    finally:
        head.parser = None  # otherwise each request would leave a reference cycle
    if not head.complete:
        raise BadRequest("not the head of an HTTP request")
    head.method = parser.get_method()
    head.version = parser.get_http_version()
    if head.method == b"CONNECT":
        # The parser of the worker would take the body for the next request, whose response no client waits for.
        raise BadRequest("CONNECT is a request to a proxy, and this is a server")
    if head.version not in ("1.0", "1.1"):
        raise BadRequest("not HTTP/1.0 or HTTP/1.1")
    lengths, encodings = head.values(b"content-length"), head.values(b"transfer-encoding")
    if encodings:
        if lengths:
            raise BadRequest("both Content-Length and Transfer-Encoding")
        if [encoding.lower() for encoding in encodings] != [b"chunked"]:
            raise BadRequest("a Transfer-Encoding other than chunked")
        head.body = ChunkedBody()
    elif lengths:
        head.body = FixedBody(int(lengths[0]))
    return head


def with_close(response: bytes) -> bytes:
    """Return the start of a response, its head included, with the announcement that the connection will be closed."""
    end = response.index(b"\r\n\r\n") + 2
    status, _, headers = _CONNECTION.sub(b"\r\n", response[:end]).partition(b"\r\n")
    return status + b"\r\nconnection: close\r\n" + headers + response[end:]


class ResponseHead:
    """The head of a worker's response."""

    __slots__ = ("body", "events", "keep_alive", "status")

    def __init__(self, status: int, body: FixedBody | ChunkedBody | None, keep_alive: bool, events: bool) -> None:
        self.status = status
        #: Whether it is an event stream that comes in chunks.
        self.events = events
        #: None for a body that ends with the connection.
        self.body = body
        self.keep_alive = keep_alive


def read_response_head(data: bytes, method: bytes) -> ResponseHead:
    """Read the head of a worker's response to a request of this method. Raises ``ValueError`` where it is not one."""
    if data[:7] != b"HTTP/1." or data[8:9] != b" ":
        raise ValueError("not an HTTP response")
    status = int(data[9:12])
    length, chunked, keep_alive = b"", False, True
    for header in _FRAMING.findall(data):
        length = length or header[0]
        chunked = chunked or bool(header[1])
        keep_alive = keep_alive and not header[2]
    body: FixedBody | ChunkedBody | None
    if method == b"HEAD" or status < 200 or status in (204, 304):
        body = FixedBody(0)
    elif length:
        body = FixedBody(int(length))
    elif chunked:
        body = ChunkedBody()
    else:
        body, keep_alive = None, False
    return ResponseHead(status, body, keep_alive, chunked and _EVENTS.search(data) is not None)
