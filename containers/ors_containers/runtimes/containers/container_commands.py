"""Commands of a container: a shell or a program for each, any number at a time.

Invariant: ``run`` and ``execute`` return or raise only when the command's own process has ended; a command that timed
out or was cancelled is killed with its descendants and its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ors_containers.errors import MachineOverloaded, SandboxDied, ServerExhausted, ShellFailed
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.messages import Done, EndCommand, EndProcesses, Enter, Entered, PackedProgram, Program
from ors_containers.launcher.records import to_json
from ors_containers.runtimes.containers.command_arguments import check_limits, checked_script
from ors_containers.runtimes.containers.recording import Recording
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.opened_file import in_thread, write_all
from ors_containers.runtimes.shells.command_input import CommandInput
from ors_containers.runtimes.shells.command_output import MOST_OUTPUT, CommandOutput
from ors_containers.runtimes.shells.time_limit import TimeLimit
from ors_containers.sandbox import TIMED_OUT_STATUS, CommandResult, ExecutionResult, OutputStream

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
_KILLED = 128 + 9
#: The exit status by the error of a program that could not be executed, as shells have it. Files of the container's own
#: cause each of these errors, so none of them is a failure of the machine.
_NOT_EXECUTED = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), 127),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.E2BIG, errno.ELIBBAD, errno.EISDIR), 126),
    **dict.fromkeys((errno.ELOOP, errno.ENAMETOOLONG, errno.ETXTBSY, errno.EINVAL), 126),
}
_STREAMS: tuple[OutputStream, OutputStream] = ("stdout", "stderr")


class _Ended(NamedTuple):
    """The end of a command."""

    status: int
    #: Of each output.
    contents: Sequence[bytes]
    seconds: float
    timed_out: bool = False
    waited: float = 0.0
    #: The reason why the program was not executed; empty for one that was.
    problem: str = ""


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
        #: Those whose processes may go on.
        self._recordings: list[Recording] = []
        #: Tasks that end commands which were cancelled before they had started.
        self._abandoned: set[asyncio.Task[None]] = set()

    async def run(self, command: str, shell: str, timeout: float | None, max_bytes: int | None) -> CommandResult:
        """See ``Container.run``."""
        script = checked_script(command, shell)
        check_limits(timeout, max_bytes)
        await self._require_alive(0.0)
        program = self._program._replace(arguments=[shell])
        request = Enter(program, self._group_files, gate=False, at=[1, 2, _SCRIPT_AT], script=True)
        output = self._new_output(MOST_OUTPUT if max_bytes is None else max_bytes)
        ended = await self._play(request, script, [output.write_end] * 2, [output], timeout)
        (content,) = ended.contents
        return CommandResult(
            exit_status=ended.status,
            output=content or f"{ended.problem}\n".encode() * bool(ended.problem),
            seconds=ended.seconds,
            timed_out=ended.timed_out,
            truncated=output.total > len(content),
            waited=ended.waited,
        )

    async def execute(
        self,
        program: Program,
        packed: PackedProgram,
        stdin: bytes,
        timeout: float | None,
        max_bytes: int | None,
        on_output: Callable[[OutputStream, bytes], object] | None,
        *,
        record: bool = False,
    ) -> ExecutionResult:
        """Run ``program`` with the parts ``packed``. See ``Container.execute``."""
        check_limits(timeout, max_bytes)
        await self._require_alive(0.0)
        at = [0, 1, 2] if stdin else [1, 2]
        request = Enter(
            program._replace(environment={}), self._group_files, gate=False, at=at, packed=True, record=record
        )
        limit = MOST_OUTPUT if max_bytes is None else max_bytes
        outputs = [
            self._new_output(limit, None if on_output is None else partial(on_output, name)) for name in _STREAMS
        ]
        source = CommandInput(stdin) if stdin else None
        try:
            descriptors = [output.write_end for output in outputs]
            if source is not None:
                descriptors.insert(0, source.read_end)
            text = json.dumps(to_json(packed)).encode()
            recorded = None
            self._recordings = [each for each in self._recordings if each.ended is None or not each.ended.done()]
            if record:
                async with Recording(self._namespaces.process_1) as recording:
                    self._recordings.append(recording)
                    ended = await self._play(request, text, descriptors, outputs, timeout, source, recording)
                    recorded = await recording.paths(started=not ended.problem)
            else:
                ended = await self._play(request, text, descriptors, outputs, timeout, source)
        finally:
            if source is not None:
                source.close()
        stdout, stderr = ended.contents
        return ExecutionResult(
            exit_status=ended.status,
            stdout=stdout,
            stderr=stderr + f"{ended.problem}\n".encode() * bool(ended.problem),
            seconds=ended.seconds,
            timed_out=ended.timed_out,
            truncated=outputs[0].total > len(stdout) or outputs[1].total > len(stderr),
            started=not ended.problem,
            waited=ended.waited,
            recorded=recorded,
        )

    async def _play(
        self,
        request: Enter,
        text: bytes,
        descriptors: Sequence[int],
        outputs: Sequence[CommandOutput],
        timeout: float | None,
        source: CommandInput | None = None,
        recording: Recording | None = None,
    ) -> _Ended:
        """Start a program with ``descriptors`` and a file of ``text``; return when it has ended.

        Raises ``SandboxDied``, ``ShellFailed`` and ``MachineOverloaded``.
        """
        started = time.monotonic()
        nothing = [b""] * len(outputs)
        try:
            try:
                entered = await self._start_in_time(request, text, descriptors, recording)
            except TimeoutError:
                # Processes of the container stop or kill whatever enters it.
                await self._end_everything()
                return _Ended(TIMED_OUT_STATUS, nothing, time.monotonic() - started, timed_out=True)
            except asyncio.CancelledError:
                await _uncancelled(asyncio.gather(*self._abandoned))
                raise
            finally:
                for output in outputs:
                    output.close_write_end()
                if source is not None:
                    source.close_read_end()
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
            contents = await asyncio.gather(*(output.settle(_DRAIN_PATIENCE) for output in outputs))
        except OperationFailed as error:
            await self._require_alive(_DEATH_PATIENCE if error.number not in _NOT_EXECUTED else 0.0)
            seconds = time.monotonic() - started
            if error.number == errno.ESRCH:  # killed by a process of the container
                return _Ended(_KILLED, nothing, seconds)
            if error.number not in _NOT_EXECUTED:
                raise ShellFailed(f"No command can be started in container {self._sandbox}: {error}") from error
            return _Ended(_NOT_EXECUTED[error.number], nothing, seconds, problem=str(error))
        except LauncherGone as error:
            raise SandboxDied(self._sandbox, str(error)) from error
        finally:
            for output in outputs:
                self._release(output)
        code = exited.result() if exited.done() else -9
        status = code if code >= 0 else 128 - code
        if status == _KILLED and not timed_out:
            await self._require_alive(_DEATH_PATIENCE)  # a container that dies kills the shell, too
        return _Ended(
            TIMED_OUT_STATUS if timed_out else status,
            contents,
            time.monotonic() - started,
            timed_out=timed_out,
            waited=0.0 if time_limit is None else time_limit.waited(),
        )

    async def close(self) -> None:
        """Close the pipes of background processes, and wait for what records them: call it when they have ended."""
        for output in list(self._pipes):
            output.close()
        self._pipes.clear()
        recorders = [recording.ended for recording in self._recordings if recording.ended is not None]
        self._recordings.clear()
        if recorders:
            await asyncio.wait(recorders, timeout=_END_PATIENCE)

    async def _start_in_time(
        self, request: Enter, text: bytes, descriptors: Sequence[int], recording: Recording | None
    ) -> Entered:
        """Start a command. Raises ``TimeoutError``, ``MachineOverloaded``, ``OperationFailed`` and ``LauncherGone``."""
        starting = asyncio.ensure_future(self._start(request, text, descriptors, recording))
        try:
            if not await self._time_limit("The start of the command", _START_PATIENCE, True).wait(starting):
                raise TimeoutError
            return starting.result()
        finally:
            if not starting.done():
                starting.cancel()
                await _uncancelled(asyncio.gather(starting, return_exceptions=True))

    async def _start(
        self, request: Enter, text: bytes, descriptors: Sequence[int], recording: Recording | None
    ) -> Entered:
        file = os.memfd_create("command")
        try:
            await _write(file, text)
            last = () if recording is None else (recording.descriptor,)
            passed = (self._namespaces.process_1, *descriptors, file, *last)
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
            os.close(file)

    async def _abandon(self, starting: asyncio.Task[Entered]) -> None:
        """End a command as soon as it has started."""
        with contextlib.suppress(OperationFailed, LauncherGone, ServerExhausted, OSError):
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

    def _new_output(self, limit: int, on_piece: Callable[[bytes], object] | None = None) -> CommandOutput:
        output = CommandOutput(limit, on_piece)
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
        await in_thread(descriptor, partial(write_all, content=content))
    else:
        write_all(descriptor, content)
