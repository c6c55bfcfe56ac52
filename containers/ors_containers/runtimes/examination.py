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
from functools import partial
from typing import Any, NamedTuple

from ors_containers.errors import InvalidCommand, MachineOverloaded, ServerExhausted
from ors_containers.launcher.client import LauncherGone, OperationFailed
from ors_containers.launcher.examining.packed_files import pack
from ors_containers.launcher.messages import Done, EndCommand, Examine, Examining, WarmStart
from ors_containers.runtimes.namespaces import Namespaces
from ors_containers.runtimes.opened_file import OwnedDescriptor, in_thread
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
    begun = time.monotonic()
    sink = HeadAndTail(limit)
    # In another thread where it takes long: to reach one takes as long as to write what a grader needs.
    small = sum(map(len, files.values())) <= _SMALL
    with contextlib.ExitStack() as ours:
        with contextlib.ExitStack() as theirs:
            packed = os.memfd_create("ors-examination")
            theirs.callback(os.close, packed)
            if small:
                pack(packed, files)
            else:
                await in_thread(packed, partial(pack, files=files))
            source, sending = os.pipe()
            theirs.callback(os.close, source)
            feed = OwnedDescriptor(sending)
            ours.callback(feed.close)
            reading, output = _private_output() if is_private else os.pipe()
            ours.callback(os.close, reading)
            theirs.callback(os.close, output)
            lifeline, lifeline_here = os.pipe()
            theirs.callback(os.close, lifeline)
            close_lifeline = OwnedDescriptor(lifeline_here).close
            ours.callback(close_lifeline)
            on_start = limits.on_start()
            started = await _start(container, request, (packed, source, output, lifeline), on_start, close_lifeline)
        if started is None:
            seconds = time.monotonic() - begun
            return CommandResult(TIMED_OUT_STATUS, b"", seconds, timed_out=True, waited=on_start.waited())
        if started.process is None:  # killed by the agent
            return CommandResult(128 + signal.SIGKILL, b"", time.monotonic() - begun)
        ended = client.exit_of(started.process)
        feeding = asyncio.create_task(_feed(feed.take(), input))
        feeding.add_done_callback(lambda _: os.close(sending))  # however it ends
        ours.callback(feeding.cancel)
        collecting = _Collector(reading, sink)
        on_program = limits.on_program()
        try:
            if not await on_program.wait(ended) and not limits.has_processes():
                await asyncio.wait([ended], timeout=_REPORT_PATIENCE)  # the launcher is late
            timed_out = not ended.done()
        finally:
            # Also of a cancelled call.
            close_lifeline()
            try:
                problem = await _uncancelled(_end(container, ended, limits, is_watched=not started.is_program))
            finally:
                collecting.close()
                client.forget(started.process)
                feeding.cancel()
        await asyncio.wait([feeding])
        if problem is not None:
            raise problem
        status = ended.result() if ended.done() else -signal.SIGKILL
        return CommandResult(
            exit_status=TIMED_OUT_STATUS if timed_out else status if status >= 0 else 128 - status,
            output=sink.content(),
            seconds=time.monotonic() - begun,
            timed_out=timed_out,
            truncated=sink.omitted > 0,
            waited=on_start.waited() + on_program.waited(),
        )


async def _start(
    container: Namespaces,
    request: Examine,
    descriptors: Sequence[int],
    limit: TimeLimit,
    close_lifeline: Callable[[], None],
) -> Examining | None:
    """Start the program; return None if it did not start in time.

    Then, and after an error, no process of the examination is left. Of a live one that is cancelled or fails, only its
    own processes are ended.
    """
    client = container.client
    container.hides_processes = True
    starting = asyncio.ensure_future(client.request(request, (container.process_1, *descriptors), Examining))
    started: Examining | None = None
    problem: Exception | None = None
    ends_all = True
    try:
        if await limit.wait(starting):
            started = starting.result()
    except (OperationFailed, LauncherGone, MachineOverloaded, ServerExhausted, asyncio.CancelledError) as error:
        ends_all = isinstance(error, MachineOverloaded) or not request.keep_processes
        if isinstance(error, OperationFailed):
            limit.require_processors()
        raise
    finally:
        if started is None:
            starting.cancel()
            # In this order: what is only starting finds the lifeline closed, or is killed.
            close_lifeline()
            if ends_all:
                problem = await _uncancelled(_end_all(container))
            if starting.done() and not starting.cancelled() and starting.exception() is None:
                client.forget(starting.result().process)
    if problem is not None:
        raise problem
    return started


async def _end_all(container: Namespaces) -> Exception | None:
    """End the processes of a sandbox; return why that failed."""
    try:
        await container.client.request(EndCommand(0, {}, "examination"), (container.process_1,), Done)
    except (OperationFailed, LauncherGone, ServerExhausted, OSError) as error:
        return error
    return None


async def _end(
    container: Namespaces, ended: asyncio.Future[int], limits: ExaminationLimits, *, is_watched: bool
) -> Exception | None:
    """End a program and what it leaves, where the watcher does not or there is none; return why that failed."""
    if is_watched:
        await asyncio.wait([ended], timeout=_END_PATIENCE)
    if ended.done():
        if not is_watched and limits.has_processes():
            await _end_all(container)  # what does not end is reported by the next examination
        return None
    problem = await _end_all(container)
    await asyncio.wait([ended], timeout=_END_PATIENCE)
    return problem


async def _uncancelled(work: Coroutine[Any, Any, Exception | None]) -> Exception | None:
    """Return what work returns; a cancellation takes effect after that."""
    waiting = asyncio.create_task(work)
    cancelled = False
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return waiting.result()


async def _feed(descriptor: int, content: bytes) -> None:
    """Write the program's input; a program need not read it."""
    loop = asyncio.get_running_loop()
    os.set_blocking(descriptor, False)
    rest = memoryview(content)
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
