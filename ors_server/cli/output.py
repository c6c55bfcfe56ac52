"""Words of a running server, which must never be a reason for it to end or to wait.

Whoever reads them may go away (``ors-server serve echo | head -1``), stop reading (a terminal after Ctrl-S), or never
have been there (``>&-``); a disk may be full, and a terminal may not know a letter.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import sys
import threading
from typing import Any, TextIO, cast

__all__ = ["StandardOutput", "flush_output", "forgive_output", "note"]


class StandardOutput:
    """Writes to standard output, in order, from a thread of its own, until that fails."""

    def __init__(self) -> None:
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        # A daemon: one that is stuck in a pipe that nobody reads must not keep the process from ending.
        threading.Thread(target=self._work, name="ors-output", daemon=True).start()

    def write(self, text: str) -> None:
        """Write soon; returns at once and never raises."""
        self._texts.put(text)

    def _work(self) -> None:
        number = _file_number(sys.stdout)
        while number is not None:
            text = self._texts.get()
            encoded = text.encode(sys.stdout.encoding or "utf-8", "replace")
            try:
                # Past sys.stdout, whose lock a thread that is stuck would hold while the interpreter ends.
                while encoded:
                    encoded = encoded[os.write(number, encoded) :]
            except OSError:
                return  # Nobody hears us, and there is nobody to tell.


class _NeverFailingFile(io.FileIO):
    """A file to write to that takes everything, also what the system does not take."""

    def write(self, data: Any, /) -> int:
        written: int | None = None
        with contextlib.suppress(OSError):
            written = super().write(data)
        # None also where a file that does not wait is not ready: its buffer would raise BlockingIOError.
        return memoryview(data).nbytes if written is None else written


def forgive_output() -> None:
    """From now on no ``print`` of this process fails for what standard output and standard error lead to.

    The environments' code prints as well: a tool call must not fail, nor the process end with an exit code of its own
    (120), because the reader of a debugging message went away.
    """
    for name in ("stdout", "stderr"):
        stream: object = getattr(sys, name)
        # Nothing but the interpreter's own stream is replaced: whoever put another in its place has reasons.
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            raw = _NeverFailingFile(stream.fileno(), "w", closefd=False)
            forgiving = io.TextIOWrapper(
                cast(Any, raw) if stream.write_through else io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, forgiving)


def flush_output() -> None:
    """Write what ``print`` left in the buffer of standard output, for ``StandardOutput`` does not go through it."""
    # A process may be started without standard output.
    stream: TextIO | None = sys.stdout
    if stream is not None:
        stream.flush()


def note(text: str) -> None:
    """Write a line to standard error, where there is one."""
    stream: TextIO | None = sys.stderr
    if stream is not None:
        stream.write(f"{text}\n")
        stream.flush()


def _file_number(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):  # It is none of the system's files, or closed.
        return None
