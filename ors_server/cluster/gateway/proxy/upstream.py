"""Connections from a gateway to workers, each of which carries one request after the other.

Invariants, by which a worker knows what has reached a client (``http.delivery``): a connection goes back to its pool
only after the client's socket has taken the whole response; it is aborted where the client has disconnected before; and
before an orderly close a blank line confirms the last response. A gateway never repeats a request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ors_server.cluster.gateway.members.workers import ENDED, LOST_AFTER, Worker
from ors_server.cluster.gateway.proxy.framing import BadRequest, ChunkedBody, FixedBody, read_response_head
from ors_server.cluster.gateway.proxy.templates import RequestTemplate
from ors_server.http import addresses
from ors_server.http.delivery import CONFIRMATION

__all__ = ["Receiver", "Upstream", "connect", "has_ended", "take_idle"]

_LONGEST_HEAD = 256 * 1024
#: Seconds after which a worker that keeps a connection open counts as living.
_LOOK = 1.0


class Receiver(Protocol):
    """A client's connection, which receives a response."""

    def response_data(self, data: bytes) -> None:
        """Take bytes of the response."""
        ...

    def response_ended(self, *, keep_alive: bool) -> None:
        """Take note that the response is complete."""
        ...

    def response_lost(self) -> None:
        """Take note that the worker's connection was lost before the response was complete."""
        ...

    def pause_request(self) -> None:
        """Send no more of the request for now."""
        ...

    def resume_request(self) -> None:
        """Go on sending the request."""
        ...


class Upstream(asyncio.Protocol):
    """One connection to a worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.lost = False
        self._greeting = worker.greeting
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._method = b""
        #: The template that the request fits.
        self._template: RequestTemplate | None = None
        self._paused = False
        self._buffer: bytes = b""
        self._in_head = True
        self._body: FixedBody | ChunkedBody | None = None
        self._keep_alive = True
        self._events = False

    @property
    def can_end_events(self) -> bool:
        """True where the response is an event stream to whose end another event can be added."""
        return self._events and not self._in_head and self._body is not None and self._body.extensible

    # --- the gateway's side ------------------------------------------------------------------

    def send(self, receiver: Receiver, method: bytes, head: bytes, template: RequestTemplate | None = None) -> None:
        """Begin a request, whose response ``receiver`` gets."""
        self._receiver, self._method, self._template = receiver, method, template
        self._in_head, self._body = True, None
        if self._greeting:
            start = head.index(b"\r\n") + 2
            head = head[:start] + self._greeting + head[start:]
            self._greeting = b""
        assert self._transport is not None
        self._transport.write(head)

    def write(self, data: bytes) -> None:
        """Send more of the request."""
        assert self._transport is not None
        self._transport.write(data)

    def pause_response(self) -> None:
        """Read no more of the response for now: the client does not take it."""
        if self._transport is not None and not self.lost:
            self._paused = True
            self._transport.pause_reading()

    def resume_response(self) -> None:
        """Go on reading the response."""
        if self._paused and self._transport is not None and not self.lost:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """End the connection because the client has gone: its last response was not delivered."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def fail(self) -> None:
        """End the connection because the worker has ended; the receiver is notified."""
        if self._transport is not None:
            self._transport.abort()

    def release(self) -> None:
        """Return the connection to its worker's pool, or close it where the worker wants that."""
        self._receiver = None
        if self.lost:
            return
        if self._paused:
            self.resume_response()  # the client may have been slow to the last byte
        if self._keep_alive:
            self.worker.idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection in an orderly way: the last response has reached its client."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(CONFIRMATION)
            self._transport.close()

    # --- the worker's side -------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.worker.connections.add(self)

    def data_received(self, data: bytes) -> None:
        receiver = self._receiver
        if receiver is None:
            self.abort()  # bytes without a request
            return
        template = self._template
        known = template.response if template is not None and self._in_head and not self._buffer else None
        if known is not None and known.fits(data):
            self._receiver, self._keep_alive = None, True
            receiver.response_data(data)
            receiver.response_ended(keep_alive=True)
            return
        try:
            taken = self._frame(data)
        except (ValueError, BadRequest):
            self.abort()
            receiver.response_lost()
            return
        if taken is None:
            return
        receiver.response_data(taken)
        if not self._in_head and self._body is not None and self._body.complete:
            self._receiver = None
            receiver.response_ended(keep_alive=self._keep_alive)

    def _frame(self, data: bytes) -> bytes | None:
        """Return the bytes to pass on; None while the head is incomplete."""
        if not self._in_head:
            if self._body is not None and self._body.take(data) != len(data):
                raise ValueError("bytes after the response")
            return data
        data, self._buffer = self._buffer + data, b""
        start = 0
        while True:
            end = data.find(b"\r\n\r\n", start)
            if end < 0:
                if len(data) > _LONGEST_HEAD:
                    raise ValueError("the head of a response is too long")
                self._buffer = data[start:]
                return data[:start] or None
            head = read_response_head(data[start : end + 4], self._method)
            if head.status >= 200:
                break
            start = end + 4  # an interim response, such as 100 Continue
        self._in_head, self._body, self._keep_alive, self._events = False, head.body, head.keep_alive, head.events
        rest = data[end + 4 :]
        if self._template is not None and head.status == 200 and head.keep_alive and not start:
            self._template.learn(data[: end + 4])
        if self._body is not None and self._body.take(rest) != len(rest):
            raise ValueError("bytes after the response")
        return data

    def pause_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.pause_request()

    def resume_writing(self) -> None:
        if self._receiver is not None:
            self._receiver.resume_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.worker.connections.discard(self)
        if self in self.worker.idle:
            self.worker.idle.remove(self)
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if not self._in_head and self._body is None and exc is None:
            receiver.response_ended(keep_alive=False)  # a body that ends with its connection
        else:
            receiver.response_lost()


def take_idle(worker: Worker) -> Upstream | None:
    """Take a connection out of a worker's pool, the last one that was used; None where there is none."""
    while worker.idle:
        upstream = worker.idle.pop()
        assert isinstance(upstream, Upstream)
        if not upstream.lost:
            return upstream
    return None


async def has_ended(worker: Worker) -> bool:
    """Return whether a worker's process has ended: it does not listen, or closes what it has not accepted."""
    writer = None
    try:
        async with asyncio.timeout(_LOOK):
            reader, writer = await addresses.open_stream(worker.address)
            # While the kernel ends a process, its socket may take connections.
            return not await reader.read(1)
    except (*ENDED, ConnectionResetError):
        return True
    except (OSError, TimeoutError):
        return False  # it lives, as far as is known
    finally:
        if writer is not None:
            writer.close()


async def connect(worker: Worker) -> Upstream:
    """Open a connection to a worker. Raises ``OSError``."""
    async with asyncio.timeout(LOST_AFTER):  # a machine that is gone answers nothing
        return await addresses.connect(worker.address, lambda: Upstream(worker))
