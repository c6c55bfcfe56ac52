"""Programs of this machine that fetch and unpack images."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Sequence

from ors_containers.errors import BuildFailed
from ors_containers.linux.subprocesses import child_process, output_lines

__all__ = ["run_program"]

#: Lines of output that an error shows.
_TAIL = 20


async def run_program(
    arguments: Sequence[str], problem: str, *, on_line: Callable[[str], None] | None = None, remedy: str = ""
) -> None:
    """Run a program to its end and pass each line of its output to ``on_line``.

    Raises ``BuildFailed`` with the last lines; its message begins with ``problem``.
    """
    lines = deque[str](maxlen=_TAIL)
    # SIGTERM rather than SIGKILL: these programs clean up files of their own.
    async with child_process(
        *arguments,
        end=signal.SIGTERM,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        async for line in output_lines(process.stdout):
            # Only the last state of a line that was overwritten after carriage returns, such as a progress bar.
            shown = line.rstrip("\r").rpartition("\r")[2]
            if on_line is not None:
                on_line(shown)
            lines.append(shown)
        status = await process.wait()
    if status != 0:
        raise BuildFailed(f"{problem}: {arguments[0]} ended with {status}", remedy, output="\n".join(lines))
