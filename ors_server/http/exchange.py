"""One HTTP request and its response, directly on ASGI.

The routes of the hot path read their request and write their response through an ``Exchange``: the dependency solving
of a web framework takes longer than the whole call (``docs/performance.md`` has figures). Other routes use FastAPI.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.parse
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ors_server.errors import InvalidBody, OrsError
from ors_server.http.delivery import ConnectionDelivery
from ors_server.http.errors import BodyTooLarge, MissingSession
from ors_server.keys.authentication import key_of
from ors_server.keys.key import Key
from ors_server.wire.encoding import encode
from ors_server.wire.request_ids import REQUEST_ID, RequestIds
from ors_server.wire.texts import without_surrogates

__all__ = ["CONNECTION", "ClientDisconnected", "Connection", "Exchange", "body_errors", "parse"]

Model = TypeVar("Model", bound=BaseModel)

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

#: Key in an ASGI scope of the request's ``Connection``, which ``uvicorn_protocol`` puts there.
CONNECTION = "ors_server.connection"


class Connection(Protocol):
    """The connection of a request on this package's own HTTP server; not part of ASGI."""

    @property
    def disconnected(self) -> bool:
        """True where the connection was lost before the response was complete."""
        ...

    @property
    def delivery(self) -> ConnectionDelivery | None:
        """The delivery of responses on a proxy's connection; None where a written response is a delivered one."""
        ...

    #: Done once the connection is lost.
    waiter: asyncio.Future[None] | None

    def free_request(self, send: Any, receive: Any) -> None:
        """Free what only the reading of a request needs: its response may be a stream that stays open for long."""
        ...

    def respond(self, send: Any, status: int, head: bytes, body: bytes) -> bool:
        """Write a whole response at once; return False where ``send`` must be used instead.

        ``send`` is the application's: where a middleware has wrapped it, the response must pass through it. ``head`` is
        the response's own header lines, each ended by CRLF.
        """
        ...


_JSON_HEAD = b"content-type: application/json\r\ncontent-length: %d\r\n"
_OCTETS_HEAD = b"content-type: application/octet-stream\r\ncontent-length: %d\r\n"
_TEXT_HEAD = b"content-type: %b\r\ncache-control: no-store\r\ncontent-length: %d\r\n"
_EVENTS_HEAD = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
    b"connection: keep-alive\r\ncontent-length: %d\r\n"
)
_STREAM_START: dict[str, Any] = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"cache-control", b"no-cache"),
        (b"connection", b"keep-alive"),
        (b"x-accel-buffering", b"no"),
        (b"content-type", b"text/event-stream; charset=utf-8"),
    ],
}
_NO_HEADERS: dict[bytes, bytes] = {}
#: Bytes above which a response is written before its end is announced, so that a lost connection is noticed.
_LARGE = 64 * 1024


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete; no answer is possible."""


class Exchange:
    """A request to read and a response to write."""

    __slots__ = (
        "_connection",
        "_gone",
        "_headers",
        "_waiter",
        "environment",
        "ids",
        "receive",
        "scope",
        "send",
        "status",
    )

    def __init__(self, scope: Any, receive: Any, send: Any, environment: str | None) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        #: The path's environment segment; None for a bare path.
        self.environment = environment
        self._connection: Connection | None = scope.get(CONNECTION)
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None
        #: The status of the response; 499 while there is none, as for a client that disconnects before it.
        self.status = 499
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self.ids = RequestIds(self._headers.get(REQUEST_ID), self._headers.get(b"x-session-id"))

    # --- the request -------------------------------------------------------------------------

    def header(self, name: bytes) -> str | None:
        """Return a header's value; ``name`` in lower case."""
        value = self._headers.get(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    @property
    def key(self) -> Key:
        """The key of the client; ``ANYONE`` where the server wants none. Its name owns what the client makes."""
        return key_of(self.scope)

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """All headers, by their names in lower case; of a repeated one the last."""
        return self._headers

    def session_id(self) -> str:
        """Return the ``X-Session-ID``. Raises ``MissingSession``."""
        sid = self.header(b"x-session-id")
        sid = "" if sid is None else sid.strip()
        if not sid:
            raise MissingSession()
        return sid

    def query(self) -> dict[str, str]:
        """Return the parameters of the query; of a repeated one the last."""
        return dict(urllib.parse.parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    async def body(self, limit: int) -> bytes:
        """Read the whole body. Raises ``BodyTooLarge`` and ``ClientDisconnected``."""
        message = await self.receive()
        if message["type"] != "http.request":
            raise ClientDisconnected()
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            if len(body) > limit:
                raise BodyTooLarge(limit)
            return body
        parts = [body]
        size = len(body)
        while True:
            if size > limit:
                raise BodyTooLarge(limit)
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientDisconnected()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if not message.get("more_body", False):
                if size > limit:
                    raise BodyTooLarge(limit)
                return b"".join(parts)

    async def model(self, model: type[Model], limit: int) -> Model:
        """Read the body as a model. Raises what ``body`` and ``parse`` raise."""
        return parse(model, await self.body(limit))

    # --- the response ------------------------------------------------------------------------

    @property
    def disconnected(self) -> bool:
        """True where the connection is known to be lost, so that the client receives nothing."""
        return self._gone if self._connection is None else self._connection.disconnected

    @property
    def delivery(self) -> ConnectionDelivery | None:
        """The delivery of responses through a proxy; None where a written response is a delivered one."""
        return None if self._connection is None else self._connection.delivery

    @property
    def needs_watch(self) -> bool:
        """True on a server that has no ``Connection``: a disconnect is noticed only while ``watch`` runs."""
        return self._connection is None

    async def watch(self) -> None:
        """Wait for the disconnect of the client, on a server that has no ``Connection``.

        Call it after the body was read, and while no other code receives: the next message is then the disconnect.
        """
        message = await self.receive()
        self._gone = message["type"] == "http.disconnect"
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end_when_lost(self, waiter: asyncio.Future[None] | None) -> None:
        """Set the result of ``waiter`` once the connection is lost; only of the last that was given."""
        if self._connection is None:
            self._waiter = waiter
        else:
            self._connection.waiter = waiter

    async def json(self, data: bytes, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Answer with JSON bytes."""
        head = _JSON_HEAD % len(data)
        for name, value in headers:
            head += f"{name.lower()}: {value}\r\n".encode("latin-1")
        await self._respond(status, head, data)

    async def octets(self, data: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Answer with bytes as they are."""
        head = _OCTETS_HEAD % len(data)
        for name, value in headers:
            head += f"{name.lower()}: {value}\r\n".encode("latin-1")
        await self._respond(200, head, data)

    async def text(self, data: bytes, content_type: str) -> None:
        """Answer with text."""
        await self._respond(200, _TEXT_HEAD % (content_type.encode(), len(data)), data)

    async def events(self, frames: bytes) -> None:
        """Answer with a complete event stream, in one response."""
        await self._respond(200, _EVENTS_HEAD % len(frames), frames)

    async def large_events(self, first: bytes, length: int, rest: AsyncGenerator[bytes]) -> None:
        """Answer with a complete event stream, in one response: ``first``, and the pieces of ``length`` bytes.

        Each piece waits for the client to have read nearly all of those before. Raises what the first piece raises
        before anything is sent.
        """
        async with contextlib.aclosing(rest):
            piece = await anext(rest)
            head = _EVENTS_HEAD % (len(first) + length)
            if (request := self.ids.for_response) is not None:
                head += b"x-request-id: %b\r\n" % request.encode()
            await self._start(200, head)
            await self.send({"type": "http.response.body", "body": first + piece, "more_body": True})
            async for piece in rest:
                if self.disconnected:
                    break
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._end_large()

    async def begin_stream(self, frames: bytes) -> None:
        """Begin to answer with an event stream."""
        self.status = 200
        start = _STREAM_START
        if (request := self.ids.for_response) is not None:
            start = {**start, "headers": [*start["headers"], (REQUEST_ID, request.encode())]}
        await self.send(start)
        await self.send_frames(frames)
        self._headers = _NO_HEADERS
        if self._connection is not None:
            self._connection.free_request(self.send, self.receive)

    async def send_frames(self, frames: bytes, *, last: bool = False) -> None:
        """Send more of an event stream; with ``last`` its end."""
        await self.send({"type": "http.response.body", "body": frames, "more_body": not last})

    async def _respond(self, status: int, head: bytes, body: bytes) -> None:
        self.status = status
        if (request := self.ids.for_response) is not None:
            head += b"x-request-id: %b\r\n" % request.encode()
        large = len(body) > _LARGE
        connection = self._connection
        if connection is not None and not large and connection.respond(self.send, status, head, body):
            return
        await self._start(status, head)
        await self.send({"type": "http.response.body", "body": body, "more_body": large})
        if large:
            await self._end_large()

    async def _start(self, status: int, head: bytes) -> None:
        self.status = status
        headers = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[:-1]]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _end_large(self) -> None:
        # Waits until the socket has taken nearly all of it; a lost connection is known by then.
        await self.send({"type": "http.response.body", "body": b"", "more_body": True})
        if self._connection is None:
            watcher = asyncio.ensure_future(self.watch())
            await asyncio.sleep(0)
            watcher.cancel()
        await self.send({"type": "http.response.body", "body": b""})

    async def error(self, error: OrsError) -> None:
        """Answer with an error."""
        await self.json(encode({"detail": error.detail}), error.status, error.headers)


def parse(model: type[Model], body: bytes) -> Model:
    """Return the body of a request as a model. Raises ``InvalidBody``."""
    try:
        # As `model_validate_json`, without what its options cost.
        return cast("Model", model.__pydantic_validator__.validate_json(body))
    except ValidationError as error:
        if _SURROGATE.search(body):
            with contextlib.suppress(ValueError, RecursionError):
                # Models write half an emoji; most clients escape it as JSON, which pydantic does not accept.
                return model.model_validate(without_surrogates(json.loads(body)))
        raise InvalidBody(body_errors(error)) from None


def body_errors(error: ValidationError) -> list[dict[str, Any]]:
    """Convert a validation error to FastAPI's form, without the input, which may hold secrets or answers to tasks."""
    problems: list[dict[str, Any]] = []
    for problem in error.errors(include_url=False, include_input=False):
        entry: dict[str, Any] = {"type": problem["type"], "loc": ["body", *problem["loc"]], "msg": problem["msg"]}
        if "ctx" in problem:
            entry["ctx"] = json.loads(json.dumps(problem["ctx"], default=str))
        problems.append(entry)
    return problems
