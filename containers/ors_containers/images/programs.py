"""Programs of this machine that fetch and unpack images."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from ors_containers.errors import BuildFailed
from ors_containers.linux.subprocesses import child_process

__all__ = ["run_program"]

#: Lines of output that an error shows.
_TAIL = 20


async def run_program(
    arguments: Sequence[str], problem: str, *, on_line: Callable[[str], None] | None = None, remedy: str = ""
) -> None:
    """Run a program to its end and pass each line of its output to ``on_line``.

    Raises ``BuildFailed`` with the last lines; its message begins with ``problem``.
    """
    lines: list[str] = []
    # SIGTERM rather than SIGKILL: these programs clean up files of their own.
    async with child_process(
        *arguments,
        end=signal.SIGTERM,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        while chunk := await process.stdout.read(1 << 16):
            for line in chunk.decode(errors="replace").splitlines():
                if on_line is not None:
                    on_line(line)
                lines = [*lines, line][-_TAIL:]
        status = await process.wait()
    if status != 0:
        raise BuildFailed(f"{problem}: {arguments[0]} ended with {status}", remedy, output="\n".join(lines))
