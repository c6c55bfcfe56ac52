"""What a child of the launcher does for an examination: ends what runs, shuts itself off, starts and watches a program.

Two processes do it. The first stays outside of the sandbox's process ids, where none of its processes can signal it,
and ends them (a frozen examination) by children that live for one system call. The second is among these ids and
watches the program: it is the one that the program's orphans go to, so it knows all that descends from it, and it ends
them when the program has ended or the server lets go of its end of a pipe, the *leash*.

Invariants: no process id of the host is ever signalled; when a frozen examination starts, nothing runs in the sandbox
but process 1; the examination's files are in a mount namespace that no process of the sandbox has or can join; from
its first instruction the program is out of reach for them (``system_calls.SHIELD``), as these two are.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ors_containers.launcher.examiners import examiners, hide_processes, show_processes
from ors_containers.launcher.nsenter import ENDING_PATIENCE, join_processes, processes, signal_all, until_gone
from ors_containers.launcher.privileges import default_signals, give_pipe, join_groups, lower, open_groups, place
from ors_containers.linux import syscalls as system
from ors_containers.linux.kernel_limits import TERMINAL_OPTIONS

__all__ = ["EXAMINATION", "start_examination"]

Message = dict[str, Any]

EXAMINATION = "/.examination"  # as ``sandbox`` has it; that module is more than the launcher needs

#: Bytes an examination may write beside its files, in memory; they count as its own.
_SCRATCH = 64 * 2**20
_INODES = 16384
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_REPORT_AT = 40
_SEARCHABLE = 0o111
_READY = b"ready"


def start_examination(message: Message, descriptors: list[int], seccomp: bytes, control: socket.socket) -> Message:
    """Start the program; the answer is the process id of the one that watches it, whose exit status is its own."""
    holder, packed, source, output, leash = descriptors
    files = _unpack(packed)
    groups = open_groups(message["groups"])
    for pipe in (source, output):
        give_pipe(pipe, message["user"], message["group"], holder)
    news, report = os.pipe()
    join_processes(holder)
    if not message["keep"]:
        signal_all(signal.SIGKILL)
        until_gone(time.monotonic() + ENDING_PATIENCE)
    watcher = os.fork()
    if watcher == 0:
        try:
            control.close()
            os.close(news)
            _watch(message, files, seccomp, groups, (source, output, leash, report))
        except OSError as error:
            os.write(report, f"{error.errno} {error.strerror or error}".encode())
        finally:
            os._exit(70)
    os.close(report)
    said = b""
    while piece := os.read(news, 4096):
        said += piece
    if said != _READY:
        os.waitpid(watcher, 0)
        number, _, text = said.removeprefix(_READY).decode().partition(" ")
        closed = number == str(int(errno.EACCES))
        if message["keep"] and (closed or said in (b"", _READY[: len(said)])):
            return {"killed": True}  # by one of the processes it was to bear, which must not pass for a fault of ours
        return {"errno": int(number) if number.isdigit() else errno.EIO, "error": text or "it ended as it started"}
    return {"process": watcher}


def _unpack(descriptor: int) -> dict[str, bytes]:
    """Files as ``examination.pack`` writes them: a line with names and sizes, then their contents in that order."""
    content = b""
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        content = file.read()
    head, _, rest = content.partition(b"\n")
    files: dict[str, bytes] = {}
    start = 0
    for name, size in json.loads(head):
        files[name] = rest[start : start + size]
        start += size
    return files


def _watch(
    message: Message, files: Mapping[str, bytes], seccomp: bytes, groups: list[int], pipes: tuple[int, int, int, int]
) -> NoReturn:
    """Run the program, end what it leaves, and end with its exit status."""
    source, output, leash, report = pipes
    system.become_subreaper()
    system.unshare(system.CLONE_NEWNS)
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    size = _SCRATCH + sum(len(content) + 4096 for content in files.values())
    group = examiners(message)
    # To the group, and never as its owner: whoever has that user could enter it by a descriptor.
    access = (700, message["user"], message["group"]) if group is None else (770, group, group)
    options = "size={},nr_inodes={},mode={},uid={},gid={}".format(size, _INODES + len(files), *access)
    system.mount("tmpfs", EXAMINATION, "tmpfs", system.MS_NOSUID | system.MS_NODEV, options)
    # Terminals of its own: whoever has their user can write what seems to come from a program that writes to one.
    system.mount("devpts", "/dev/pts", "devpts", system.MS_NOSUID | system.MS_NOEXEC, TERMINAL_OPTIONS)
    if message["keep"] and message["shell"]:
        _end_shell(message["shell"])
    _open_root()
    if group is not None and message["keep"]:
        hide_processes(group)
    program = os.fork()
    if program == 0:
        _become(message, files, seccomp, groups, (source, output, report))
    for descriptor in (source, output, report):
        os.close(descriptor)
    poll = select.poll()
    watched = os.pidfd_open(program)
    poll.register(watched, select.POLLIN)
    poll.register(leash, select.POLLIN)
    ended = {descriptor for descriptor, _ in poll.poll()}
    status = os.waitpid(program, 0)[1] if watched in ended else None
    if group is not None and message["keep"]:
        show_processes()  # whatever is left of it has nobody to mislead any more
    _end_descendants(alone=not message["keep"])
    while True:
        try:
            process, other = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        status = other if process == program else status
    code = os.waitstatus_to_exitcode(status or 0)
    if code != 0 and message["keep"] and _root_is_closed():
        code = -signal.SIGKILL  # by one of the processes it was to bear, which can close it again
    os._exit(code if code >= 0 else 128 - code)


def _root_is_closed() -> bool:
    return Path("/").stat().st_mode & _SEARCHABLE != _SEARCHABLE


def _open_root() -> None:
    """Let the program pass through the root directory, which an agent that is its owner can close to everybody."""
    if _root_is_closed():
        Path("/").chmod(stat.S_IMODE(Path("/").stat().st_mode) | _SEARCHABLE)


def _end_shell(shell: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(shell, signal.SIGKILL)
    deadline = time.monotonic() + ENDING_PATIENCE
    while Path(f"/proc/{shell}").exists() and time.monotonic() < deadline:
        time.sleep(0.001)


def _end_descendants(*, alone: bool) -> None:
    """Kill whatever descends from this process: all there is, where it and they are alone."""
    with contextlib.suppress(ProcessLookupError):
        if alone:
            os.kill(-1, signal.SIGKILL)
            return
        if _reaped_all():
            return
        # Stopped, in one step, nothing multiplies while it is looked at.
        os.kill(-1, signal.SIGSTOP)
        try:
            found = processes()
            for process in found:
                above = process
                while above in found and above != os.getpid():
                    above = found[above][0]
                if above == os.getpid() != process:
                    os.kill(process, signal.SIGKILL)
        finally:
            os.kill(-1, signal.SIGCONT)


def _reaped_all() -> bool:
    """Take the exit statuses of children that have ended; whether there is no child any more."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return False
        except ChildProcessError:
            return True


def _become(
    message: Message, files: Mapping[str, bytes], seccomp: bytes, groups: list[int], pipes: tuple[int, int, int]
) -> NoReturn:
    """Become the program. ``report`` stays open until it runs: its end says that it does."""
    source, output, report = pipes
    arguments: list[str] = message["arguments"]
    try:
        join_groups(groups)
        for pipe in (source, output):
            give_pipe(pipe, message["user"], message["group"])
        place([(report, _REPORT_AT), (source, 0), (output, 1), (output, 2)])
        report = _REPORT_AT
        os.set_inheritable(report, False)
        os.setsid()
        lower(message, shielded=True, group=examiners(message))
        system.end_with_parent()
        for name, content in files.items():
            path = Path(EXAMINATION, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        system.set_seccomp(seccomp)
        default_signals()
    except OSError as error:
        os.write(report, f"{error.errno} {error.strerror or error}".encode())
        os._exit(70)
    os.write(report, _READY)
    try:
        os.execve(arguments[0], arguments, message["environment"])  # noqa: S606 - becoming it is the point
    except OSError as error:
        os.write(2, f"{arguments[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTABLE)
