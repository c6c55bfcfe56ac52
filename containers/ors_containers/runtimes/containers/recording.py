"""The record of one command's files: the process that makes it, and its result.

Invariant: the process lives as long as a process of the command, since each of their calls waits for it; it ends by
itself with the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from types import TracebackType
from typing import Any, Self

from ors_containers.errors import InvalidCommand, RuntimeUnavailable
from ors_containers.layers.ownership import interpreter
from ors_containers.linux.fd_passing import receive
from ors_containers.linux.path_record import KINDS
from ors_containers.sandbox import RecordedPaths

__all__ = ["Recording"]

_NO_RECORD = "The files that a command opens cannot be recorded here"


class Recording:
    """The recording of one command; ``async with`` it. ``process_1`` is a pidfd of the container's process 1."""

    def __init__(self, process_1: int) -> None:
        self._here, self._there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # As the host's root, the process that records needs no right of the container's.
        self._joined = -1 if os.geteuid() == 0 or process_1 == -1 else os.dup(process_1)
        self._starting: asyncio.Task[asyncio.subprocess.Process | None] | None = None
        self._refusal = ""
        #: The end of the process; None without one.
        self.ended: asyncio.Task[int] | None = None

    @property
    def descriptor(self) -> int:
        """The socket for ``launcher.messages.Enter``, after all its other descriptors."""
        return self._there.fileno()

    async def __aenter__(self) -> Self:
        self._starting = asyncio.create_task(self._start())
        if self._joined != -1:
            self._starting.add_done_callback(lambda _: os.close(self._joined))  # however it ends
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._starting is not None
        self._there.close()
        # Without a command there is no other end now, and the task ends.
        with contextlib.suppress(asyncio.CancelledError):
            process = await asyncio.shield(self._starting)
            if process is not None and process.stdin is not None and process.stdout is not None:
                process.stdin.close()
                await process.stdout.read()  # or it would wait as it writes, and the command's processes for it

    async def paths(self, *, started: bool) -> RecordedPaths:
        """Return the paths until now, once; ``started`` says whether the program was executed.

        Raises ``RuntimeUnavailable`` where the kernel does not let a command be recorded, and ``InvalidCommand`` for
        one with too many paths.
        """
        assert self._starting is not None
        self._there.close()
        process = await self._starting
        if process is None or process.stdin is None or process.stdout is None:
            if self._refusal:
                raise RuntimeUnavailable(
                    f"{_NO_RECORD}: {self._refusal}", "Linux 5.5 or newer without another recorder"
                )
            return RecordedPaths()
        process.stdin.close()
        try:
            found: dict[str, Any] = json.loads(await process.stdout.read())
        except ValueError as error:
            raise RuntimeUnavailable(f"{_NO_RECORD}: the process that records has failed") from error
        if "problem" in found:
            raise InvalidCommand(f"The command cannot be recorded: {found['problem']}")
        paths = RecordedPaths(*(frozenset(found[kind]) for kind in KINDS))
        if started and not paths.executed:
            raise RuntimeUnavailable(
                f"{_NO_RECORD}: the server may not inspect a container's processes", "Give the server CAP_SYS_PTRACE"
            )
        return paths

    async def _start(self) -> asyncio.subprocess.Process | None:
        """Wait for the descriptor of the command's calls, and start the process that answers them."""
        try:
            await _readable(self._here)
            said, descriptors = receive(self._here, 256, 1)
        finally:
            self._here.close()
        if not descriptors:
            self._refusal = said.decode(errors="replace")
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                *interpreter("linux.path_recorder", str(descriptors[0]), str(self._joined)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=[descriptors[0], *([self._joined] if self._joined != -1 else [])],
                env={},
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(descriptors[0])
        self.ended = asyncio.create_task(process.wait())
        return process


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
