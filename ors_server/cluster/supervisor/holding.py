"""The socket by which a holder keeps a node: a Unix socket of the node, to which the holder stays connected.

A holder is a small process of the cluster's manager, such as an actor of Ray. The node is not its child, so that a
holder that is killed does not end the node; a later holder finds the node by the socket and connects again. Lines are
JSON. The node greets each connection with its ``pid``, whether it is ``held``, and for how many seconds it has been
``alone``. ``hold`` makes the connection its holder's, ``stop`` has the node stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ors_server.errors import ControlError

__all__ = ["Holding"]

_TICK = 0.2


class Holding:
    """The node's side of the socket, while the block runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._server: asyncio.Server | None = None
        self._holder: asyncio.StreamWriter | None = None
        self._alone_since = time.monotonic()
        self._stop = asyncio.Event()
        self._connections = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        try:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._accept, self._path)
        except OSError as error:
            raise ControlError(
                f"Cannot listen at {self._path}: {error.strerror or error}", "Set TMPDIR to a folder with a short path."
            ) from None
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._path.unlink(missing_ok=True)

    async def lost(self, ttl: float, joined: Callable[[], bool]) -> str:
        """Wait until the holder says stop, or for ``ttl`` seconds without a holder or without a gateway.

        Returns the reason for the log.
        """
        apart = 0.0
        while not self._stop.is_set():
            apart = 0.0 if joined() else apart + _TICK
            if apart > ttl:
                # The holder would start it again.
                if self._holder is not None:
                    self._send(self._holder, {"orphaned": True})
                return f"no gateway has taken this node for {ttl:g} s"
            if self._alone > ttl:
                return f"this node has had no holder for {ttl:g} s"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK)
        return "its holder stops it"

    @property
    def _alone(self) -> float:
        return 0.0 if self._holder is not None else time.monotonic() - self._alone_since

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._answer(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._send(writer, {"pid": os.getpid(), "held": self._holder is not None, "alone": self._alone})
            async for line in reader:
                command = json.loads(line)
                if command == "hold":
                    if self._holder is None:
                        self._holder = writer
                    self._send(writer, {"held": self._holder is writer})
                elif command == "stop":
                    self._stop.set()
        except (OSError, ValueError):
            pass  # a connection that breaks or carries something else is not a holder's
        finally:
            if self._holder is writer:
                self._holder, self._alone_since = None, time.monotonic()
            writer.close()

    @staticmethod
    def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")
