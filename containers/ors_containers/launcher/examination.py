"""The launcher's side of an examination: end processes, start the trusted program out of reach, watch it.

This process does it, a child of the launcher. It has no id in the sandbox's pid namespace, so no process of the sandbox
can signal it. For a frozen examination it kills them, through children that live for one system call, starts the
program, and kills what is left when the program has ended or the server has closed its end of a pipe, the *lifeline*.

A copy of a warm Python of the host's root does without this process in a frozen examination: it is in the sandbox, and
becomes the program (``examining.program``).

In a live one other processes go on, so it has to find those of the program: a copy, the *watcher*, has an id there and
is the program's subreaper. The program's orphans become its children, and it ends every descendant of the program.

Invariants: no process of the host is ever signalled. When a frozen examination starts, no process but process 1 runs in
the sandbox. The examination's files are in a mount namespace that no process of the sandbox has or can join. From the
program's first instruction, processes of the sandbox cannot inspect it (``syscalls.SHIELD``), this process or the
watcher.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, NoReturn

from ors_containers.launcher.examining.examiners import examiners
from ors_containers.launcher.examining.packed_files import unpack
from ors_containers.launcher.examining.program import Here, become, mount_files, root_is_closed
from ors_containers.launcher.messages import Examine, Examining, Failed, Program, Response
from ors_containers.launcher.privileges import give_pipe, open_groups, sealed_file
from ors_containers.launcher.termination import ENDING_PATIENCE, join_processes, processes, signal_all, until_gone
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.hidden_processes import show_processes
from ors_containers.linux.programs.enter_program import REPORT_AT

__all__ = ["start_examination"]

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_READY = b"ready"


class _Pipes(NamedTuple):
    """Descriptors of an examination."""

    #: The program's input and output.
    source: int
    output: int
    #: Closed when the server gives the examination up.
    lifeline: int
    #: Receives ``_READY`` when the program is about to be executed, or an error.
    report: int
    #: The program in memory that executes the examination's (``linux.enter_program``); -1 where it is not needed.
    through: int


def start_examination(
    message: Examine,
    descriptors: list[int],
    seccomp: bytes,
    control: socket.socket,
    enter: bytes,
    respond: Callable[[Response], None],
    *,
    is_here: bool = False,
) -> Response:
    """Start the program, by ``enter``. A frozen examination responds here, and this process ends with its exit status.

    For a live one, return a response with the watcher, which ends with that status. With ``is_here`` the program is not
    executed: raises ``Here`` in its process.
    """
    process_1, packed, source, output, lifeline, *opened = descriptors
    # A program of the image may lead to the server's interpreter, which may be this user's own file.
    through = sealed_file("ors-enter", enter) if os.geteuid() != 0 else -1
    files = {} if is_here else unpack(packed)
    groups = opened if is_here else open_groups(message.groups)
    for pipe in (source, output):
        give_pipe(pipe, message.program.user, process_1)
    reports, report = os.pipe()
    pipes = _Pipes(source, output, lifeline, report, through)
    join_processes(process_1)
    if not message.keep_processes:
        signal_all(signal.SIGKILL)
        if examiners(message.program.user) is not None:
            show_processes()
        until_gone(time.monotonic() + ENDING_PATIENCE)
        started = _start(message, files, seccomp, groups, pipes, control, is_here)
        response = _response(message, reports, os.getpid(), started.process)
        if isinstance(response, Examining):
            respond(response)
            control.close()
            _watch_alone(message, started, pipes)
        return response
    watcher = os.fork()
    if watcher == 0:
        try:
            os.close(reports)
            system.become_subreaper()
            started = _start(message, files, seccomp, groups, pipes, control, is_here)
            control.close()
            _watch(message, started, pipes)
        except Here:
            raise
        except OSError as error:
            os.write(report, f"{error.errno} {error.strerror or error}".encode())
            os._exit(70)
        except BaseException:  # noqa: BLE001 - this copy of the launcher must not go on as one
            os._exit(70)
    os.close(report)
    return _response(message, reports, watcher, watcher)


def _response(message: Examine, reports: int, watcher: int, ended: int) -> Response:
    """Wait until the program is about to be executed; return the response, and reap ``ended`` if it was not."""
    text = b""
    while piece := os.read(reports, 4096):
        text += piece
    if text != _READY:
        os.waitpid(ended, 0)
        number, _, problem = text.removeprefix(_READY).decode().partition(" ")
        closed = number == str(int(errno.EACCES))
        if message.keep_processes and (closed or text in (b"", _READY[: len(text)])):
            return Examining(None)  # killed by an agent process that was kept alive; not an infrastructure failure
        return Failed(int(number) if number.isdigit() else errno.EIO, problem or "it ended as it started")
    return Examining(watcher)


class _Program(NamedTuple):
    """The program's process, and a descriptor that tells why it was not executed."""

    process: int
    errors: int


def _start(
    message: Examine,
    files: Mapping[str, bytes],
    seccomp: bytes,
    groups: list[int],
    pipes: _Pipes,
    control: socket.socket,
    is_here: bool,
) -> _Program:
    """Mount the examination's files, and start the program as a child of this process."""
    if message.keep_processes and message.shell:
        _end_shell(message.shell)
    mount_files(message.program.user, sum(map(len, files.values())), len(files))
    errors, error = os.pipe()
    child = os.fork()
    if child == 0:
        control.close()
        _execute(message.program, files, seccomp, groups, pipes, error, is_here)
    for descriptor in (pipes.source, pipes.report, error):
        os.close(descriptor)
    return _Program(child, errors)


def _watch_alone(message: Examine, program: _Program, pipes: _Pipes) -> NoReturn:
    """Do as ``_watch`` after the response was sent: a fault is not to be responded again."""
    try:
        _watch(message, program, pipes)
    finally:
        os._exit(70)


def _watch(message: Examine, program: _Program, pipes: _Pipes) -> NoReturn:
    """Wait for the program, end what is left of it, and exit with its exit status."""
    keep = message.keep_processes
    poll = select.poll()
    watched = os.pidfd_open(program.process)
    poll.register(watched, select.POLLIN)
    poll.register(pipes.lifeline, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll()}
    status = os.waitpid(program.process, 0)[1] if watched in ended else None
    if examiners(message.program.user) is not None:
        show_processes()  # the program has ended, and its descendants are killed next
    if keep:
        _end_descendants()
    else:
        with contextlib.suppress(OSError):  # the sandbox has ended, and its processes with it
            signal_all(signal.SIGKILL)
        status = os.waitpid(program.process, 0)[1] if status is None else status
        with contextlib.suppress(OSError):  # what does not end is reported by the next examination
            until_gone(time.monotonic() + ENDING_PATIENCE)
    while True:
        try:
            process, other = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        status = other if process == program.process else status
    code = os.waitstatus_to_exitcode(status or 0)
    if number := os.read(program.errors, 1):  # closed without one when the program was executed
        code = _not_executed(message.program, number[0], pipes.output)
    if code != 0 and keep and root_is_closed():
        code = -signal.SIGKILL  # an agent process closed it again; the result is that of a program that was killed
    os._exit(code if code >= 0 else 128 - code)


def _not_executed(program: Program, number: int, output: int) -> int:
    """Write why the program was not executed; return its exit status."""
    os.write(output, f"{program.arguments[0]}: {os.strerror(number)}\n".encode())
    return _NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTABLE


def _end_shell(shell: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(shell, signal.SIGKILL)
    deadline = time.monotonic() + ENDING_PATIENCE
    while os.path.exists(f"/proc/{shell}") and time.monotonic() < deadline:
        time.sleep(0.001)


def _end_descendants() -> None:
    """Kill every descendant of this process."""
    with contextlib.suppress(ProcessLookupError):
        if _reaped_all():
            return
        # While all are stopped, in one step, none can fork.
        os.kill(-1, signal.SIGSTOP)
        try:
            found = processes()
            for process in found:
                above = process
                while above in found and above != os.getpid():
                    above = found[above].parent
                if above == os.getpid() != process:
                    os.kill(process, signal.SIGKILL)
        finally:
            os.kill(-1, signal.SIGCONT)


def _reaped_all() -> bool:
    """Reap children that have ended; return whether no child is left."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True


def _execute(
    program: Program,
    files: Mapping[str, bytes],
    seccomp: bytes,
    groups: list[int],
    pipes: _Pipes,
    error: int,
    is_here: bool,
) -> NoReturn:
    """Become the program. What it cannot execute is reported to ``error`` by one byte."""
    try:
        become(program, files, seccomp, groups, (pipes.source, pipes.output), [(error, REPORT_AT)])
        system.end_with_parent()
        os.set_inheritable(REPORT_AT, pipes.through != -1)
    except OSError as failure:
        os.write(pipes.report, f"{failure.errno} {failure.strerror or failure}".encode())
        os._exit(70)
    os.write(pipes.report, _READY)
    if is_here:
        raise Here(program)
    try:
        if pipes.through == -1:
            os.execve(program.arguments[0], program.arguments, program.environment)  # noqa: S606 - becoming it
        os.execve(pipes.through, ["ors-enter", *program.arguments], program.environment)  # noqa: S606 - as above
    except OSError as failure:
        os.write(REPORT_AT, bytes([failure.errno or errno.EIO]))
    os._exit(70)
