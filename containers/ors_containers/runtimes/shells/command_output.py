"""The pipe of one command of a container: its head is kept, the rest is read and dropped.

Invariant: at most ``limit`` bytes are kept, and a writer neither blocks nor gets SIGPIPE, as long as the pipe is read:
until every writer has closed it, or ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

__all__ = ["MOST_OUTPUT", "CommandOutput"]

#: Bytes that are kept of a command without a limit of its own.
MOST_OUTPUT = 256 * 2**20
_PIECE = 256 * 1024
#: Pieces that are read before the event loop's other work gets its turn.
_TURN = 8


class CommandOutput:
    """A pipe that this object owns. ``on_piece`` gets every piece that is kept, as it is read."""

    def __init__(self, limit: int, on_piece: Callable[[bytes], object] | None = None) -> None:
        self._limit = limit
        self._on_piece = on_piece
        self._kept = bytearray()
        #: Bytes that were written.
        self.total = 0
        #: Set when every writer has closed the pipe, or ``close`` was called.
        self.ended = asyncio.Event()
        #: Called at that time.
        self.on_end: Callable[[], object] = lambda: None
        #: Its command has ended, and nothing is kept any longer.
        self.settled = False
        self._loop = asyncio.get_running_loop()
        self._sink = -1
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        with contextlib.suppress(OSError):  # the user's pipes may have no more room: the usual size will do
            fcntl.fcntl(self._read_end, fcntl.F_SETPIPE_SZ, _PIECE)
        self._loop.add_reader(self._read_end, self._on_readable)

    def close_write_end(self) -> None:
        """Close this process's own write end."""
        os.close(self.write_end)
        self.write_end = -1

    async def settle(self, patience: float) -> bytes:
        """Wait until the pipe is closed, at most ``patience`` seconds; return what is kept."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self.ended.wait()
        return bytes(self._kept)

    def stop_keeping(self) -> None:
        """Free what is kept, and drop what comes."""
        self.settled = True
        self._limit = 0
        self._kept = bytearray()

    def close(self) -> None:
        """Close the pipe."""
        if self.ended.is_set():
            return
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        if self._sink != -1:
            os.close(self._sink)
        self.ended.set()
        self.on_end()

    def _on_readable(self) -> None:
        for _ in range(_TURN):
            try:
                count = self._take()
            except BlockingIOError:
                return
            if not count:
                self.close()
                return
            self.total += count

    def _take(self) -> int:
        room = self._limit - len(self._kept)
        if room > 0:
            piece = os.read(self._read_end, min(_PIECE, room))
            self._kept += piece
            if piece and self._on_piece is not None:
                self._on_piece(piece)
            return len(piece)
        if self._sink == -1:
            self._sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return os.splice(self._read_end, self._sink, _PIECE)  # the kernel drops the bytes and copies none
