"""Commands of a container: a shell for each, any number at a time.

Invariant: ``run`` returns or raises only when the command's shell has ended; a command that timed out or was cancelled
is killed with its descendants and its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ors_containers.errors import InvalidCommand, MachineOverloaded, SandboxDied, ShellFailed
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.messages import Done, EndCommand, EndProcesses, Enter, Entered, Program
from ors_containers.runtimes.command_output import MOST_OUTPUT, CommandOutput
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.time_limit import TimeLimit
from ors_containers.sandbox import TIMED_OUT_STATUS, CommandResult

__all__ = ["ContainerCommands"]

#: Where a command's long text is, as the shell numbers it.
_SCRIPT_AT = 100
#: Seconds for what other processes write after the shell has ended.
_DRAIN_PATIENCE = 0.1
_END_PATIENCE = 10.0
#: Seconds in which a shell must have started.
_START_PATIENCE = 15.0
#: Seconds in which a failed operation may turn out to be the container's own end.
_DEATH_PATIENCE = 0.2
#: Pipes of background processes that are read after their command; the oldest is closed beyond this number.
_MOST_PIPES = 256
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_KILLED = 128 + 9


class ContainerCommands:
    """The commands of one container. ``program`` is what every shell has; its arguments are empty."""

    def __init__(
        self,
        sandbox: str,
        namespaces: Namespaces,
        program: Program,
        group_files: list[str],
        require_alive: Callable[[float], Awaitable[None]],
        time_limit: Callable[[str, float, bool], TimeLimit],
    ) -> None:
        self._sandbox = sandbox
        self._namespaces = namespaces
        self._program = program
        self._group_files = group_files
        self._require_alive = require_alive
        self._time_limit = time_limit
        #: Output of commands whose background processes still hold the pipe, the oldest first.
        self._pipes: dict[CommandOutput, None] = {}
        #: Tasks that end commands which were cancelled before they had started.
        self._abandoned: set[asyncio.Task[None]] = set()

    async def run(self, command: str, shell: str, timeout: float | None, max_bytes: int | None) -> CommandResult:
        """See ``Container.run``."""
        script = _checked(command, shell, timeout, max_bytes)
        await self._require_alive(0.0)
        started = time.monotonic()
        output = self._new_output(MOST_OUTPUT if max_bytes is None else max_bytes)
        try:
            try:
                entered = await self._start_in_time(script, shell, output.write_end)
            except TimeoutError:
                # Processes of the container stop or kill whatever enters it.
                await self._end_everything()
                return CommandResult(TIMED_OUT_STATUS, b"", time.monotonic() - started, timed_out=True)
            except asyncio.CancelledError:
                await _uncancelled(asyncio.gather(*self._abandoned))
                raise
            finally:
                output.close_write_end()
            exited = self._namespaces.client.exit_of(entered.process)
            exited.add_done_callback(lambda _: self._namespaces.client.forget(entered.process))
            time_limit = None if timeout is None else self._time_limit("The command", timeout, False)
            timed_out = False
            try:
                if time_limit is None:
                    await asyncio.wait([exited])
                elif not await time_limit.wait(exited) and not self._namespaces.is_running(entered.inner):
                    await asyncio.wait([exited], timeout=_END_PATIENCE)  # the launcher is late
                timed_out = not exited.done()
            finally:
                if not exited.done():  # timed out or cancelled
                    await self._end(entered.inner, exited)
            content = await output.settle(_DRAIN_PATIENCE)
        except OperationFailed as error:
            if error.number == errno.ESRCH:  # killed by a process of the container, or with the container
                await self._require_alive(_DEATH_PATIENCE)
                return CommandResult(_KILLED, b"", time.monotonic() - started)
            if error.number not in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC):
                await self._require_alive(_DEATH_PATIENCE)
                raise ShellFailed(f"No command can be started in container {self._sandbox}: {error}") from error
            status = _NOT_FOUND if error.number in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTABLE
            return CommandResult(status, f"{error}\n".encode(), time.monotonic() - started)
        except LauncherGone as error:
            raise SandboxDied(self._sandbox, str(error)) from error
        finally:
            self._release(output)
        code = exited.result() if exited.done() else -9
        status = code if code >= 0 else 128 - code
        if status == _KILLED and not timed_out:
            await self._require_alive(_DEATH_PATIENCE)  # a container that dies kills the shell, too
        return CommandResult(
            exit_status=TIMED_OUT_STATUS if timed_out else status,
            output=content,
            seconds=time.monotonic() - started,
            timed_out=timed_out,
            truncated=output.total > len(content),
            waited=0.0 if time_limit is None else time_limit.waited(),
        )

    def close(self) -> None:
        """Close the pipes of background processes."""
        for output in list(self._pipes):
            output.close()
        self._pipes.clear()

    async def _start_in_time(self, script: bytes, shell: str, output: int) -> Entered:
        """Start a command. Raises ``TimeoutError``, ``MachineOverloaded``, ``OperationFailed`` and ``LauncherGone``."""
        starting = asyncio.ensure_future(self._start(script, shell, output))
        try:
            if not await self._time_limit("The start of the command", _START_PATIENCE, True).wait(starting):
                raise TimeoutError
            return starting.result()
        finally:
            if not starting.done():
                starting.cancel()
                await _uncancelled(asyncio.gather(starting, return_exceptions=True))

    async def _start(self, script: bytes, shell: str, output: int) -> Entered:
        text = os.memfd_create("command")
        try:
            await _write(text, script)
            program = self._program._replace(arguments=[shell])
            request = Enter(program, self._group_files, gate=False, at=[1, 2, _SCRIPT_AT], script=True)
            passed = (self._namespaces.process_1, output, output, text)
            starting = asyncio.create_task(self._namespaces.client.request(request, passed, Entered))
            try:
                return await asyncio.shield(starting)
            except asyncio.CancelledError:
                # Cancelled, or out of patience: the launcher goes on, and the shell must not run when it has started.
                abandoned = asyncio.create_task(self._abandon(starting))
                self._abandoned.add(abandoned)
                abandoned.add_done_callback(self._abandoned.discard)
                raise
        finally:
            os.close(text)

    async def _abandon(self, starting: asyncio.Task[Entered]) -> None:
        """End a command as soon as it has started."""
        with contextlib.suppress(OperationFailed, LauncherGone, OSError):
            entered = await starting
            exited = self._namespaces.client.exit_of(entered.process)
            exited.add_done_callback(lambda _: self._namespaces.client.forget(entered.process))
            await self._end(entered.inner, exited)

    async def _end(self, process: int, exited: asyncio.Future[int]) -> None:
        """Kill a command; a cancellation takes effect when it has ended."""

        async def end() -> None:
            with contextlib.suppress(OperationFailed, LauncherGone):
                request = EndProcesses(process)
                await self._namespaces.client.request(request, (self._namespaces.process_1,), Done)
            with contextlib.suppress(MachineOverloaded):  # then everything is ended
                await self._time_limit("The end of the command", _END_PATIENCE, False).wait(exited)
            if not exited.done():
                await self._end_everything()
                await asyncio.wait([exited], timeout=_END_PATIENCE)

        await _uncancelled(asyncio.create_task(end()))

    async def _end_everything(self) -> None:
        """Kill every process but process 1, in one step that no process of the container can prevent."""
        with contextlib.suppress(OperationFailed, LauncherGone):
            request = EndCommand(0, {}, "everything")
            await self._namespaces.client.request(request, (self._namespaces.process_1,), Done)

    def _new_output(self, limit: int) -> CommandOutput:
        output = CommandOutput(limit)
        self._pipes[output] = None
        while len(self._pipes) > _MOST_PIPES and (oldest := next((o for o in self._pipes if o.settled), None)):
            del self._pipes[oldest]
            oldest.close()
        return output

    def _release(self, output: CommandOutput) -> None:
        """Forget an output whose pipe is closed; go on reading the pipe of background processes."""
        output.stop_keeping()
        if output.ended.is_set():
            self._pipes.pop(output, None)
        else:
            output.on_end = lambda: self._pipes.pop(output, None)


def _checked(command: str, shell: str, timeout: float | None, max_bytes: int | None) -> bytes:
    """Return the text of a command. Raises ``InvalidCommand`` as ``Container.run`` does."""
    if "\0" in command:
        raise InvalidCommand("A command cannot hold a NUL character")
    if not shell.startswith("/") or "\0" in shell:
        raise InvalidCommand(f"The shell {shell!r} is not an absolute path")
    if timeout is not None and not (timeout >= 0 and math.isfinite(timeout)):
        raise InvalidCommand(f"A time-out of {timeout} s is no time")
    if max_bytes is not None and max_bytes < 0:
        raise InvalidCommand(f"An output limit of {max_bytes} bytes is no limit")
    try:
        return command.encode()
    except UnicodeEncodeError as error:
        raise InvalidCommand(f"The command holds a surrogate: {error}") from error


async def _uncancelled(ending: asyncio.Future[Any]) -> None:
    """Wait for ``ending``; a cancellation takes effect afterwards."""
    cancelled = False
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _write(descriptor: int, content: bytes) -> None:
    if len(content) > 1 << 20:
        await asyncio.to_thread(_write_all, descriptor, content)
    else:
        _write_all(descriptor, content)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
