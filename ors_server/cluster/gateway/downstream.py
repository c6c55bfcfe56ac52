"""A client's connection to a gateway: one request at a time, passed on to a worker or answered here.

Bytes of requests and responses are passed on as they came. A request's head is changed only where the client's
connection is to be closed after the response, as with HTTP/1.0. The worker's must stay open: a worker that closes it
cannot know whether the client has the response (``http.delivery``). Later requests on the connection wait, unread.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ors_server.cluster.gateway.members.workers import ENDED, Worker
from ors_server.cluster.gateway.proxy.answers import error_response, own_response
from ors_server.cluster.gateway.proxy.delivery import Deliveries, end_events
from ors_server.cluster.gateway.proxy.framing import (
    NO_BODY,
    BadRequest,
    ChunkedBody,
    FixedBody,
    Head,
    read_head,
    unchunked,
    with_close,
)
from ors_server.cluster.gateway.proxy.targets import path_of
from ors_server.cluster.gateway.proxy.templates import RequestTemplate
from ors_server.cluster.gateway.proxy.upstream import Upstream, connect, take_idle
from ors_server.cluster.gateway.routing.auth import Guard, Visitor
from ors_server.cluster.gateway.routing.router import Router
from ors_server.cluster.gateway.routing.routes import Later, Own, WithBody
from ors_server.cluster.gateway.routing.session_lookup import Search, find
from ors_server.errors import OrsError
from ors_server.http.delivery import GATEWAY_HEADER
from ors_server.http.errors import BodyTooLarge

__all__ = ["Downstream"]

#: Bytes that a client may leave unread before the worker's response is read no further.
_HIGH_WATER = 256 * 1024
#: Bytes of a next request that are kept while a response is on its way; then the connection is not read.
_READ_AHEAD = 64 * 1024
#: Seconds that a connection with a refused request stays open, for its client to read the reason.
_LINGER = 1.0
#: The head of a request that was not read because it fitted a template.
_KNOWN = Head(b"")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Downstream(asyncio.Protocol):
    """One client's connection; ``router`` decides about each request."""

    def __init__(self, router: Router, connections: set[Downstream], max_headers: int, guard: Guard) -> None:
        self._router = router
        self._connections = connections
        self._max_headers = max_headers
        self._guard = guard
        self._visitor = Visitor("")
        #: When the connection became idle, by ``time.monotonic``; None during a request.
        self.idle_since: float | None = time.monotonic()
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._reading = True
        self._writable = True
        self._closing = False
        self._head: Head | None = None
        self._body: FixedBody | ChunkedBody = NO_BODY
        #: Whether the connection stays open after the response.
        self._keep_alive = True
        #: The template that a request fitted last.
        self._template: RequestTemplate | None = None
        #: An own answer, which is sent once the request's body has been read.
        self._own: Own | None = None
        #: A choice that needs the request's body, and the request so far.
        self._with_body: WithBody | None = None
        self._kept = bytearray()
        self._upstream: Upstream | None = None
        #: Parts of the request that came while a connection to the worker was opened.
        self._unsent: list[bytes] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._answered = False

    # --- the request -------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._delivering = Deliveries(transport, self._loop)
        peer = transport.get_extra_info("peername")
        self._visitor.address = str(peer[0]) if peer else ""
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._head is None:
            if not self._buffer and self._writable and self._pass_on_known(data):
                return
            self._buffer = self._buffer + data if self._buffer else data
            self._next_request()
            self._pause_if_full()
            return
        try:
            rest = self._pass_on(data)
        except BadRequest as error:
            self._refuse(400, str(error))
            return
        if rest:
            self._buffer += rest
            self._next_request()
            self._pause_if_full()

    def _pass_on_known(self, data: bytes) -> bool:
        """Pass on a whole request that fits a template; return False for any other, which has to be read."""
        template = self._template
        sid = template.session_of(data) if template is not None else None
        if sid is None:
            template = self._router.templates.find(data)
            sid = template.session_of(data) if template is not None else None
        worker = self._router.placed.get(sid) if sid is not None else None
        if template is None or worker is None or worker.dead:
            return False
        if not self._guard.admit_again(self._visitor, template.credential):
            return False
        upstream = take_idle(worker)
        if upstream is None:
            return False
        self.idle_since = None
        self._template, self._upstream = template, upstream
        self._head, self._body, self._keep_alive = _KNOWN, NO_BODY, True
        upstream.send(self, template.method, data, template)
        return True

    def _pause_if_full(self) -> None:
        if len(self._buffer) > _READ_AHEAD and not (self._head is None and self._writable):
            self.pause_request()

    def _next_request(self) -> None:
        """Begin the next request if there is one; those after it have a turn of the loop each."""
        if self._head is not None or not self._buffer or not self._writable or self._closing:
            return
        data = self._buffer.lstrip(b"\r\n") if self._buffer[0] in b"\r\n" else self._buffer
        end = data.find(b"\r\n\r\n") + 4
        if end > self._max_headers or (end < 4 and len(data) > self._max_headers):
            detail = "Send fewer or smaller headers, or raise ORS_MAX_HEADERS on the server"
            self._refuse(431, f"The request head is larger than {self._max_headers} bytes. {detail}")
            return
        if end < 4:
            self._buffer = data
            return
        self._buffer = b""
        try:
            head = read_head(data[:end])
            if len(data) > end:
                end += head.body.take(data[end:])
                self._buffer = data[end:]
            self._begin(head, data[:end])
        except BadRequest as error:
            self._refuse(400, str(error))

    def _begin(self, head: Head, data: bytes) -> None:
        """Begin a request, of which ``data`` has come: its head, and perhaps some of its body."""
        self.idle_since = None
        if head.version == "1.0":
            head.keep_alive = False  # as a worker alone does, whose responses may be chunked
        self._head, self._body, self._keep_alive = head, head.body, head.keep_alive
        refused = self._guard.admit(head, self._visitor, path_of(head.target))
        route = self._router.route(head) if refused is None else Own(refused)
        if refused is None and not isinstance(route, Worker):
            route = self._refusal(head) or route
        if isinstance(route, Own):
            self._answer_itself(route, head)
        elif isinstance(route, Later):
            self._connecting = self._loop.create_task(self._answer_later(route, head))
        elif isinstance(route, WithBody):
            self._continue(head)
            self._with_body, self._kept = route, bytearray(data)
            self._choose_if_read()
        else:
            self._forward(route, head, data)

    def _forward(self, route: Worker | Search, head: Head, data: bytes) -> None:
        """Pass on what has come of a request."""
        if not self._keep_alive:
            data = head.persistent(GATEWAY_HEADER) + data[len(head.data) :]
        elif GATEWAY_HEADER in head.headers:
            data = head.without(GATEWAY_HEADER) + data[len(head.data) :]
        self._upstream = take_idle(route) if isinstance(route, Worker) else None
        if self._upstream is not None:
            if head.placed:
                self._template = self._router.templates.make(head, self._visitor.credential)
            self._upstream.send(self, head.method, data, self._template if head.placed else None)
            head.forget()
            return
        self._unsent = [data]
        self._connecting = self._loop.create_task(self._connect(route))

    def _pass_on(self, data: bytes) -> bytes:
        """Pass on what belongs to the request's body; return the rest. Raises ``BadRequest``."""
        if self._body.complete:
            return data
        taken = self._body.take(data)
        part = data if taken == len(data) else data[:taken]
        if self._own is not None:
            self._answer_if_read()
        elif self._with_body is not None:
            self._kept += part
            self._choose_if_read()
        elif self._unsent is not None:
            self._unsent.append(part)
            self.pause_request()
        elif self._upstream is not None:
            self._upstream.write(part)
        return data[taken:]

    async def _connect(self, route: Worker | Search) -> None:
        head = self._head
        assert head is not None
        worker = None if isinstance(route, Search) else route
        own: Own | None = None
        upstream: Upstream | None = None
        try:
            if isinstance(route, Search):
                worker, lives = await find(route)
                if lives:
                    self._router.note(route, worker)
                upstream = take_idle(worker) or await connect(worker)
            else:
                upstream = await connect(route)
        except OrsError as error:
            own = self._router.not_found(route, head, error) if isinstance(route, Search) else None
            own = own or Own(error_response(error))
        except OSError as error:
            self._router.counts.unreachable += 1
            ended = isinstance(error, ENDED) or (worker is not None and worker.dead)
            own = self._refusal(head) or self._router.without_worker(head, ended=ended)
        unsent, self._unsent, self._connecting = self._unsent or [], None, None
        self.resume_request()  # before the worker may ask for a pause
        if upstream is None:
            assert own is not None
            self._answer_itself(own, head)
            return
        if self._closing:
            upstream.close()
            return
        self._upstream = upstream
        upstream.send(self, head.method, unsent[0])
        for part in unsent[1:]:
            upstream.write(part)
        head.forget()

    def _refusal(self, head: Head) -> Own | None:
        """Return the refusal of a request without a key, which no worker has seen; None where it has one."""
        refused = self._guard.refusal(self._visitor, path_of(head.target))
        return None if refused is None else Own(refused)

    def _choose_if_read(self) -> None:
        route, head = self._with_body, self._head
        assert route is not None
        assert head is not None
        if len(self._kept) - len(head.data) > route.limit:
            self._with_body, self._kept = None, bytearray()
            self._refuse(413, BodyTooLarge(route.limit).detail)
        elif head.body.complete:
            body = bytes(memoryview(self._kept)[len(head.data) :])
            chosen = route.choose(unchunked(body) if isinstance(head.body, ChunkedBody) else body)
            self._with_body, self._kept = None, bytearray()
            if isinstance(chosen, Own):
                self._answer_itself(chosen, head)
            else:
                head.data = head.without(b"expect")
                self._forward(chosen, head, head.data + body)

    def _continue(self, head: Head) -> None:
        if not head.body.complete and head.version == "1.1" and head.expects_continue:
            self._transport.write(_CONTINUE)

    async def _answer_later(self, later: Later, head: Head) -> None:
        data = await later.respond()
        self._connecting = None
        if not self._closing:
            self._answer_itself(Own(data), head)

    def _answer_itself(self, own: Own, head: Head) -> None:
        self._router.counts.by_gateway += 1
        self._continue(head)
        self._own = own
        self._answer_if_read()

    def _answer_if_read(self) -> None:
        own, head = self._own, self._head
        if own is not None and head is not None and self._body.complete:
            self._own = None
            if own.data:
                data = own.data if self._keep_alive else with_close(own.data)
                self._transport.write(data[: data.index(b"\r\n\r\n") + 4] if head.method == b"HEAD" else data)
            self._end_request(keep_alive=True)

    # --- the response ------------------------------------------------------------------------

    def response_data(self, data: bytes) -> None:
        if not self._answered:
            self._answered = True
            self._guard.note(self._visitor, data)
            if not self._keep_alive and data[9:10] != b"1":
                data = with_close(data)
        self._transport.write(data)

    def response_ended(self, *, keep_alive: bool) -> None:
        upstream, self._upstream = self._upstream, None
        assert upstream is not None
        self._router.counts.by_worker += 1
        if self._body is not NO_BODY and not self._body.complete:
            # The worker has refused the rest of the request. The client sends it, and reads the response after that.
            upstream.abort()
            self._keep_alive &= keep_alive
            self._own = Own(b"")
            self.resume_request()
            return
        if self._transport.get_write_buffer_size() == 0:
            upstream.release()
        else:
            self._delivering.add(upstream)
        self._end_request(keep_alive=keep_alive)

    def response_lost(self) -> None:
        """End the connection where the response has begun or the call may have run; the client asks again.

        An open event stream of a worker that has ended gets an event with the reason first.
        """
        upstream, self._upstream = self._upstream, None
        self._closing = True
        self._router.counts.lost += 1
        if self._transport is None:
            return
        if upstream is not None and upstream.can_end_events:
            self._ending = self._loop.create_task(end_events(self._transport, upstream.worker))
        else:
            self._transport.abort() if self._answered else self._transport.close()

    def _end_request(self, *, keep_alive: bool) -> None:
        self._head, self._body, self._answered = None, NO_BODY, False
        self.idle_since = time.monotonic()
        if not (keep_alive and self._keep_alive):
            self._closing = True
            self._transport.close()
            return
        if not self._reading:
            self.resume_request()
        if self._buffer:
            self._loop.call_soon(self._next_request)

    def _refuse(self, status: int, detail: str) -> None:
        self._closing = True
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        if not self._answered:
            self._transport.write(own_response(status, {"detail": detail}, close=True))
        # If it were closed at once, with bytes unread, the connection would be reset and the answer lost.
        self._loop.call_later(_LINGER, self._transport.close)

    # --- flow control ------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._writable = False
        if self._upstream is not None:
            self._upstream.pause_response()

    def resume_writing(self) -> None:
        self._writable = True
        if self._upstream is not None:
            self._upstream.resume_response()
        if self._head is None:
            self.resume_request()
            self._loop.call_soon(self._next_request)

    def pause_request(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume_request(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    # --- the end -----------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        """Close the connection unless a request is under way; it then closes after the response."""
        if self._head is None:
            self._closing = True
            self._transport.close()
        else:
            self._keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._closing = True
        for task in (self._connecting, self._ending):
            if task is not None:
                task.cancel()
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None
        self._delivering.abort()
