"""The end of a response: its delivery to the client's socket, or the loss of its worker."""

from __future__ import annotations

import asyncio
from typing import Any

from ors_server.cluster.gateway.members.workers import Worker
from ors_server.cluster.gateway.proxy.upstream import Upstream, has_ended
from ors_server.sessions.errors import LOST_WITH_WORKER
from ors_server.wire.sse import error_frame

__all__ = ["Deliveries", "end_events"]

#: Seconds between looks at a client's socket that has not taken the whole response: at first, and at most.
_FIRST_LOOK, _LONGEST_LOOK = 0.01, 1.0
#: The end of an event stream whose worker has ended; empty lines first end what was begun.
_LAST_EVENT = b"\r\n\r\n" + error_frame(LOST_WITH_WORKER.removeprefix("Session lost: "))
_LAST_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_LAST_EVENT), _LAST_EVENT)


class Deliveries:
    """The responses of one client's connection that its socket has not taken yet."""

    __slots__ = ("_loop", "_transport", "_upstreams")

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._upstreams: set[Upstream] = set()

    def add(self, upstream: Upstream) -> None:
        """Release a worker's connection once the client's socket has taken the whole response."""
        self._upstreams.add(upstream)
        # The transport may write at the end of this turn of the loop.
        self._loop.call_soon(self._release_when_taken, upstream, _FIRST_LOOK)

    def abort(self) -> None:
        """Abort the workers' connections: the client has disconnected."""
        while self._upstreams:
            self._upstreams.pop().abort()

    def _release_when_taken(self, upstream: Upstream, pause: float) -> None:
        if upstream not in self._upstreams:
            return  # the client has disconnected
        if self._transport.get_write_buffer_size() == 0:
            self._upstreams.remove(upstream)
            upstream.release()
        else:
            self._loop.call_later(pause, self._release_when_taken, upstream, min(2 * pause, _LONGEST_LOOK))


async def end_events(transport: Any, worker: Worker) -> None:
    """End an open event stream; if its worker has ended, with the error event of a lost session."""
    if await has_ended(worker):
        transport.write(_LAST_CHUNKS)
        transport.close()
    else:
        transport.abort()
