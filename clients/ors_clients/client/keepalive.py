"""Ping open sessions, and end abandoned ones, on a thread of their own.

Servers end a session that is silent for minutes (900 s here and in both SDKs, 120 s behind some gateways). A trainer's
event loop is often busy for longer, while it trains a batch or loads a model. So one thread of each process pings every
session that has been silent for ten seconds, over connections of its own.

The same thread ends sessions that their own event loop cannot end: of a rollout that was cancelled twice, of a session
dropped without ``close``, of a process that exits. A session belongs to the process that opened it: a forked child
neither pings nor ends its parent's sessions.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import time
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any

from ors_clients.errors import ClientError
from ors_clients.transport.base import ConnectionLost, Headers
from ors_clients.transport.connection import Connection
from ors_clients.transport.loop_thread import LoopThread

__all__ = ["ENDS", "KEEP_ALIVE", "Heartbeat", "KeepAlive"]

#: The requests that end a session; servers of other SDKs want both.
ENDS = ("/delete", "/delete_session")

logger = logging.getLogger("ors_clients.keepalive")

#: Seconds of silence after which a session is pinged.
_EVERY = 10.0
#: Seconds between two looks at all sessions.
_TICK = 1.0
#: Requests at once.
_AT_ONCE = 64
#: Seconds a ping may take.
_PING_LIMIT = 30.0
#: Longest delay of the process's exit for the sessions that are still open, in seconds.
_EXIT_LIMIT = 5.0
#: Seconds the server may take to tear a session down.
_DELETE_LIMIT = 60.0


class Heartbeat:
    """The data for pinging one session, without a reference to it, so that the session can be garbage-collected."""

    __slots__ = ("connection", "headers", "last_sent", "pid", "warned")

    def __init__(self, connection: Connection, headers: Headers) -> None:
        self.connection = connection
        self.headers = headers
        #: When the session last sent or got something, by ``time.monotonic``.
        self.last_sent = time.monotonic()
        #: The process whose session it is.
        self.pid = os.getpid()
        self.warned = False

    @property
    def ours(self) -> bool:
        """True if the session was opened by this process, and not by one that it was forked from."""
        return self.pid == os.getpid()


class KeepAlive:
    """The open sessions of this process; every method may be called from any thread."""

    def __init__(self) -> None:
        self._thread = LoopThread("ors-keepalive", self._forked)
        self._beats: dict[Heartbeat, None] = {}
        self._keeping = False
        self._exiting = False
        self._under_way: set[asyncio.Task[None]] = set()
        self._ending: dict[Future[None], None] = {}
        self._admission: asyncio.Semaphore | None = None
        atexit.register(self._exit)

    def _forked(self) -> None:
        self._beats = {}
        self._keeping = False
        self._under_way = set()
        self._ending = {}
        self._admission = None

    def add(self, beat: Heartbeat) -> None:
        """Ping this session from now on, where its transport can be used on another thread."""
        if beat.connection.transport.threads:
            self._beats[beat] = None
            if not self._keeping:
                self._keeping = True
                self._thread.start(self._keep())

    def discard(self, beat: Heartbeat) -> None:
        """Stop pinging it."""
        self._beats.pop(beat, None)

    def end(self, beat: Heartbeat) -> None:
        """End the session in the background, if it is this process's own."""
        self.discard(beat)
        if not beat.ours or self._exiting:
            return
        if beat.connection.transport.threads:
            ending = self._thread.start(self._admitted(_delete(beat)))
            self._ending[ending] = None
            ending.add_done_callback(lambda ended: self._ending.pop(ended, None))
        else:
            with contextlib.suppress(RuntimeError):  # without its event loop there is no application to end it in
                self._remember(asyncio.get_running_loop().create_task(_delete(beat)))

    # --- on the thread -----------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            now = time.monotonic()
            for beat in list(self._beats):
                if now - beat.last_sent >= _EVERY:
                    beat.last_sent = now
                    self._remember(asyncio.create_task(self._admitted(_ping(beat))))
            await asyncio.sleep(_TICK)

    def _remember(self, task: asyncio.Task[None]) -> None:
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _admitted(self, work: Coroutine[Any, Any, None]) -> None:
        if self._admission is None:
            self._admission = asyncio.Semaphore(_AT_ONCE)
        async with self._admission:
            await work

    # --- the end of the process --------------------------------------------------------------

    def _exit(self) -> None:
        for beat in list(self._beats):
            self.end(beat)
        self._exiting = True
        wait(list(self._ending), _EXIT_LIMIT)


async def _ping(beat: Heartbeat) -> None:
    try:
        response = await beat.connection.once(
            "POST", "/ping", headers=(beat.headers,), deadline=time.monotonic() + _PING_LIMIT
        )
        problem = "" if response.status == 200 else f"status {response.status}"
    except (ConnectionLost, ClientError) as error:
        problem = str(error)
    if problem and not beat.warned:
        # The session may be lost: the server says so to its next request. The next ping may still succeed.
        logger.info("a session's ping failed", extra={"server": beat.connection.url, "reason": problem})
    beat.warned = bool(problem)


async def _delete(beat: Heartbeat) -> None:
    deadline = time.monotonic() + _DELETE_LIMIT
    for path in ENDS:
        with contextlib.suppress(ConnectionLost, ClientError):  # else the server ends it when it has been idle
            await beat.connection.once("POST", path, headers=(beat.headers,), deadline=deadline)


#: The one of this process.
KEEP_ALIVE = KeepAlive()
