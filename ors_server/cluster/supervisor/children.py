"""The processes that a supervisor starts: workers and gateways.

Each has a process group of its own, so that Ctrl-C reaches the supervisor alone, which then stops them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ors_containers.linux.subprocesses import pipe_file

from ors_server.cluster.gateway.members.placed_ids import KEY_VARIABLE
from ors_server.cluster.gateway.members.workers import Member
from ors_server.cluster.supervisor.pools import Pool
from ors_server.cluster.supervisor.worker_output import Output
from ors_server.wire.version import HANDSHAKE
from ors_server.worker import VARIABLE, Announcement, read_announcement

__all__ = [
    "GATEWAY_MODULE",
    "HASH_SEED",
    "Child",
    "GatewayChild",
    "WorkerChild",
    "announcement_line",
    "gateway_command",
]

#: The variable that fixes the order of sets and the value of ``hash``; the operator's value passes.
HASH_SEED = "PYTHONHASHSEED"
#: The program of a gateway, as its command line names it.
GATEWAY_MODULE = "ors_server.cluster.gateway.process"
#: Longest announcement of a worker, in bytes: it names all environments.
_LONGEST_LINE = 2**24
#: Seconds without room in its pipe after which a gateway hangs.
_HANGS_AFTER = 10.0


class Child:
    """A process that runs until it is stopped."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """True once the process has ended."""
        return self._process.returncode is not None

    async def wait(self) -> int:
        """Wait for its end; return its status, a negative number for a signal."""
        return await self._process.wait()

    async def stop(self, seconds: float) -> None:
        """Ask it to end, and kill it after so many seconds."""
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def interrupt(self) -> None:
        """Send it the signal of Ctrl-C."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it with all processes of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._signal(signal.SIGKILL)  # one that is just starting has no group yet

    def _signal(self, number: signal.Signals) -> None:
        # Not by asyncio: that would wait for the process behind the back of what waits for it.
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


class WorkerChild(Child):
    """A worker, which announces its address once it listens.

    Where its pool has a name its ``output`` is passed on to standard error.
    """

    def __init__(self, process: asyncio.subprocess.Process, announcement: asyncio.StreamReader, output: Output) -> None:
        super().__init__(process)
        self._announcement = announcement
        self.output = output

    @classmethod
    async def start(
        cls,
        pool: Pool,
        listen: str,
        folder: Path,
        slot: int,
        incarnation: int,
        *,
        restarted: bool,
        verifier: str,
        prefix: str,
        variables: Mapping[str, str],
        others: Sequence[Path],
    ) -> WorkerChild:
        """Start a worker of a pool, to listen at an address; all workers share a folder, which has the ``others``."""
        reading, writing = os.pipe()
        try:
            given = {
                "slot": slot,
                "incarnation": incarnation,
                "restarted": restarted,
                "folder": str(folder),
                "descriptor": writing,
                "verifier": verifier,
            }
            own = dict(os.environ if pool.environ is None else pool.environ)
            # Tasks that are made by way of ``hash`` or of a set's order are then the same in every worker.
            own[HASH_SEED] = own.get(HASH_SEED) or "0"
            piped = asyncio.subprocess.PIPE if pool.name else None
            process = await asyncio.create_subprocess_exec(
                *(() if pool.program is None else pool.program(others)),
                pool.python,
                *(() if pool.folder is None else ("-P",)),
                "-m",
                pool.module,
                *pool.arguments,
                env={**own, **variables, VARIABLE: json.dumps(given), "ORS_LISTEN": listen},
                cwd=pool.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=piped,
                stderr=asyncio.subprocess.STDOUT if pool.name else None,
                pass_fds=(writing,),
                start_new_session=True,
                limit=2**20,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return cls(process, await _reader(reading), Output(process.stdout, prefix))

    async def announcement(self) -> Announcement | None:
        """Wait until it listens; None where it ended before."""
        line = await self._announcement.readline()
        return read_announcement(line) if line else None


class GatewayChild(Child):
    """A gateway, which follows the members that it is sent."""

    def __init__(self, process: asyncio.subprocess.Process, members: asyncio.WriteTransport) -> None:
        super().__init__(process)
        self._members = members
        #: When the pipe last had room for an announcement, by ``time.monotonic``.
        self._had_room = time.monotonic()

    @classmethod
    async def start(
        cls, listening: socket.socket, key: bytes, number: int, folder: Path, variables: Mapping[str, str]
    ) -> GatewayChild:
        """Start a gateway on a listening socket; ``number`` is its own among those of the server's folder."""
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *gateway_command(listening.fileno(), reading, number, folder),
                env={**os.environ, **variables, KEY_VARIABLE: key.hex()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(listening.fileno(), reading),
                start_new_session=True,
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return cls(process, await _writer(writing))

    def send(self, members: Sequence[Member]) -> None:
        """Announce the members as they are now. A gateway that does not read its pipe hangs: it is killed."""
        if self._members.is_closing():
            return
        now = time.monotonic()
        if not self._members.get_write_buffer_size():
            self._had_room = now
        elif now - self._had_room > _HANGS_AFTER:
            self.kill()
            return
        self._members.write(announcement_line(members))

    async def knows_workers(self) -> None:
        """Wait until it knows the state of all workers, or has ended."""
        assert self._process.stdout is not None
        await self._process.stdout.readline()

    def close(self) -> None:
        """Close its pipe, after its end."""
        if not self._members.is_closing():  # as it is once the gateway's end of the pipe is closed
            self._members.abort()


def gateway_command(listening: int, members: int, number: int, folder: Path) -> list[str]:
    """Return the command of a gateway on inherited descriptors: a listening socket, and a pipe of announcements."""
    options = {"--listening": listening, "--members": members, "--number": number, "--folder": folder}
    return [sys.executable, "-m", GATEWAY_MODULE, *(str(word) for option in options.items() for word in option)]


def announcement_line(members: Sequence[Member]) -> bytes:
    """Return what a gateway's pipe carries for the members as they are now."""
    return json.dumps({"handshake": HANDSHAKE, "members": members}).encode() + b"\n"


async def _writer(descriptor: int) -> asyncio.WriteTransport:
    transport, _ = await asyncio.get_running_loop().connect_write_pipe(
        asyncio.BaseProtocol, pipe_file(descriptor, "wb")
    )
    return transport


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe_file(descriptor, "rb")
    )
    return reader
