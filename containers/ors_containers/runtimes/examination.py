"""The server's side of an examination: its files, input and output, and its end.

Invariant: ``run_examination`` returns or raises only when the program and its descendants have ended, or could not be
ended and are left to the sandbox's own end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from ors_containers.errors import InvalidCommand, MachineOverloaded
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.examining.packed_files import pack
from ors_containers.launcher.messages import Done, EndCommand, Examine, Examining, WarmStart
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.shells.output_buffer import HeadAndTail
from ors_containers.runtimes.shells.time_limit import TimeLimit
from ors_containers.sandbox import TIMED_OUT_STATUS, CommandResult, WarmProgram

__all__ = [
    "START_PATIENCE",
    "ExaminationLimits",
    "check_examination",
    "run_examination",
    "safe_variables",
    "warm_start",
]

#: Seconds beside its time-out in which an examination must have started.
START_PATIENCE = 5.0
#: Seconds in which the program's descendants must have ended after its time-out.
_END_PATIENCE = 5.0
#: Seconds in which the end of a program whose processes have all ended must have been reported.
_REPORT_PATIENCE = 60.0
_PIECE = 64 * 1024
#: Bytes of files that are written at once.
_SMALL = 1 << 20
#: Beginnings of names of variables that lead the C library, and the one that a toolset's command overrules.
_LOADING = ("LD_", "GCONV_PATH", "LOCPATH")
_OVERRULED = "LD_LIBRARY_PATH"


def check_examination(program: Sequence[str], files: Mapping[str, bytes], timeout: float) -> None:
    """Raise ``InvalidCommand`` where ``Sandbox.examine`` says so."""
    if not program or not program[0].startswith("/"):
        raise InvalidCommand(f"An examination's program is an absolute path and its arguments, not {list(program)!r}")
    for word in program:
        _require_text(word, "argument")
    for name in files:
        _require_text(name, "file name")
        if not name or any(part in ("", ".", "..") for part in name.split("/")):
            raise InvalidCommand(f"{name!r} is not a relative file name without `..`")
    if not (timeout > 0 and math.isfinite(timeout)):
        raise InvalidCommand(f"A time-out of {timeout} s is too short")


def _require_text(text: str, what: str) -> None:
    if "\0" in text:
        raise InvalidCommand(f"The {what} {text!r} holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidCommand(f"The {what} {text!r} is not Unicode text") from error


def safe_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that name code or locales, which the C library would load from the sandbox."""
    return {name: value for name, value in variables.items() if name == _OVERRULED or not name.startswith(_LOADING)}


def warm_start(warm: WarmProgram, program: Sequence[str], files: Mapping[str, bytes]) -> WarmStart:
    """Return what the launcher has to know of a program that may be started warm."""
    key = hash((warm, *program, *sorted(files.items())))  # of bytes that were hashed before, this costs nothing
    return WarmStart(str(warm.folder), warm.at, warm.module, warm.packages, list(warm.ahead), f"{key:x}")


class ExaminationLimits(NamedTuple):
    """The time limits of one examination."""

    #: Begin the limit on the start, and the one on the program.
    on_start: Callable[[], TimeLimit]
    on_program: Callable[[], TimeLimit]
    #: Whether a process of the examination is left in its control group; true where it has none.
    has_processes: Callable[[], bool]


def _private_output() -> tuple[int, int]:
    """Return two sockets: what is written to the second is read from the first.

    A pipe could be opened again, through a link of the agent to /proc/self/fd that a trusted program follows.
    """
    reading, output = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reading.shutdown(socket.SHUT_WR)
    return reading.detach(), output.detach()


async def run_examination(
    container: Namespaces,
    request: Examine,
    *,
    files: Mapping[str, bytes],
    input: bytes,
    is_private: bool,
    limits: ExaminationLimits,
    limit: int,
) -> CommandResult:
    """Run an examination in a container. Raises ``OperationFailed``, ``LauncherGone`` and ``MachineOverloaded``.

    During a live one, processes of the agent may stop the processes that start and watch it; then this ends them all.
    """
    client = container.client
    started = time.monotonic()
    sink = HeadAndTail(limit)

    async def end_all() -> None:
        await client.request(EndCommand(0, {}, "examination"), (container.process_1,), Done)

    def close_lifeline() -> None:
        ours.remove(lifeline_here)
        os.close(lifeline_here)

    async def give_up() -> None:
        # In this order: a program that is only starting ends by the one or by the other.
        close_lifeline()
        await end_all()

    async def end(*, is_program: bool, has_ended: bool) -> None:
        """Wait for the watcher, which ends the other processes first; where there is none, do so."""
        if not is_program:
            await asyncio.wait([ended], timeout=_END_PATIENCE)
        elif has_ended and limits.has_processes():
            with contextlib.suppress(OperationFailed):  # what does not end is reported by the next examination
                await end_all()
        if not ended.done() or (is_program and not has_ended):
            await end_all()
            await asyncio.wait([ended], timeout=_END_PATIENCE)

    # In another thread where it takes long: to reach one takes as long as to write what a grader needs.
    small = sum(map(len, files.values())) <= _SMALL
    packed = pack(files) if small else await asyncio.to_thread(pack, files)
    source, sending = os.pipe()
    reading, output = _private_output() if is_private else os.pipe()
    lifeline, lifeline_here = os.pipe()
    ours, theirs = [sending, reading, lifeline_here], [packed, source, output, lifeline]
    feeding: asyncio.Task[None] | None = None
    try:
        starting = asyncio.ensure_future(client.request(request, (container.process_1, *theirs), Examining))
        on_start = limits.on_start()
        try:
            if not await on_start.wait(starting):
                await give_up()
                seconds = time.monotonic() - started
                return CommandResult(TIMED_OUT_STATUS, b"", seconds, timed_out=True, waited=on_start.waited())
            process, is_program = starting.result()
        except MachineOverloaded:
            await give_up()
            raise
        except asyncio.CancelledError:
            if not request.keep_processes:
                with contextlib.suppress(OperationFailed, LauncherGone, OSError):  # the caller learns the cancellation
                    await _uncancelled(give_up())
            raise
        except OperationFailed:
            on_start.require_processors()
            raise
        finally:
            starting.cancel()
            for descriptor in theirs:
                os.close(descriptor)
        if process is None:  # killed by the agent
            return CommandResult(128 + signal.SIGKILL, b"", time.monotonic() - started)
        ended = client.exit_of(process)
        feeding = asyncio.create_task(_feed(sending, input))
        ours.remove(sending)  # `_feed` closes it
        collecting = _Collector(reading, sink)
        on_program = limits.on_program()
        try:
            if not await on_program.wait(ended) and not limits.has_processes():
                await asyncio.wait([ended], timeout=_REPORT_PATIENCE)  # the launcher is late
            timed_out = not ended.done()
        finally:
            # Also of a cancelled call.
            has_ended = ended.done()
            close_lifeline()
            await _uncancelled(end(is_program=is_program, has_ended=has_ended))
            collecting.close()
            client.forget(process)
        status = ended.result() if ended.done() else -signal.SIGKILL
        return CommandResult(
            exit_status=TIMED_OUT_STATUS if timed_out else status if status >= 0 else 128 - status,
            output=sink.content(),
            seconds=time.monotonic() - started,
            timed_out=timed_out,
            truncated=sink.omitted > 0,
            waited=on_start.waited() + on_program.waited(),
        )
    finally:
        if feeding is not None:
            feeding.cancel()
            await asyncio.wait([feeding])
        for descriptor in ours:
            os.close(descriptor)


async def _uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work to its end; a cancellation takes effect after that."""
    waiting = asyncio.create_task(work)
    cancelled = False
    while not waiting.done():
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError


async def _feed(descriptor: int, content: bytes) -> None:
    """Write the program's input and close the pipe; a program need not read it."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    rest = memoryview(content)
    try:
        while rest:
            try:
                rest = rest[os.write(descriptor, rest[:_PIECE]) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(descriptor, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(descriptor)
            except BrokenPipeError:
                return
    finally:
        os.close(descriptor)


class _Collector:
    """Collect a program's output as it is written."""

    def __init__(self, descriptor: int, sink: HeadAndTail) -> None:
        self._descriptor = descriptor
        self._sink = sink
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._take)

    def _take(self) -> bool:
        """Read a piece; return whether there was one."""
        try:
            piece = os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._descriptor)
            return False
        self._sink.add(piece)
        return True

    def close(self) -> None:
        """Read what is left of a program that has ended."""
        while self._take():
            pass
        self._loop.remove_reader(self._descriptor)
