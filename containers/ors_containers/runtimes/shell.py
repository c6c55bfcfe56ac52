r"""A bash that stays, and how a command's end is known.

Bash reads from a socket three lines for each command. The first evaluates the command's text with its input, output
and errors redirected to where they belong; the second is empty, because a bash that was given half a command (an open
quote) drops the line after it; the third writes a frame to the same socket: a random token, the exit status, the
directory and the exported environment. So the end of a command is told on another channel than its output, by a line
that bash reads only when the command is over, with a token that did not exist in the shell before. While the command
runs, the socket is at a close-on-exec descriptor: the programs it starts do not have it, and a socket cannot be opened
through ``/proc``. Bash's own output goes to /dev/null, so prompts and traces of these lines are not seen.

The shell is interactive (without a terminal), because only an interactive bash survives SIGINT, ``set -e`` aside: it
drops the command and reads on.

Invariants: a result is built from a frame that carries the command's own token, or from the shell's end as the kernel
tells it; everything else that comes over the socket is ignored and bounded in size. Output is always drained, up to
what a pause between commands may gather; a background process that floods then waits, as it would on a terminal.

This module knows no runtime: a ``ShellHost`` starts the bash, lists processes and ends those of a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import re
import secrets
import socket
import struct
import termios
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Protocol

from ors_containers.errors import InvalidCommand, SandboxBusy, ShellFailed
from ors_containers.runtimes.output_buffer import HeadAndTail
from ors_containers.sandbox import CommandResult

__all__ = ["OUTPUT_AT", "SHELL_ARGUMENTS", "Ending", "Shell", "ShellHost", "ShellProcess"]

Ending = Literal["interrupt", "kill", "sweep", "all", "everything"]

#: The descriptor at which bash finds the pipe for output; its input is the socket.
OUTPUT_AT = 19
SHELL_ARGUMENTS = ("--norc", "--noprofile", "--noediting", "-i", "+H", "-s")

TIMED_OUT_STATUS = 124
#: What background processes may write between two commands before they wait, in bytes.
_STRAY_LIMIT = 64 * 1024
#: Largest environment that is carried over to a new shell, in bytes; of a larger one nothing is kept.
_ENVIRONMENT_LIMIT = 4 * 2**20
#: Most bytes that are looked through for the beginning of a frame: the longest path and much that is not ours.
_HEAD_LIMIT = 64 * 1024
#: Pauses after each attempt to end a command, in seconds; then the shell is ended with it.
_PATIENCE = (0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
_EXIT_PATIENCE = 10.0
_ASIDE_PATIENCE = 1.0
_START_PATIENCE = 60.0
#: The same for a bash in a sandbox where processes of the agent may be what keeps it from starting.
_RESTART_PATIENCE = 5.0
_PIECE = 64 * 1024
_DRAIN_PAUSE = 0.02

_SETUP = b" \\set +o history; \\unset HISTFILE MAILCHECK; \\shopt -u checkwinsize; PS1= PS2=\n"


class ShellProcess(Protocol):
    """A bash that was started."""

    #: Its process id as the sandbox sees it.
    inner: int
    #: Done when it has ended, with its exit status (negative for a signal).
    exited: asyncio.Future[int]


class ShellHost(Protocol):
    """What a shell needs of its sandbox."""

    async def start_shell(
        self, descriptors: Sequence[int], at: Sequence[int], environment: Mapping[str, str], directory: str
    ) -> ShellProcess:
        """Start bash with ``SHELL_ARGUMENTS``, ``descriptors`` placed ``at`` these numbers, the rest /dev/null.

        Raises ``ShellFailed`` or ``SandboxDied``.
        """
        ...

    def processes(self, shell: int) -> Mapping[int, int]:
        """Start time by process id of what runs besides process 1 and ``shell``."""
        ...

    async def end_command(self, shell: int, spared: Mapping[int, int], how: Ending) -> None:
        """End every process but process 1, ``shell``, and ``spared`` with its descendants.

        ``interrupt``: SIGINT for them and the shell. ``kill``: SIGKILL for them, SIGINT for the shell. ``sweep``:
        SIGKILL for them, nothing for the shell. ``all``: SIGKILL for the shell too. ``everything``: SIGKILL for every
        process but process 1, the spared ones too.
        """
        ...


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
        self._output = -1
        self._reading = False
        self._stray = HeadAndTail(_STRAY_LIMIT)
        self._sink: HeadAndTail | None = None
        self._drains: list[_Drain] = []
        self._frames = bytearray()
        self._news = asyncio.Event()
        self._current: asyncio.Task[CommandResult] | None = None
        self._abandoned: asyncio.Task[CommandResult] | None = None
        self._abandon = False
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
            raise InvalidCommand(f"A time-out of {timeout} s is no time")
        try:
            text = command.encode()
        except UnicodeEncodeError as error:
            raise InvalidCommand(f"The command is no Unicode text: {error.reason}") from error
        if self._abandoned is not None:
            # The command of a cancelled call is still being ended.
            await asyncio.wait([self._abandoned])
        if self._current is not None or self._aside:
            raise SandboxBusy
        self._abandon = False
        task = self._current = asyncio.create_task(self._run(text, timeout, limit))
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._closed:
                raise ShellFailed("The shell was closed while a command ran in it") from None
            if not task.done():
                self._abandoned = task
                self._abandon = True
                self._news.set()
            raise

    @contextlib.asynccontextmanager
    async def set_aside(self) -> AsyncGenerator[int]:
        """No command runs meanwhile, and the bash, whose process id this gives (0 if there is none), may be ended.

        Background processes go on writing where bash sent their output, and are read. The next command gets a new bash
        if this one was ended. Raises ``SandboxBusy``.
        """
        if self._abandoned is not None:
            await asyncio.wait([self._abandoned])
        if self._current is not None or self._aside:
            raise SandboxBusy
        self._aside = True
        process = self._process
        sink = self._sink = HeadAndTail(_STRAY_LIMIT)
        self._resume()
        try:
            yield process.inner if process is not None and not process.exited.done() else 0
        finally:
            self._drain()
            self._sink = None
            self._stray.add(sink.content())
            try:
                if process is not None and not self._closed:
                    # Its end is told a moment after it; a bash that was not ended is waited for in vain, briefly.
                    await asyncio.wait([process.exited], timeout=_ASIDE_PATIENCE)
            finally:
                self._aside = False

    def close(self) -> None:
        """Close what this side holds; the bash is ended by its sandbox."""
        self._closed = True
        if self._current is not None:
            self._current.cancel()
        self._release()
        self._release_output()

    def _ended(self, task: asyncio.Task[CommandResult]) -> None:
        self._current = None
        if self._abandoned is task:
            self._abandoned = None
            if not task.cancelled():
                task.exception()  # nobody waits for it any more

    async def _run(self, text: bytes, timeout: float, limit: int) -> CommandResult:
        started = time.monotonic()
        restarted = False
        if self._process is None or self._process.exited.done():
            await self._respawn()
            restarted = True
        process = self._process
        assert process is not None and self._socket is not None
        spared = self._host.processes(process.inner)
        sink = HeadAndTail(limit)
        if self._stray.total:
            sink.add(self._stray.content())
            self._stray = HeadAndTail(_STRAY_LIMIT)
        if restarted:
            sink.add(self._notice())
        self._sink = sink
        self._frames.clear()
        token = secrets.token_hex(16).encode()
        telling = _telling(token)
        self._resume()
        sending = asyncio.create_task(self._send(_evaluation(text) + b"\n" + telling))
        timed_out = False
        try:
            status = await self._finish(process, token, started + timeout)
            if status is None:
                timed_out = True
                sending.cancel()
                status = await self._end(process, token, spared, telling)
        finally:
            sending.cancel()
            self._drain()
            self._sink = None
        if process.exited.done():
            restarted = True
            if not self._closed:
                await self._respawn()
            sink.add(self._notice())
        return CommandResult(
            exit_status=TIMED_OUT_STATUS if timed_out else _as_shells_count(status),
            output=_without_terminal_errors(sink.content(), process.inner),
            seconds=time.monotonic() - started,
            timed_out=timed_out,
            truncated=sink.omitted > 0,
            shell_restarted=restarted,
        )

    async def _finish(self, process: ShellProcess, token: bytes, deadline: float) -> int | None:
        """The exit status, or None when ``deadline`` passes or the call is abandoned before there is one."""
        while True:
            self._news.clear()
            status = self._told(token)
            if status is not None:
                return status
            if process.exited.done():
                return process.exited.result()
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._abandon:
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._news.wait()

    async def _end(self, process: ShellProcess, token: bytes, spared: Mapping[int, int], telling: bytes) -> int:
        """Get the shell back from a command that goes on, or end it as well."""
        self._abandon = False
        how: Ending = "interrupt"
        for pause in _PATIENCE:
            await self._host.end_command(process.inner, spared, how)
            how = "kill"
            # An interrupted bash drops the line it is reading, which may have been the one that tells.
            await self._send(b"\n" + telling, wait=False)
            status = await self._finish(process, token, time.monotonic() + pause)
            if status is not None:
                await self._host.end_command(process.inner, spared, "sweep")
                return status
        await self._host.end_command(process.inner, spared, "all")
        await asyncio.wait([process.exited], timeout=_EXIT_PATIENCE)
        if not process.exited.done():
            raise ShellFailed("The shell could not be ended")
        return process.exited.result()

    def _told(self, token: bytes) -> int | None:
        """The status in the frame with this token, once it is known; keeps directory and environment.

        An environment beyond the limit is not waited for: the status came before it.
        """
        head, end = b"\x1e%b " % token, b"\x1eend %b\x1e" % token
        found = self._frames.find(head)
        if found == -1:
            if len(self._frames) > _HEAD_LIMIT:
                del self._frames[: len(self._frames) - _HEAD_LIMIT]
            return None
        start = found + len(head)
        middle = self._frames.find(b"\x1e", start)
        stop = -1 if middle == -1 else self._frames.find(end, middle)
        too_large = (len(self._frames) if stop == -1 else stop) - middle > _ENVIRONMENT_LIMIT
        if middle == -1 or (stop == -1 and not too_large):
            return None
        status, _, directory = bytes(self._frames[start:middle]).partition(b" ")
        exported = b"" if too_large else bytes(self._frames[middle + 1 : stop])
        self._frames.clear()
        if not status.isdigit():
            return None
        self._directory = directory.decode(errors="surrogateescape") or self._directory
        self._exported = exported
        return int(status)

    async def _respawn(self) -> None:
        """Start a bash where the last one was. Background processes of that one can go on writing, to nobody."""
        self._release()
        if self._output != -1:
            self._pause()
            self._drains.append(_Drain(self._output))
            self._output = -1
        self._carried = bool(self._exported)
        try:
            await self._spawn(_RESTART_PATIENCE)
        except ShellFailed:
            # Something that goes on in the sandbox may not let it: what stops and kills whatever it finds, for one.
            await self._host.end_command(0, {}, "everything")
            await self._spawn()

    async def _spawn(self, patience: float = _START_PATIENCE) -> None:
        deadline = time.monotonic() + patience
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        try:
            ours.setblocking(False)
            os.set_blocking(reading, False)
            self._socket, self._output = ours, reading
            async with asyncio.timeout(patience):
                process = await self._host.start_shell(
                    (theirs.fileno(), writing), (0, OUTPUT_AT), self._first_environment, self._directory
                )
        except TimeoutError as error:
            self._release()
            raise ShellFailed("The sandbox's bash did not start in time") from error
        except BaseException:  # a cancellation, too: the descriptors are nobody else's
            self._release()
            raise
        finally:
            theirs.close()
            os.close(writing)
        self._process = process
        process.exited.add_done_callback(lambda _: self._news.set())
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._on_control)
        self._resume()
        token = secrets.token_hex(16).encode()
        self._frames.clear()
        restoring = b""
        if self._exported:
            # What a bash started with may be needed to start one; the variables are those of the one before.
            restoring = b" \\unset %b\n%b\n" % (" ".join(self._first_environment).encode(), self._exported)
        # Twice, around the restored variables: these may set PS1 and the like.
        await self._send(_SETUP + restoring + _SETUP + _telling(token))
        if await self._finish(process, token, deadline) is None or process.exited.done():
            self._release()
            raise ShellFailed("The sandbox's bash did not answer")

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

    async def _send(self, data: bytes, *, wait: bool = True) -> None:
        """Write to bash; what a bash that has ended no longer reads is no concern here."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            if wait:
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
            else:
                self._socket.send(data)

    def _on_control(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # bash has closed it: its end will be told
            asyncio.get_running_loop().remove_reader(self._socket)
            return
        self._frames += data
        if len(self._frames) > 2 * _ENVIRONMENT_LIMIT:
            self._frames.clear()  # nobody looks: the rest of a large environment, or what no command wrote
        self._news.set()

    def _on_output(self) -> None:
        try:
            data = os.read(self._output, _PIECE)
        except BlockingIOError:
            return
        if not data:
            self._pause()
            return
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.add(data)
            return
        self._stray.add(data)
        if self._stray.total >= _STRAY_LIMIT:
            self._pause()

    def _drain(self) -> None:
        """Take what was written until now; what comes later is not waited for."""
        if self._output == -1:
            return
        waiting = struct.unpack("i", fcntl.ioctl(self._output, termios.FIONREAD, b"\0\0\0\0"))[0]
        while waiting > 0:
            try:
                data = os.read(self._output, min(waiting, _PIECE))
            except BlockingIOError:
                return
            if not data:
                return
            waiting -= len(data)
            self._keep(data)

    def _resume(self) -> None:
        if not self._reading and self._output != -1:
            asyncio.get_running_loop().add_reader(self._output, self._on_output)
            self._reading = True

    def _pause(self) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(self._output)
            self._reading = False

    def _release(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self._process = None

    def _release_output(self) -> None:
        for drain in self._drains:
            drain.close()
        self._drains.clear()
        self._pause()
        if self._output != -1:
            os.close(self._output)
            self._output = -1


class _Drain:
    """Reads what nobody wants any more, so that who writes it neither waits nor ends; a flood is read slowly."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._descriptor, self._take)

    def _take(self) -> None:
        self._loop.remove_reader(self._descriptor)
        with contextlib.suppress(BlockingIOError):
            if not os.read(self._descriptor, _PIECE):
                self.close()
                return
        self._pause = self._loop.call_later(_DRAIN_PAUSE, self._resume)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._descriptor != -1:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def _evaluation(text: bytes) -> bytes:
    quoted = text.replace(b"'", b"'\\''")
    return b" \\builtin eval '%b' </dev/null >&%d 2>&%d %d>&-\n" % (quoted, OUTPUT_AT, OUTPUT_AT, OUTPUT_AT)


def _telling(token: bytes) -> bytes:
    # `\036` is the record separator \x1e. The backslashes before the names keep aliases away; braces in place of `eval`
    # would be words that an alias can replace.
    return (
        b" \\builtin eval '"
        b'\\builtin printf "\\036%%s %%d %%s\\036" %b "$?" "$PWD"; \\builtin export -p; '
        b'\\builtin printf "\\036end %%s\\036" %b'
        b"' >&0\n" % (token, token)
    )


def _without_terminal_errors(output: bytes, shell: int) -> bytes:
    """An interactive bash sets its terminal after a program was killed and, having none, complains with each."""
    if b"tcsetattr" not in output:
        return output
    return re.sub(rb"bash: \[%d: \d+ \(\d+\)\] tcsetattr: [^\n]*\n" % shell, b"", output)


def _as_shells_count(status: int) -> int:
    return 128 - status if status < 0 else status
