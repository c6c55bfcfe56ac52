"""One bash for all commands of a sandbox, and how a command's end is known.

Commands go to bash over a socket, and the end of each comes back over it (``shell_protocol``): so the end is known from
another channel than the output, by a frame that bash writes only when the command is over, with a token that did not
exist in the shell before.

The shell is interactive (without a terminal), because only an interactive bash survives SIGINT, ``set -e`` aside: it
drops the command and reads on.

Invariant: a result is built from a frame that carries the command's own token, or from the shell's exit status as the
kernel reports it.

This module knows no runtime: a ``ShellHost`` starts the bash, lists processes and ends those of a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from ors_containers.errors import InvalidCommand, MachineOverloaded, SandboxBusy, ShellFailed
from ors_containers.runtimes.shells.shell_output import ShellOutput
from ors_containers.runtimes.shells.shell_protocol import (
    BELL_AT,
    OUTPUT_AT,
    SETUP,
    Frames,
    evaluation,
    status_probe,
    without_terminal_errors,
)
from ors_containers.runtimes.shells.time_limit import TimeLimit
from ors_containers.sandbox import TIMED_OUT_STATUS, CommandResult

__all__ = ["Ending", "Shell", "ShellHost", "ShellProcess"]

R = TypeVar("R")
Ending = Literal["interrupt", "kill", "sweep", "all", "everything"]

#: Pauses after each attempt to end a command, in seconds; then the shell is ended with it.
_PATIENCE = (0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
_EXIT_PATIENCE = 10.0
_ASIDE_PATIENCE = 1.0
_START_PATIENCE = 60.0
#: The same for a bash in a sandbox where processes of the agent may be what keeps it from starting.
_RESTART_PATIENCE = 5.0
_PIECE = 64 * 1024
#: Bytes of exported variables, and their number, from which on a frame may not fit into the socket's buffer, of which
#: each write takes 768 bytes or more: then it is read as it comes.
_LARGE, _MANY = 32 * 1024, 100
#: Seconds after which a frame is read as it comes, and the most pieces that are read at once.
_SILENCE = 0.2
_MOST_PIECES = 8
_CLOSED = "The shell was closed while a command ran in it"


class ShellProcess(Protocol):
    """A bash that was started."""

    #: Its process id as the sandbox sees it.
    inner: int
    #: Done when it has ended, with its exit status (negative for a signal).
    exited: asyncio.Future[int]


class ShellHost(Protocol):
    """The part of a sandbox that a shell uses."""

    async def start_shell(
        self, descriptors: Sequence[int], at: Sequence[int], environment: Mapping[str, str], directory: str
    ) -> ShellProcess:
        """Start bash with ``SHELL_ARGUMENTS``, ``descriptors`` placed ``at`` these numbers, the rest /dev/null.

        Raises ``ShellFailed`` or ``SandboxDied``.
        """
        ...

    def processes(self, shell: int) -> Mapping[int, int]:
        """Return the start time of each process but process 1 and ``shell``, by process id."""
        ...

    async def end_command(self, shell: int, keep_pids: Mapping[int, int], how: Ending) -> None:
        """End every process but process 1, ``shell``, and the processes of ``keep_pids`` with their descendants.

        ``keep_pids`` has their start times by process id.

        ``interrupt``: SIGINT for them and the shell. ``kill``: SIGKILL for them, SIGINT for the shell. ``sweep``:
        SIGKILL for them, nothing for the shell. ``all``: SIGKILL for the shell too. ``everything``: SIGKILL for every
        process but process 1, those of ``keep_pids`` too.
        """
        ...

    def time_limit(self, what: str, seconds: float, *, starting: bool = False) -> TimeLimit:
        """Return a limit that begins now, for work of the sandbox, or of the launcher that is ``starting`` it."""
        ...


def _are_many(variables: int, size: int) -> bool:
    """Return whether the frames that have so many variables may not fit into a socket."""
    return variables > _MANY or size > _LARGE


class Shell:
    """One persistent shell and its successors."""

    def __init__(self, host: ShellHost, environment: Mapping[str, str], directory: str) -> None:
        self._host = host
        self._first_environment = environment
        #: The directory and the exported variables (as bash writes them) after the last command that ended.
        self._directory = directory
        self._exported = b""
        #: Whether the shell that runs was given the variables of the one before.
        self._carried = True
        self._process: ShellProcess | None = None
        self._socket: socket.socket | None = None
        self._bell: socket.socket | None = None
        #: Whether the socket is read as bash writes there, and not only when the bell rings. That is what large frames
        #: need, and a bash whose bell has not rung since the last command began.
        self._watching = False
        self._is_large = _are_many(len(environment), sum(map(len, environment.values())))
        self._has_rung = True
        self._output = ShellOutput()
        self._frames = Frames()
        #: Set when a frame came, the bash has ended, a limit has passed or the shell is closed.
        self._changed = asyncio.Event()
        self._running = False
        #: Ends a command that goes on after its limit, or whose call was cancelled, or replaces a shell.
        self._ending: asyncio.Task[Any] | None = None
        #: Whether the shell was replaced since the last command that said so.
        self._replaced = False
        self._aside = False
        self._closed = False

    async def start(self) -> None:
        """Start the first bash and wait until it answers. Raises ``ShellFailed``."""
        await self._spawn()

    async def run(self, command: str, timeout: float, limit: int) -> CommandResult:
        """Run ``command``; see ``Sandbox.run``."""
        if "\0" in command:
            raise InvalidCommand("A command cannot hold a NUL character")
        if not (timeout > 0 and math.isfinite(timeout)):
            raise InvalidCommand(f"A time-out of {timeout} s is too short")
        try:
            text = command.encode()
        except UnicodeEncodeError as error:
            raise InvalidCommand(f"The command is not Unicode text: {error.reason}") from error
        await self._until_free()
        self._running = True
        try:
            return await self._run(text, timeout, limit)
        finally:
            self._running = False

    @contextlib.asynccontextmanager
    async def set_aside(self) -> AsyncGenerator[int]:
        """Run no command within this block; yield the process id of bash, 0 if there is none, which may be ended.

        Output of background processes is read meanwhile. The next command gets a new bash if this one was ended.
        Raises ``SandboxBusy``.
        """
        await self._until_free()
        self._aside = True
        process = self._process
        try:
            with self._output.unbounded():
                yield process.inner if process is not None and not process.exited.done() else 0
        finally:
            try:
                if process is not None and not self._closed:
                    # The launcher reports the end of bash a moment after it; of one that goes on, this times out.
                    await asyncio.wait([process.exited], timeout=_ASIDE_PATIENCE)
            finally:
                self._aside = False

    async def _until_free(self) -> None:
        """Wait until the command of a cancelled call has been ended. Raises ``SandboxBusy`` for another command."""
        if self._ending is not None and not self._running:
            await asyncio.wait([self._ending])
        if self._running or self._aside:
            raise SandboxBusy

    def close(self) -> None:
        """Close what this side holds; the bash is ended by its sandbox."""
        self._closed = True
        self._changed.set()
        if self._ending is not None:
            self._ending.cancel()
        self._release()
        self._output.close()

    async def _run(self, text: bytes, timeout: float, limit: int) -> CommandResult:
        started = time.monotonic()
        if self._process is None or self._process.exited.done():
            await self._ended(self._begin(self._respawn()))
        process = self._process
        assert process is not None and self._socket is not None
        keep_pids = self._host.processes(process.inner)
        sink = self._output.collect(limit)
        restarted, self._replaced = self._replaced, False
        if restarted:
            sink.add(self._notice())
        self._frames.clear()
        self._watch(self._is_large or not self._has_rung)
        self._has_rung = False
        token = secrets.token_hex(16).encode()
        probe = status_probe(token)
        rest = self._send_at_once(evaluation(text) + b"\n" + probe)
        sending = asyncio.create_task(self._send(rest)) if rest else None
        timed_out = False
        time_limit = self._host.time_limit("The command", timeout)
        overloaded: MachineOverloaded | None = None
        ending: asyncio.Task[int] | None = None
        try:
            try:
                status = await self._finish(process, token, time_limit)
            except MachineOverloaded as error:
                overloaded, status = error, None
            except asyncio.CancelledError:
                self._read_waiting()
                if not (self._closed or process.exited.done()) and self._read_status(token) is None:
                    ending = self._begin(self._end_alone(process, token, keep_pids, probe))
                raise
            if status is None:
                timed_out = True
                if sending is not None:
                    sending.cancel()
                ending = self._begin(self._end_alone(process, token, keep_pids, probe))
                status = await self._ended(ending)
        finally:
            if sending is not None:
                sending.cancel()
            if ending is None:
                self._output.end_collection()
        if process.exited.done():
            restarted = True
            if not self._closed:
                await self._ended(self._begin(self._respawn()))
            self._replaced = False
            sink.add(self._notice())
        if overloaded is not None:
            raise overloaded
        status = 128 - status if status < 0 else status  # a signal, as the shell counts it
        return CommandResult(
            exit_status=TIMED_OUT_STATUS if timed_out else status,
            output=without_terminal_errors(sink.content(), process.inner),
            seconds=time.monotonic() - started,
            timed_out=timed_out,
            truncated=sink.omitted > 0,
            shell_restarted=restarted,
            waited=time_limit.waited(),
        )

    async def _finish(self, process: ShellProcess, token: bytes, time_limit: TimeLimit) -> int | None:
        """Return the exit status, or None when the limit passes before there is one.

        Raises ``MachineOverloaded``, and ``ShellFailed`` where the shell is closed while a command runs.
        """
        loop = asyncio.get_running_loop()
        remaining = math.inf
        overloaded: MachineOverloaded | None = None
        waited = False
        while True:
            self._changed.clear()
            if self._closed and self._running:
                raise ShellFailed(_CLOSED)
            if process.exited.done():
                self._read_waiting()
            status = self._read_status(token)
            if status is not None:
                return status
            if process.exited.done():
                return process.exited.result()
            if overloaded is not None:
                raise overloaded
            if remaining <= 0:
                return None
            # Perhaps bash cannot ring the bell, or waits until a large frame is read.
            if waited:
                self._watch(True)
            try:
                remaining = time_limit.remaining()
            except MachineOverloaded as error:
                overloaded, remaining = error, 0.0
            if remaining <= 0:
                await time_limit.catch_up()
                continue
            pause = remaining if self._watching else min(remaining, _SILENCE)
            timer = loop.call_later(pause, self._changed.set)  # asyncio.timeout() takes longer
            try:
                await self._changed.wait()
            finally:
                timer.cancel()
            waited = True

    def _begin(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Begin what ends a command or replaces a shell, in a task: its caller may be cancelled meanwhile.

        A whole command is none: for each command one would take a tenth of the server's time.
        """

        def forget(task: asyncio.Task[R]) -> None:
            self._ending = None
            if not task.cancelled():
                task.exception()  # retrieved, since perhaps no caller waits for it any longer

        task = self._ending = asyncio.create_task(work)
        task.add_done_callback(forget)
        return task

    async def _ended(self, ending: asyncio.Task[R]) -> R:
        """Wait for what ``_begin`` began. Raises ``ShellFailed`` where the shell is closed meanwhile."""
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            if ending.cancelled() and self._closed:
                raise ShellFailed(_CLOSED) from None
            raise

    async def _end_alone(self, process: ShellProcess, token: bytes, keep_pids: Mapping[int, int], probe: bytes) -> int:
        """End a command that goes on, and its output; replace the shell where no caller waits that does."""
        try:
            return await self._end(process, token, keep_pids, probe)
        finally:
            self._output.end_collection()
            if not self._running and process.exited.done() and not self._closed:
                await self._respawn()

    async def _end(self, process: ShellProcess, token: bytes, keep_pids: Mapping[int, int], probe: bytes) -> int:
        """End a command that goes on, and the shell too if it does not answer; return the exit status."""
        how: Ending = "interrupt"
        self._watch(True)
        for pause in _PATIENCE:
            await self._host.end_command(process.inner, keep_pids, how)
            how = "kill"
            # An interrupted bash drops the line it is reading, which may have been the status probe.
            self._send_at_once(b"\n" + probe)
            status = None
            with contextlib.suppress(MachineOverloaded):  # then the shell is ended, too
                status = await self._finish(process, token, self._host.time_limit("The shell", pause))
            if status is not None:
                await self._host.end_command(process.inner, keep_pids, "sweep")
                return status
        await self._host.end_command(process.inner, keep_pids, "all")
        if not await self._host.time_limit("A shell that was killed", _EXIT_PATIENCE).wait(process.exited):
            raise ShellFailed("The shell could not be ended")
        return process.exited.result()

    def _read_status(self, token: bytes) -> int | None:
        """Return the exit status in the frame with this token once it is complete; keep directory and environment."""
        status = self._frames.read_status(token)
        if status is None:
            return None
        self._directory = status.directory or self._directory
        self._exported = status.exported
        self._is_large = not status.exported or _are_many(status.exported.count(b"\n"), len(status.exported))
        return status.exit_status

    async def _respawn(self) -> None:
        """Start a bash in the directory of the last one. Its background processes' output is dropped.

        Raises ``ShellFailed`` and ``MachineOverloaded``.
        """
        self._release()
        self._carried, self._replaced = bool(self._exported), True
        try:
            await self._spawn(_RESTART_PATIENCE)
        except ShellFailed:
            # A process of the sandbox may prevent it, such as one that stops or kills every process it finds.
            await self._host.end_command(0, {}, "everything")
            await self._spawn()

    async def _spawn(self, patience: float = _START_PATIENCE) -> None:
        with contextlib.ExitStack() as theirs:
            try:
                self._socket, control = socket.socketpair()
                theirs.enter_context(control)
                self._bell, bell = socket.socketpair()
                theirs.enter_context(bell)
                reading, writing = os.pipe()
                theirs.callback(os.close, writing)
                for descriptor in (self._socket.fileno(), self._bell.fileno(), reading):
                    os.set_blocking(descriptor, False)
                self._output.attach(reading)
                process = await self._start_process((control.fileno(), writing, bell.fileno()), patience)
            except BaseException:  # a cancellation, too: only this call knows of the sockets
                self._release()
                raise
        self._process = process
        process.exited.add_done_callback(lambda _: self._changed.set())
        asyncio.get_running_loop().add_reader(self._bell, self._on_bell)
        self._watch(self._is_large)
        self._output.resume()
        token = secrets.token_hex(16).encode()
        self._frames.clear()
        restoring = b""
        if self._exported:
            # Bash starts with the image's variables, which it may need to start; then it gets the last shell's.
            restoring = b" \\unset %b\n%b\n" % (" ".join(self._first_environment).encode(), self._exported)
        answered = False
        try:
            # Twice, around the restored variables: these may set PS1 and the like.
            await self._send(SETUP + restoring + SETUP + status_probe(token))
            status = await self._finish(process, token, self._host.time_limit("The start of a shell", patience))
            answered = status is not None and not process.exited.done()
        finally:
            if not answered:
                self._release()
                self._process = None
        if not answered:
            raise ShellFailed("The sandbox's bash did not answer")

    async def _start_process(self, descriptors: Sequence[int], patience: float) -> ShellProcess:
        """Have bash started. Raises ``ShellFailed`` and ``MachineOverloaded``."""
        starting = asyncio.ensure_future(
            self._host.start_shell(descriptors, (0, OUTPUT_AT, BELL_AT), self._first_environment, self._directory)
        )
        try:
            if await self._host.time_limit("The start of a shell", patience, starting=True).wait(starting):
                return starting.result()
            raise ShellFailed("The sandbox's bash did not start in time")
        finally:
            starting.cancel()

    def _notice(self) -> bytes:
        where = self._directory.encode(errors="surrogateescape")
        variables = (
            b"the same exported variables"
            if self._carried
            else b"those of the image (the exported ones were too large)"
        )
        return (
            b"\n[The shell ended. A new one was started in %b with %b; "
            b"functions, aliases and other variables are lost.]\n" % (where, variables)
        )

    async def _send(self, data: bytes) -> None:
        """Write to bash; an error means that bash has ended, which is noticed elsewhere."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().sock_sendall(self._socket, data)

    def _send_at_once(self, data: bytes) -> bytes:
        """Write to bash what its socket takes now, and return the rest: most commands need no task for that."""
        assert self._socket is not None
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:  # as above
            return b""

    def _watch(self, wanted: bool) -> None:
        """Read the socket as bash writes there, or not."""
        if wanted == self._watching or self._socket is None:
            return
        loop = asyncio.get_running_loop()
        if wanted:
            loop.add_reader(self._socket, self._read)
        else:
            loop.remove_reader(self._socket)
        self._watching = wanted

    def _on_bell(self) -> None:
        assert self._bell is not None
        try:
            rung = self._bell.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            rung = b""
        if rung:
            self._has_rung = True
        else:  # bash has closed it: its exit follows
            asyncio.get_running_loop().remove_reader(self._bell)
        self._read_waiting()

    def _read_waiting(self) -> None:
        """Read what waits in the socket; leave a flood to the event loop, which has others to serve."""
        for _ in range(_MOST_PIECES):
            if self._read() < _PIECE:
                return
        self._watch(True)

    def _read(self) -> int:
        """Read a piece of what bash wrote to the socket; return its length."""
        if self._socket is None:
            return 0
        try:
            data = self._socket.recv(_PIECE)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:  # as above
            self._watch(False)
        elif self._frames.add(data):
            self._changed.set()
        return len(data)

    def _release(self) -> None:
        if self._socket is not None:
            self._watch(False)
            self._socket.close()
            self._socket = None
        if self._bell is not None:
            asyncio.get_running_loop().remove_reader(self._bell)
            self._bell.close()
            self._bell = None
        self._process = None
