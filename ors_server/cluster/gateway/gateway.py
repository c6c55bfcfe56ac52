"""A gateway: a listening socket, the workers behind it, and the connections between.

Its workers are announced by a supervisor (``process``), or register themselves (``cluster``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from ors_server.cluster.gateway.downstream import Downstream
from ors_server.cluster.gateway.members.health import watch
from ors_server.cluster.gateway.members.placed_ids import PlacedIds
from ors_server.cluster.gateway.members.workers import SILENT_AFTER, Life, Member, Worker, Workers
from ors_server.cluster.gateway.routing.auth import Guard
from ors_server.cluster.gateway.routing.metrics import GatewayMetrics
from ors_server.cluster.gateway.routing.router import Private, Router
from ors_server.http.acceptor import Acceptor
from ors_server.keys.file import keys_file
from ors_server.keys.keys import Keys
from ors_server.settings import Settings

__all__ = ["Gateway"]

logger = logging.getLogger("ors_server.gateway")

#: Seconds between looks at silent workers and idle connections.
_TICK = 0.5
#: Seconds that requests under way get at a stop, beyond those in which the sessions end; seconds between looks at them.
_GRACE, _LOOK = 3.0, 0.02


class Gateway:
    """The gateway of one process."""

    #: Its number among the gateways of one server, and the folder of that server; None for one on its own.
    number: int | None = None
    folder: Path | None = None

    def __init__(self, settings: Settings, workers: Workers, key: bytes) -> None:
        self._settings = settings
        self.workers = workers
        self._ids = PlacedIds(key)
        self._guard = Guard(Keys(keys_file(settings)))
        self._connections: set[Downstream] = set()
        self._watchers: dict[Worker, asyncio.Task[None]] = {}
        #: Answers requests below ``/_ors/``.
        self.private: Private | None = None
        self._stopping = asyncio.Event()
        #: Set once all workers have reported.
        self._reported = asyncio.Event()

    async def serve(self, listening: socket.socket) -> None:
        """Serve until SIGTERM or SIGINT, or until it is stopped."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        looking = asyncio.create_task(self._look_after())
        await self.ready()
        router = Router(self.workers, self._ids, self.private, self._settings.max_body)
        if self._settings.metrics:
            router.metrics = GatewayMetrics(self.workers, router.counts, self._connections, self.number, self.folder)
            await router.metrics.listen()
        most, guard = self._settings.max_headers, self._guard
        acceptor = Acceptor(listening, lambda: Downstream(router, self._connections, most, guard), loop)
        await self._stopping.wait()
        for task in [looking, *self._watchers.values()]:
            task.cancel()
        acceptor.close()
        if router.metrics is not None:
            router.metrics.close()
        for connection in list(self._connections):
            connection.close_if_idle()
        # The workers end their sessions meanwhile, and with them the streams that are open here.
        for _ in range(int((self._settings.shutdown_timeout + _GRACE) / _LOOK)):
            if not self._connections:
                break
            await asyncio.sleep(_LOOK)
        for worker in self.workers:
            for upstream in list(worker.idle):
                upstream.close()
        await asyncio.sleep(0)  # the transports write

    async def ready(self) -> None:
        """Wait until requests can be answered: connections wait in the socket's queue meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reported.wait(), SILENT_AFTER)

    def stop(self) -> None:
        """Begin to stop."""
        self._stopping.set()

    def update(self, members: Sequence[Member]) -> None:
        """Take the workers as they are now."""
        added, removed = self.workers.replace(members)
        for worker in removed:
            worker.die()
            if (watcher := self._watchers.pop(worker, None)) is not None:
                watcher.cancel()
        for worker in added:
            if worker.address:
                self._watchers[worker] = asyncio.create_task(watch(worker, self.note_report))

    @property
    def all_reported(self) -> bool:
        """True once each worker has reported, or has ended."""
        return all(worker.life is not Life.STARTING for worker in self.workers)

    def note_report(self, report: object) -> None:
        """Take note of a worker's report."""
        if self.all_reported:
            self._reported.set()

    def pass_time(self, seconds: float) -> None:
        """Count seconds in which workers did not report."""
        for worker in list(self.workers):
            worker.pass_time(seconds)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_TICK)
            self.pass_time(_TICK)
            oldest = time.monotonic() - self._settings.keep_alive
            for connection in list(self._connections):
                if connection.idle_since is not None and connection.idle_since < oldest:
                    connection.close_if_idle()
