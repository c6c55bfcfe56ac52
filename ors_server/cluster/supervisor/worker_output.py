"""The output of a worker that has a name, line by line: on to standard error, and the last lines kept."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque

__all__ = ["Output"]

#: Lines that are kept to explain why the worker has ended.
_KEPT_LINES = 200
#: Lines between which other work of the process gets a turn.
_LINES_AT_ONCE = 100
#: Seconds in which the rest of an ended worker's output is read; what it has started may hold the pipe open.
_PATIENCE = 1.0


class Output:
    """The output of one worker; without a stream there is none."""

    def __init__(self, stream: asyncio.StreamReader | None, prefix: str) -> None:
        self._lines = deque[str](maxlen=_KEPT_LINES)
        self._prefix = prefix
        self._relaying = None if stream is None else asyncio.create_task(self._relay(stream))

    async def explain(self) -> tuple[str, str]:
        """Return the error with which the worker has ended, or its last line, and the remedy, as far as it told."""
        if self._relaying is not None:
            await asyncio.wait((self._relaying,), timeout=_PATIENCE)
        lines = [line.strip() for line in self._lines if line.strip()]
        for number, line in enumerate(lines):
            if line.startswith("Error: "):
                return line.removeprefix("Error: ").rstrip("."), " ".join(lines[number + 1 :][:3])
        return (lines[-1] if lines else ""), ""

    async def _relay(self, stream: asyncio.StreamReader) -> None:
        for number in itertools.count(1):
            if number % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)  # lines that have arrived already are read without a pause
            try:
                line = await stream.readline()
            except ValueError:  # a line of more than a mebibyte: its rest follows
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip("\n")
            self._lines.append(text)
            sys.stderr.write(f"{self._prefix}{text}\n")
