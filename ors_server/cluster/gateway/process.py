"""The process of a gateway that a supervisor starts.

The supervisor starts ``python -m ors_server.cluster.gateway.process`` with the listening socket and a pipe. Each line
of the pipe is a JSON object with the ``members`` as they are now (``workers.Member``). The end of the pipe is the end
of the supervisor: the gateway places no new sessions, goes on with those of the workers it knows, and ends when the
last of them has ended. It writes one line to standard output once it knows the state of all workers, environments
among them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop
from ors_containers.linux.limits.file_limit import raise_file_limit
from ors_containers.linux.subprocesses import pipe_file

from ors_server.cluster.gateway.gateway import Gateway
from ors_server.cluster.gateway.members.placed_ids import KEY_VARIABLE
from ors_server.cluster.gateway.members.workers import Life, Member, Workers
from ors_server.settings import Settings
from ors_server.telemetry.logs import start_logging
from ors_server.wire.version import HANDSHAKE, VERSION

logger = logging.getLogger("ors_server.gateway")


class SupervisedGateway(Gateway):
    """A gateway whose workers a supervisor announces."""

    def __init__(self, settings: Settings, key: bytes, number: int, folder: Path) -> None:
        super().__init__(settings, Workers(remembered=settings.session_ttl), key)
        self.number, self.folder = number, folder
        self._orphaned = False
        self._said = False

    async def follow(self, members: asyncio.StreamReader) -> None:
        """Follow the announcements of the supervisor."""
        async for line in members:
            message = json.loads(line)
            if message.get("handshake") != HANDSHAKE:
                logger.error(
                    "this gateway was updated, and its supervisor has another private protocol; start the server again",
                    extra={"version": VERSION},
                )
                self.stop()
                return
            self.update([Member(*member) for member in message["members"]])
        self._orphaned = True
        self.workers.take_no_more()
        logger.error("the supervisor has ended; no new sessions are taken, and those that live go on")

    def note_report(self, report: object) -> None:
        """Take note of a worker's report."""
        super().note_report(report)
        if self.all_reported and self.workers.environments and not self._said:
            self._said = True
            with contextlib.suppress(OSError):  # the supervisor has ended
                os.write(sys.stdout.fileno(), b"all workers have reported\n")

    def pass_time(self, seconds: float) -> None:
        """Count seconds; without a supervisor, stop when the last worker has ended."""
        super().pass_time(seconds)
        if self._orphaned and all(worker.life is Life.DEAD for worker in self.workers):
            self.stop()


async def _run(listening: socket.socket, pipe: int, gateway: SupervisedGateway) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe_file(pipe, "rb")
    )
    following = asyncio.create_task(gateway.follow(reader))
    await gateway.serve(listening)
    following.cancel()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a gateway on inherited descriptors."""
    parser = argparse.ArgumentParser(description="Started by `ors-server serve --workers`.")
    parser.add_argument("--listening", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--members", type=int, required=True, help="descriptor of the pipe with the workers")
    parser.add_argument("--number", type=int, required=True, help="its number among the gateways of this server")
    parser.add_argument("--folder", type=Path, required=True, help="folder of this server")
    given = parser.parse_args(arguments)
    settings = Settings()
    logs = start_logging(settings)
    raise_file_limit()
    try:
        with socket.socket(fileno=given.listening) as listening:
            gateway = SupervisedGateway(
                settings, bytes.fromhex(os.environ.pop(KEY_VARIABLE)), given.number, given.folder
            )
            uvloop.run(_run(listening, given.members, gateway))
    finally:
        logs.stop()


if __name__ == "__main__":
    main()
    sys.exit(0)
