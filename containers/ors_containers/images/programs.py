"""Programs of this machine that fetch and unpack images, run so that what they say is not lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from ors_containers.errors import BuildFailed
from ors_containers.linux.subprocesses import child_process

__all__ = ["run_program"]

_TAIL = 20


async def run_program(
    arguments: Sequence[str], problem: str, *, said: Callable[[str], None] | None = None, remedy: str = ""
) -> None:
    """Run a program to its end; ``said`` is told its lines. Raises ``BuildFailed``, which begins with ``problem``."""
    lines: list[str] = []
    # Asked to end, not killed: such programs have things of their own to clean up.
    async with child_process(
        *arguments,
        end=signal.SIGTERM,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        while piece := await process.stdout.read(1 << 16):
            for line in piece.decode(errors="replace").splitlines():
                if said is not None:
                    said(line)
                lines = [*lines, line][-_TAIL:]
        status = await process.wait()
    if status != 0:
        raise BuildFailed(f"{problem}: {arguments[0]} ended with {status}", remedy, output="\n".join(lines))
