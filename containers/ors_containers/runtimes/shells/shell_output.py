"""The pipe that a shell's commands write to, read whether a command runs or not.

Invariant: output is always drained, up to what a pause between commands may gather; a background process that floods
then waits, as it would on a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections.abc import Generator

from ors_containers.runtimes.shells.output_buffer import HeadAndTail

__all__ = ["ShellOutput"]

#: What background processes may write between two commands before they wait, in bytes.
_STRAY_LIMIT = 64 * 1024
_PIECE = 64 * 1024
_DRAIN_PAUSE = 0.02


class ShellOutput:
    """The output of one shell and its successors."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._reading = False
        #: Output that came while no command ran.
        self._stray = HeadAndTail(_STRAY_LIMIT)
        #: Where output goes while a command runs.
        self._sink: HeadAndTail | None = None
        self._drains: list[_Drain] = []

    def attach(self, descriptor: int) -> None:
        """Read ``descriptor`` from now on, which this object then owns, instead of the previous one."""
        if self._descriptor != -1:
            # Background processes of the previous shell may still write there: read, so that they do not block.
            self._pause()
            self._drains.append(_Drain(self._descriptor))
        self._descriptor = descriptor

    def collect(self, limit: int) -> HeadAndTail:
        """Collect output until ``end_collection``, that since the last command first; keep ``limit`` bytes of it."""
        sink = self._sink = HeadAndTail(limit)
        if self._stray.total:
            sink.add(self._stray.content())
            self._stray = HeadAndTail(_STRAY_LIMIT)
        self.resume()
        return sink

    def end_collection(self) -> None:
        """Take what was written until now; what comes later goes to the next command's."""
        self._drain()
        self._sink = None

    @contextlib.contextmanager
    def unbounded(self) -> Generator[None]:
        """Read without pause within this block; both ends of what is read stay for the next command."""
        sink = self._sink = HeadAndTail(_STRAY_LIMIT)
        self.resume()
        try:
            yield
        finally:
            self.end_collection()
            self._stray.add(sink.content())

    def resume(self) -> None:
        """Read again after a pause."""
        if not self._reading and self._descriptor != -1:
            asyncio.get_running_loop().add_reader(self._descriptor, self._on_readable)
            self._reading = True

    def close(self) -> None:
        """Close every descriptor."""
        for drain in self._drains:
            drain.close()
        self._drains.clear()
        self._pause()
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1

    def _pause(self) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._reading = False

    def _on_readable(self) -> None:
        try:
            data = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._pause()
            return
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.add(data)
            return
        self._stray.add(data)
        if self._stray.total >= _STRAY_LIMIT:
            self._pause()

    def _drain(self) -> None:
        """Read what is in the pipe now."""
        if self._descriptor == -1:
            return
        waiting = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
        while waiting > 0:
            try:
                data = os.read(self._descriptor, min(waiting, _PIECE))
            except BlockingIOError:
                return
            if not data:
                return
            waiting -= len(data)
            self._keep(data)


class _Drain:
    """Read and drop output, so that its writers neither block nor get SIGPIPE; slowly, whatever they write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._descriptor, self._take)

    def _take(self) -> None:
        self._loop.remove_reader(self._descriptor)
        with contextlib.suppress(BlockingIOError):
            if not os.read(self._descriptor, _PIECE):
                self.close()
                return
        self._pause = self._loop.call_later(_DRAIN_PAUSE, self._resume)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._descriptor != -1:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
