"""Accept many connections in one turn of the event loop.

uvloop accepts one connection in each turn. Under load a turn answers every connection that has a request: with a few
hundred sessions that call at once it takes 0.1 s. Of a hundred clients that connect together the last then waits for
10 s with its request unread, be it ``/health``. An ``Acceptor`` accepts up to ``BATCH`` in a turn.

Invariant: an accepted connection is handed to the loop or closed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

__all__ = ["Acceptor"]

logger = logging.getLogger(__name__)

#: Connections accepted in a turn, which takes some 5 ms.
BATCH = 64
#: Seconds without accepting after the process or the machine ran out of files or memory.
REST = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Acceptor of a listening socket, active at once; it has the methods of ``asyncio.Server`` that uvicorn calls."""

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._loop = loop
        self._handed_over = set[asyncio.Task[object]]()
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False
        listening.setblocking(False)
        loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Stop accepting."""
        if self._closed:
            return
        self._closed = True
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """Wait until no connection is being handed over. uvicorn calls it."""
        if self._handed_over:
            await asyncio.wait(self._handed_over)

    def _accept(self) -> None:
        for _ in range(BATCH):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._rest(error)
                    return
                continue  # the client has disconnected: ECONNABORTED and the like
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._hand_over(connection))
            self._handed_over.add(task)
            task.add_done_callback(self._handed_over.discard)

    async def _hand_over(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()  # it was reset meanwhile

    def _rest(self, error: OSError) -> None:
        logger.error(
            "cannot accept connections", extra={"cause": error.strerror, "remedy": "Allow more open files: ulimit -n"}
        )
        self._loop.remove_reader(self._listening)
        self._resting = self._loop.call_later(REST, self._resume)

    def _resume(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listening, self._accept)
