"""A gateway process: a listening socket, the workers behind it, and the connections between.

The supervisor starts ``python -m ors_server.gateway.process`` with the listening socket and a pipe. Each line of the
pipe is a JSON object with the ``members`` as they are now (``workers.Member``). The end of the pipe is the end of the
supervisor: the gateway goes on with the workers it knows, and ends when the last of them has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

import uvloop

from ors_server.file_limit import raise_file_limit
from ors_server.gateway.downstream import Downstream
from ors_server.gateway.placed_ids import PlacedIds
from ors_server.gateway.routing import Router
from ors_server.gateway.watching import watch
from ors_server.gateway.workers import SILENT_AFTER, Life, Member, Worker, Workers
from ors_server.http.acceptor import Acceptor
from ors_server.logs import start_logging
from ors_server.settings import Settings

__all__ = ["KEY_VARIABLE", "Gateway"]

logger = logging.getLogger("ors_server.gateway")

#: Variable with the key of session ids, in hexadecimal digits.
KEY_VARIABLE = "ORS_GATEWAY_KEY"
#: Seconds between looks at silent workers and idle connections.
_TICK = 0.5
#: Seconds that requests under way get at a stop, beyond those in which the sessions end; seconds between looks at them.
_GRACE, _LOOK = 3.0, 0.02


class Gateway:
    """The gateway of one process."""

    def __init__(self, settings: Settings, key: bytes) -> None:
        self._settings = settings
        self._workers = Workers()
        self._router = Router(self._workers, PlacedIds(key))
        self._connections: set[Downstream] = set()
        self._watchers: dict[Worker, asyncio.Task[None]] = {}
        self._orphaned = False
        #: Set once all workers have reported.
        self._reported = asyncio.Event()

    async def serve(self, listening: socket.socket, members: asyncio.StreamReader) -> None:
        """Serve until SIGTERM or SIGINT, or until there is neither a supervisor nor a worker."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        tasks = [asyncio.create_task(self._follow(members)), asyncio.create_task(self._look_after(stopping))]
        # Connections wait in the socket's queue: a gateway without reports could only refuse their requests.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reported.wait(), SILENT_AFTER)
        acceptor = Acceptor(listening, self._protocol, loop)
        await stopping.wait()
        for task in [*tasks, *self._watchers.values()]:
            task.cancel()
        acceptor.close()
        for connection in list(self._connections):
            connection.close_if_idle()
        # The workers end their sessions meanwhile, and with them the streams that are open here.
        for _ in range(int((self._settings.shutdown_timeout + _GRACE) / _LOOK)):
            if not self._connections:
                break
            await asyncio.sleep(_LOOK)
        for worker in self._workers:
            for upstream in list(worker.idle):
                upstream.close()
        await asyncio.sleep(0)  # the transports write

    def _protocol(self) -> Downstream:
        return Downstream(self._router, self._connections, self._settings.max_headers)

    async def _follow(self, members: asyncio.StreamReader) -> None:
        async for line in members:
            added, removed = self._workers.replace([Member(*member) for member in json.loads(line)["members"]])
            for worker in removed:
                worker.die()
                self._watchers.pop(worker).cancel()
            for worker in added:
                self._watchers[worker] = asyncio.create_task(watch(worker, self._note_report))
        self._orphaned = True
        logger.error("the supervisor has ended; serving goes on with the workers that live")

    def _note_report(self, _: object) -> None:
        if all(worker.life is not Life.STARTING for worker in self._workers):
            self._reported.set()

    async def _look_after(self, stopping: asyncio.Event) -> None:
        while True:
            await asyncio.sleep(_TICK)
            workers = list(self._workers)
            for worker in workers:
                worker.pass_time(_TICK)
            if self._orphaned and all(worker.life is Life.DEAD for worker in workers):
                stopping.set()
            oldest = time.monotonic() - self._settings.keep_alive
            for connection in list(self._connections):
                if connection.idle_since is not None and connection.idle_since < oldest:
                    connection.close_if_idle()


async def _run(listening: socket.socket, pipe: int, settings: Settings, key: bytes) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", buffering=0)
    )
    await Gateway(settings, key).serve(listening, reader)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a gateway on inherited descriptors."""
    parser = argparse.ArgumentParser(description="Started by `ors-server serve --workers`.")
    parser.add_argument("--listening", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--members", type=int, required=True, help="descriptor of the pipe with the workers")
    given = parser.parse_args(arguments)
    settings = Settings()
    logs = start_logging(settings)
    raise_file_limit()
    try:
        with socket.socket(fileno=given.listening) as listening:
            uvloop.run(_run(listening, given.members, settings, bytes.fromhex(os.environ.pop(KEY_VARIABLE))))
    finally:
        logs.stop()


if __name__ == "__main__":
    main()
    sys.exit(0)
