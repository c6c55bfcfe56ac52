"""Accepts connections many at a time.

uvloop accepts one connection in each turn of its loop. Under load a turn answers every connection that has a request,
so with a few hundred sessions calling at once a turn takes 0.1 s, and the hundredth of a crowd that connects waits for
10 s with its request unread, ``/health`` among them. An ``Acceptor`` takes up to ``BATCH`` in a turn.

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

#: Connections a turn: enough for a crowd, few enough that accepting delays nobody noticeably (some 5 ms).
BATCH = 64
#: Seconds without accepting after the process or the machine ran out of files or memory.
REST = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts on a listening socket from its making on; stands where uvicorn expects an ``asyncio.Server``."""

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
        """Accept no more."""
        if self._closed:
            return
        self._closed = True
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """Part of what uvicorn expects: returns once no connection is being handed over."""
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
                continue  # the client has gone again: ECONNABORTED and its kin
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._hand_over(connection))
            self._handed_over.add(task)
            task.add_done_callback(self._handed_over.discard)

    async def _hand_over(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()  # it was reset in the meantime

    def _rest(self, error: OSError) -> None:
        logger.error(
            "cannot accept connections", extra={"cause": error.strerror, "remedy": "Allow more open files: ulimit -n"}
        )
        self._loop.remove_reader(self._listening)
        self._resting = self._loop.call_later(REST, self._resume)

    def _resume(self) -> None:
        self._resting = None
        self._loop.add_reader(self._listening, self._accept)
