"""Child processes that are ended when their block is left, their pipes, and the lines of their output.

Invariant: when the block is left, the process has ended and has been waited for; it is signalled through a descriptor,
so neither a reused process id nor another waiter can interfere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, AsyncIterator
from typing import IO, Any

__all__ = ["MOST_LINE", "child_process", "output_lines", "pipe_file"]

#: Bytes of a line, and of a read; a longer line is passed on in parts.
MOST_LINE = 1 << 16


@contextlib.asynccontextmanager
async def child_process(
    *arguments: str, end: signal.Signals = signal.SIGKILL, **options: Any
) -> AsyncGenerator[Process]:
    """Start a program; send it the signal ``end`` if the block is left before it has ended."""
    process = await asyncio.create_subprocess_exec(*arguments, start_new_session=True, **options)
    descriptor = -1
    try:
        with contextlib.suppress(ProcessLookupError):  # it has ended already, and asyncio has noticed
            descriptor = os.pidfd_open(process.pid)
        yield process
    finally:
        try:
            if process.returncode is None and descriptor != -1:
                # Not by asyncio: that would wait for the process behind the back of what waits for it.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, end)
            await process.wait()
        finally:
            if descriptor != -1:
                os.close(descriptor)


def pipe_file(descriptor: int, mode: str) -> IO[bytes]:
    """Return a pipe for the running event loop's ``connect_read_pipe`` or ``connect_write_pipe``, which closes it once.

    asyncio closes only the file that it is given. uvloop closes the descriptor, and then the file: by then another
    thread may have opened something under the same number (``UVSocketHandle._close`` in its handles/handle.pyx).
    """
    closes_file = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    return os.fdopen(descriptor, mode, buffering=0, closefd=closes_file)


async def output_lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yield the lines of a program's output without their ends, whole wherever a read ends.

    A longer line than ``MOST_LINE`` comes in parts. An output without newlines takes no more memory than that.
    """
    rest = b""
    while piece := await stream.read(MOST_LINE):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(rest) > MOST_LINE:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")
