"""The pipe of one program's standard input, which is written as fast as the program reads.

Invariant: a program that never reads its input keeps neither the caller nor the event loop waiting. The write end is
closed when everything is written, when no reader is left, or by ``close``.
"""

from __future__ import annotations

import asyncio
import os

__all__ = ["CommandInput"]

_PIECE = 256 * 1024


class CommandInput:
    """A pipe that this object owns; its reader gets ``content``."""

    def __init__(self, content: bytes) -> None:
        self._rest = memoryview(content)
        self._loop = asyncio.get_running_loop()
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._loop.add_writer(self._write_end, self._on_writable)

    def close_read_end(self) -> None:
        """Close this process's own read end."""
        if self.read_end != -1:
            os.close(self.read_end)
            self.read_end = -1

    def close(self) -> None:
        """Close the pipe, whether or not everything was read. May be called repeatedly."""
        self.close_read_end()
        self._close_write_end()

    def _close_write_end(self) -> None:
        if self._write_end != -1:
            self._loop.remove_writer(self._write_end)
            os.close(self._write_end)
            self._write_end = -1

    def _on_writable(self) -> None:
        try:
            written = os.write(self._write_end, self._rest[:_PIECE])
        except BlockingIOError:
            return
        except BrokenPipeError:  # every process that could read has closed it
            written = len(self._rest)
        self._rest = self._rest[written:]
        if not self._rest:
            self._close_write_end()
