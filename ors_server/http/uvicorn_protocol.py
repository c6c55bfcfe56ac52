"""uvicorn's HTTP protocol with four changes.

A limit on the size of a request's head, which httptools does not have: 431 above it. A ``Connection`` in the request's
scope, with which a handler knows at no cost whether its client is still connected (protocol 0.1, the rule of attaching
to a lost call), and writes a whole response at once, without uvicorn's check of each header. One timer for the idle
time of a connection, where uvicorn starts and cancels one for each response. And, behind a proxy, the rule of
``delivery``.

Methods call those of uvicorn by its class's name: ``super()`` would take as long as some of them do.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ors_server.http.delivery import CONFIRMATION, GATEWAY_HEADER, Confirmations, ConnectionDelivery
from ors_server.http.exchange import CONNECTION
from ors_server.keys.cluster_key import accepts

__all__ = ["http_protocol"]


#: Seconds that a refused connection stays open for its client to read the reason; what it still sends is discarded.
_LINGER = 1.0


#: Requests that may wait for the response before theirs until the connection is read no further.
_LONGEST_PIPELINE = 16
#: The part of a scope that is used while a response is sent.
_KEPT = ("type", "method", "path")
#: Set where a message arrives or a response ends; nothing waits for it.
_NOT_AWAITED = asyncio.Event()


class _Pipeline(list[Any]):
    """Later requests of a connection; an empty ``deque`` takes 0.7 KiB."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class _FlowControl:
    """uvicorn's class of this name, with an event only while something waits for it: an event takes 0.8 KiB."""

    __slots__ = ("_transport", "_writable", "read_paused", "write_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None
        self.read_paused = False
        self.write_paused = False

    async def drain(self) -> None:
        if self.write_paused:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None


class _Connection:
    """The connection of one request; it updates uvicorn's state as uvicorn's ``send`` does."""

    __slots__ = ("_cycle", "delivery", "waiter")

    def __init__(self, cycle: RequestResponseCycle, delivery: ConnectionDelivery | None) -> None:
        # Weak: the cycle owns the scope that holds this object. A reference cycle of a dozen objects for each request
        # would be left to the garbage collector, which would pause the server.
        self._cycle = weakref.ref(cycle)
        self.delivery = delivery
        self.waiter: asyncio.Future[None] | None = None

    def lose(self) -> None:
        """Note that the connection is lost, and notify who waits on it."""
        cycle = self._cycle()
        if cycle is not None and not cycle.response_complete:
            # uvicorn does so for the last request only, which may wait for the response to this one.
            cycle.disconnected = True
            cycle.message_event.set()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def free_request(self, send: Any, receive: Any) -> None:
        cycle = self._cycle()
        if cycle is None or not getattr(send, "__self__", None) is cycle is getattr(receive, "__self__", None):
            return  # a middleware may use the request, and receive
        scope: Any = cycle.scope
        kept = {key: scope[key] for key in _KEPT}
        scope["headers"].clear()
        scope.clear()
        scope.update(kept)
        cycle.message_event = _NOT_AWAITED
        protocol: Any = cycle.transport.get_protocol()
        protocol.free_parser(cycle)

    @property
    def disconnected(self) -> bool:
        cycle = self._cycle()
        return cycle is None or cycle.disconnected

    def respond(self, send: Any, status: int, head: bytes, body: bytes) -> bool:
        cycle = self._cycle()
        if cycle is None or getattr(send, "__self__", None) is not cycle:
            return False
        if cycle.flow.write_paused or cycle.response_started:
            return False
        if cycle.disconnected:
            return True  # nothing is written, as in uvicorn's send
        if not cycle.keep_alive:
            head = head.replace(b"connection: keep-alive\r\n", b"") + b"connection: close\r\n"
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        default = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
        cycle.transport.write(b"%b%b%b\r\n%b" % (STATUS_LINE[status], default, head, body))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


def http_protocol(
    max_headers: int, *, behind_proxy: bool = False, behind_gateway: bool = False, verifier: bytes = b""
) -> type[HttpToolsProtocol]:
    """Make the protocol class for ``uvicorn.Config(http=…)``; ``max_headers`` in bytes.

    ``behind_gateway`` trusts ``GATEWAY_HEADER``, which any client can send through another proxy. With a ``verifier``
    only connections whose first request has the token of a gateway there are served; the others get 403.
    """
    confirmations = Confirmations() if behind_proxy else None

    class OrsHttpProtocol(HttpToolsProtocol):
        # Slots: with more attributes in its dictionary, a connection would take a KiB more.
        __slots__ = (
            "_between_messages",
            "_connection",
            "_delivery",
            "_head_ended",
            "_idle_since",
            "_idle_timer",
            "_in_head",
            "_is_stranger",
            "_received",
            "_receiving",
            "_refused",
            "_shared",
            "_too_large",
            "_trailer_size",
        )

        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            self.pipeline: Any = _Pipeline()
            self._delivery: ConnectionDelivery | None = None
            # That of the request which is answered now; later ones wait in the pipeline.
            self._connection: _Connection | None = None
            self._in_head = True
            self._between_messages = True
            self._head_ended = False
            # Sizes in bytes: of what is received now, of what of this head was received before, of what came with the
            # end of the message before it, in which the head may have begun, and of the trailers.
            self._receiving = 0
            self._received = 0
            self._shared = 0
            self._trailer_size = 0
            self._too_large = False
            self._refused = False
            self._is_stranger = False
            # When the last response was complete, by the loop's clock; None once more was received.
            self._idle_since: float | None = None
            self._idle_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            HttpToolsProtocol.connection_made(self, transport)
            self.flow: Any = _FlowControl(transport)
            if confirmations is not None:
                self._delivery = ConnectionDelivery(confirmations)

        def connection_lost(self, exc: Exception | None) -> None:
            HttpToolsProtocol.connection_lost(self, exc)
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            if self._connection is not None:
                self._connection.lose()
            if self._delivery is not None:
                cycle: Any = self.cycle  # None before the first request
                closed_here = cycle is not None and cycle.response_complete and not cycle.keep_alive
                self._delivery.end(reset=exc is not None, closed_here=closed_here)

        def free_parser(self, cycle: RequestResponseCycle) -> None:
            if self._between_messages and cycle is self.cycle and cycle.keep_alive:
                self.parser: Any = None

        def on_message_begin(self) -> None:
            if self._delivery is not None:
                self._delivery.confirm()
            HttpToolsProtocol.on_message_begin(self)
            self._between_messages = False

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_head:
                self._trailer_size += len(name) + len(value) + 4
                if self._trailer_size > max_headers:
                    self._stop_parsing()
                return  # a trailer is not a header: a gateway has read the head, and would have chosen by another value
            HttpToolsProtocol.on_header(self, name, value)

        def on_headers_complete(self) -> None:
            # Counted only where what came could be more than the limit: no head is larger than these bytes.
            if self._shared + self._received + self._receiving > max_headers and self._head_size() > max_headers:
                self._stop_parsing()
            self._in_head = False
            self._head_ended = True
            self._trailer_size = 0
            delivery = self._delivery
            if behind_gateway and delivery is not None and not delivery.of_gateway:
                delivery.of_gateway = any(
                    name == GATEWAY_HEADER and (not verifier or accepts(verifier, value))
                    for name, value in self.headers
                )
                if verifier and not delivery.of_gateway:
                    self._is_stranger = True
                    raise ValueError("not a gateway")
            waiting = len(self.pipeline)
            HttpToolsProtocol.on_headers_complete(self)
            # Older versions of uvicorn keep a connection open that the client wants closed.
            if not self.parser.should_keep_alive():
                self.cycle.keep_alive = False
            scope: Any = self.scope
            scope[CONNECTION] = connection = _Connection(self.cycle, delivery)
            if len(self.pipeline) == waiting:
                self._connection = connection
            elif waiting < _LONGEST_PIPELINE:
                self.flow.resume_reading()  # where nothing is read, the loss of the connection is not noticed

        def on_message_complete(self) -> None:
            HttpToolsProtocol.on_message_complete(self)
            self._in_head = self._between_messages = True
            self._received = 0
            self._shared = self._receiving

        def on_response_complete(self) -> None:
            # As uvicorn's, except the timer.
            self.server_state.total_requests += 1
            if self.transport.is_closing():
                return
            self.flow.resume_reading()
            if self.pipeline:
                cycle, app = self.pipeline.pop()
                self._connection = cycle.scope[CONNECTION]
                self._start_asgi_task(cycle, app)
                return
            self._idle_since = self.loop.time()
            if self._idle_timer is None:
                self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

        def _close_if_idle(self) -> None:
            now = self.loop.time()
            idle = 0.0 if self._idle_since is None else now - self._idle_since
            if idle < self.timeout_keep_alive:
                self._idle_timer = self.loop.call_later(self.timeout_keep_alive - idle, self._close_if_idle)
            elif not self.transport.is_closing():
                self.transport.close()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            # Within a message a blank line is a part of its body.
            if self._delivery is not None and data == CONFIRMATION and self._between_messages:
                self._delivery.confirm()
                return
            self._idle_since = None
            self._head_ended = not self._in_head
            self._receiving = len(data)
            if self.parser is None:
                self.parser = httptools.HttpRequestParser(self)
                # As uvicorn does: pipelined requests after one that wants the connection closed are allowed.
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            HttpToolsProtocol.data_received(self, data)
            if not self._head_ended:  # otherwise most of these bytes may belong to a body
                self._received += len(data)
                if self._received > max_headers:
                    self._refuse_head()

        def send_400_response(self, msg: str) -> None:
            # The parser reports an exception of a callback like a parse error.
            if self._is_stranger:
                self._refuse(
                    b"403 Forbidden",
                    b"This is a worker of a cluster, and the request has no token of its gateways. Send it to a "
                    b"gateway; a gateway needs the ORS_CLUSTER_KEY of the worker's node",
                )
            elif self._too_large:
                self._refuse_head()
            else:
                HttpToolsProtocol.send_400_response(self, msg)

        def _refuse_head(self) -> None:
            self._refuse(
                b"431 Request Header Fields Too Large",
                b"The request head is larger than %d bytes. Send fewer or smaller headers, or raise "
                b"ORS_MAX_HEADERS on the server" % max_headers,
            )

        def _refuse(self, status: bytes, detail: bytes) -> None:
            if self.transport.is_closing() or self._refused:
                return
            self._refused = True
            body = b'{"detail":"%b"}' % detail
            self.transport.write(
                b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, len(body), body)
            )
            # If it were closed at once, with bytes unread, the connection would be reset and the answer lost.
            self.loop.call_later(_LINGER, self.transport.close)

        def _stop_parsing(self) -> NoReturn:
            self._too_large = True
            raise ValueError("request head over the limit")

        def _head_size(self) -> int:
            request_line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n")
            return request_line + sum(len(name) + len(value) + 4 for name, value in self.headers) + len("\r\n")

    return OrsHttpProtocol
