"""The start of a program in a sandbox that is up, or is coming up."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterable, Mapping

from ors_containers.launcher.examining.examiners import examiners
from ors_containers.launcher.messages import Enter, Entered, Failed, PackedProgram, Program
from ors_containers.launcher.privileges import (
    default_signals,
    give_pipe,
    is_open,
    join_groups,
    lower,
    open_groups,
    place,
    sealed_file,
)
from ors_containers.launcher.records import from_json
from ors_containers.linux import kernel_files
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.hidden_processes import show_processes
from ors_containers.linux.confinement.proc_masks import mask
from ors_containers.linux.confinement.seccomp import recording_filter
from ors_containers.linux.fd_passing import receive
from ors_containers.linux.limits.kernel_limits import limit_ipc
from ors_containers.linux.programs.enter_program import REPORT_AT
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["enter_sandbox"]

_OOM_SCORE = 500  # the kernel kills an agent's process before the sandbox's process 1
#: The first number for descriptors of this process's own: a program gets none beyond it.
_KEPT_FROM = 128
#: The kernel's limit for one argument is 128 KiB.
_LONGEST_ARGUMENT = 120 * 1024
#: Characters of a program's name that an error has.
_SHOWN = 200


def enter_sandbox(
    message: Enter, descriptors: list[int], seccomp: bytes, control: socket.socket, enter: bytes
) -> Entered | Failed:
    """Start a program in a sandbox, under the filter ``seccomp``, by ``linux.enter_program``, which is ``enter``."""
    process_1, *passed = descriptors
    recorder = passed.pop() if message.record else -1
    program, directory = message.program, ""
    if message.packed:
        program, directory = _unpacked(program, passed.pop())
    # Root of a strict sandbox of a root server owns no file of the machine: its first command need not wait for this.
    through = sealed_file("ors-enter", enter) if program.user.capabilities or os.geteuid() != 0 else -1
    groups: list[int] = []
    host = kernel = -1
    if message.gate:
        # While the sandbox comes up, this process joins the groups, and its child inherits them.
        join_groups(open_groups(message.groups))
        process_1 = _wait_at_gate(process_1)
        host = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel = os.open("sys/kernel", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=host)
    else:
        groups = open_groups(message.groups)
    kernel_files.write("/proc/self/oom_score_adj", str(_OOM_SCORE))
    pipes = {os.fstat(pipe).st_ino: pipe for pipe in passed}.values()  # output and errors are one
    for pipe in pipes:
        give_pipe(pipe, program.user, process_1)
    system.refuse_inspection()
    system.setns(process_1, system.ALL_NAMESPACES)
    if message.show_processes and examiners(program.user) is not None:
        show_processes()
    bounded = True
    if kernel != -1:
        if not program.user.one_id:
            system.become(0, 0)
            mask(EXAMINATION)
        bounded = limit_ipc(kernel)
        os.close(kernel)
        if through == -1:
            numbered = zip(passed, message.at, strict=True)
            return _spawn(program, numbered, pipes, seccomp, (control.fileno(), host), bounded)
    reports, report = os.pipe()
    process = os.fork()
    if process == 0:
        control.close()
        try:
            join_groups(groups)
            os.write(report, f"{os.getpid()}\n".encode())
            for pipe in pipes:
                give_pipe(pipe, program.user)
            devnull = os.open(os.devnull, os.O_RDWR)  # the sandbox's
            numbered = zip(passed, message.at, strict=True)
            place([(report, REPORT_AT), (devnull, 0), (devnull, 1), (devnull, 2), *numbered])
            os.set_inheritable(REPORT_AT, through != -1)  # its end of file says that the program runs
            os.setsid()
            if program.user.capabilities:
                # Without no_new_privs a filter needs CAP_SYS_ADMIN, and with it no program could be setuid.
                system.set_seccomp(seccomp)
                if recorder != -1:
                    _start_recording(recorder)
                lower(program)
            else:
                lower(program)
                system.set_seccomp(seccomp)
            if directory:
                _require_directory(directory)
            path = _find(program.arguments[0], program.environment)
            arguments = [path, *program.arguments[1:], *(_script(message.at[-1]) if message.script else ())]
            default_signals()
            if through == -1:
                os.execve(path, arguments, program.environment)  # noqa: S606 - becoming it is the point
            os.execve(through, ["ors-enter", *arguments], program.environment)  # noqa: S606 - as above
        except OSError as error:
            os.write(REPORT_AT if is_open(REPORT_AT) else report, f"{error.errno} {error.strerror}".encode())
        os._exit(70)
    os.close(report)
    text = b""
    while piece := os.read(reports, 4096):
        text += piece
    inner, _, problem = text.decode().partition("\n")
    if problem or not inner:
        os.waitpid(process, 0)
        number, _, problem = problem.partition(" ")
        if len(number) == 1 and not problem:  # of the program that executes it
            number, problem = str(ord(number)), os.strerror(ord(number))
        # Without a problem it was killed by a process of the sandbox.
        return _failed(program, int(number or 0), problem or "it ended as it started")
    return Entered(process, int(inner), bounded)


def _spawn(
    program: Program,
    passed: Iterable[tuple[int, int]],
    pipes: Iterable[int],
    seccomp: bytes,
    kept: tuple[int, int],
    bounded: bool,
) -> Entered | Failed:
    """Start a sandbox's first program by ``vfork``, for a copy of this process would cost more than all else here.

    So this process becomes what the program has to be, and only sends the response then. It has no id in the sandbox,
    where nothing runs yet. ``kept``, its socket and the host's /proc, are closed in the program.
    """
    control, host = (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _KEPT_FROM) for descriptor in kept)
    try:
        for pipe in pipes:
            give_pipe(pipe, program.user)
        devnull = os.open(os.devnull, os.O_RDWR)  # the sandbox's
        place([(devnull, 0), (devnull, 1), (devnull, 2), *passed])
        lower(program)
        system.set_seccomp(seccomp)
        path = _find(program.arguments[0], program.environment)
        default_signals()
        process = os.posix_spawn(path, [path, *program.arguments[1:]], program.environment, setsid=True)
        status = os.open(f"{process}/status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=host)
        numbers = next(line for line in os.read(status, 4096).splitlines() if line.startswith(b"NSpid:"))
    except OSError as error:
        return _failed(program, error.errno, error.strerror)
    finally:
        os.dup2(control, kept[0], inheritable=False)
    return Entered(process, int(numbers.split()[-1]), bounded)


def _failed(program: Program, number: int | None, problem: str | None) -> Failed:
    return Failed(number or errno.ESRCH, f"{program.arguments[0][:_SHOWN]}: {problem}")


def _start_recording(recorder: int) -> None:
    """Let a process at the other end of a socket know what this one and those after it open. Raises ``OSError``."""
    with socket.socket(fileno=recorder) as connection:
        try:
            listener = system.set_recording_seccomp(recording_filter(os.uname().machine))
        except OSError as error:
            connection.send(str(error.strerror or error).encode())
            raise
        socket.send_fds(connection, [b""], [listener])
        os.close(listener)


def _unpacked(program: Program, descriptor: int) -> tuple[Program, str]:
    """Return a program with the parts that a file has, and the directory that it must be in."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        packed = from_json(PackedProgram, json.load(file))
    directory = packed.directory or program.directory
    program = program._replace(arguments=packed.arguments, environment=packed.environment, directory=directory)
    return program, packed.directory


def _require_directory(path: str) -> None:
    """Change to a directory. Raises ``OSError`` (``EACCES``), as for a program that cannot be executed."""
    try:
        os.chdir(path)
    except OSError as error:
        raise OSError(errno.EACCES, f"its directory {path!a} cannot be entered: {error.strerror}") from error


def _find(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a program, looked for in PATH where its name has no slash. Raises ``OSError``."""
    if "/" in name:
        return name
    for folder in environment.get("PATH", "").split(":"):
        path = f"{folder or '.'}/{name}"
        try:
            if stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK):
                return path
        except OSError:
            continue
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _script(descriptor: int) -> list[str]:
    """Return a shell's arguments for the text of a command, which ``descriptor`` has.

    The kernel refuses long arguments, so a long text is read as a script is. A short one is an argument: its errors
    have the shell's name, as with ``docker exec``, and no descriptor is left open.
    """
    if os.fstat(descriptor).st_size >= _LONGEST_ARGUMENT:
        return [f"/proc/self/fd/{descriptor}"]
    text = os.pread(descriptor, _LONGEST_ARGUMENT, 0)
    os.close(descriptor)
    return ["-c", os.fsdecode(text)]


def _wait_at_gate(gate: int) -> int:
    """Receive a pidfd of the sandbox's process 1 at a socket. Raises ``OSError`` if the sandbox does not come up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, gate) as waiting:
        _, descriptors = receive(waiting, 1, 1)
    if not descriptors:
        raise OSError(errno.ESRCH, "it did not come up")
    return descriptors[0]
