"""Operations of the launcher's children inside a sandbox: open a file, describe a path, end processes.

Each child joins the sandbox through a pidfd of its process 1 and then acts like any process inside: a path is resolved
in the sandbox's own mounts with its user's rights, and a process id is one of its own pid namespace. Before it joins, a
child forbids the sandbox's processes to inspect it, and after that it imports no module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ors_containers.launcher.messages import (
    Done,
    EndCommand,
    EndProcesses,
    FileFound,
    Opened,
    OpenFile,
    RenameFile,
    StatFile,
    User,
)
from ors_containers.launcher.privileges import become_container_user
from ors_containers.linux import syscalls as system
from ors_containers.linux.proc_stat import ProcessStatus, process_status

__all__ = [
    "ENDING_PATIENCE",
    "end_command",
    "end_processes",
    "join_processes",
    "open_file",
    "processes",
    "rename_file",
    "signal_all",
    "stat_file",
    "until_gone",
]

#: Seconds in which processes that were killed must have ended.
ENDING_PATIENCE = 20.0
#: Seconds after which it suffices that they are exiting.
_GONE_PATIENCE = 2.0
#: Lists of processes after which all processes are stopped instead of a command's alone.
_MOST_LISTS = 20
#: Lists in a row that have to agree: a single list may lack a process that was forked meanwhile, where process ids have
#: begun at 1 again.
_AGREEING = 3


def _join_files(process_1: int, user: User, directory: str) -> None:
    """Join the sandbox's mounts, as its user and without any capability; as a container's user with that user's."""
    system.refuse_inspection()
    system.setns(process_1, system.CLONE_NEWUSER | system.CLONE_NEWNS)
    if user.capabilities:
        become_container_user(user)
    else:
        system.drop_bounding_set()
        if not user.one_id:
            system.become(user.id, user.group)
        system.drop_capabilities()
    os.umask(0o022)
    os.chdir(directory)


def open_file(message: OpenFile, descriptors: list[int]) -> Opened:
    """Open a regular file."""
    _join_files(descriptors[0], message.user, message.directory)
    flags = message.flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if message.parents:
        Path(message.path).parent.mkdir(parents=True, exist_ok=True)
    # O_TRUNC only once it is known to be a regular file.
    descriptor = os.open(message.path, flags & ~os.O_TRUNC, message.mode)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EISDIR, f"{_kind(found.st_mode)}, not a regular file")
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
        os.fchmod(descriptor, message.mode)
    return Opened(descriptor, found.st_size)


def stat_file(message: StatFile, descriptors: list[int]) -> FileFound:
    """Describe a path."""
    _join_files(descriptors[0], message.user, message.directory)
    path = Path(message.path)
    found = path.stat() if message.follow else path.lstat()
    return FileFound(
        kind=_kind(found.st_mode),
        size=found.st_size,
        mode=stat.S_IMODE(found.st_mode),
        user=found.st_uid,
        group=found.st_gid,
        modified=found.st_mtime,
        link=str(path.readlink()) if stat.S_ISLNK(found.st_mode) else None,
    )


def rename_file(message: RenameFile, descriptors: list[int]) -> Done:
    """Rename a file over another."""
    _join_files(descriptors[0], message.user, message.directory)
    Path(message.path).rename(message.target)
    return Done()


_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "unknown")


def signal_all(number: int) -> None:
    """Send a signal to every process of the sandbox but process 1, in one system call, which no fork can outrun.

    This process has joined the sandbox's pid namespace for its children, but has no id in it: no process of the sandbox
    can signal it. Its children have one, and an agent with their user can stop or kill them; so each child makes the
    one system call at once, and another is forked until a child has succeeded. In between, this process signals the
    sandbox's processes one by one: forks can outrun that, but processes that only stop or kill others then end.
    """
    deadline = time.monotonic() + ENDING_PATIENCE
    while True:
        child = system.fork_bare()
        if child == 0:
            system.kill_all(number)
            os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif os.waitstatus_to_exitcode(status) == 0:
            return
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, "the sandbox's processes could not be signalled")
        _signal_each(number)


def _signal_each(number: int) -> None:
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are enough
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError):  # the process has ended meanwhile
                process = os.open(f"/proc/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    # Through its folder: its process id is the sandbox's, and another process's here.
                    signal.pidfd_send_signal(process, number)
                finally:
                    os.close(process)


def join_processes(process_1: int) -> None:
    """Join every namespace of the sandbox. Raises ``OSError`` if children could then signal the host's processes."""
    namespaces = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    system.refuse_inspection()
    system.setns(process_1, system.ALL_NAMESPACES)
    own, joined = (os.stat(name, dir_fd=namespaces).st_ino for name in ("pid", "pid_for_children"))
    os.close(namespaces)
    if own == joined:
        raise OSError(errno.EPERM, "the sandbox's process ids were not joined")


def until_gone(deadline: float) -> None:
    """Wait until no process but process 1 is left, exiting processes and zombies included.

    An agent can make an exit take minutes: the kernel looks for each of 40,000 locks of one file among all of them. So
    after ``_GONE_PATIENCE`` it suffices that every process is exiting and executes its program no longer. Raises
    ``OSError`` (``ETIMEDOUT``) if a process still executes its program at the ``deadline``.
    """
    pause = 0.0005
    enough = time.monotonic() + _GONE_PATIENCE
    while left := [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]:  # noqa: PTH208 - names
        now = time.monotonic()
        if now > enough and all(_is_exiting(name) for name in left):
            return
        if now > deadline:
            raise OSError(errno.ETIMEDOUT, "the sandbox's processes do not end")
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _is_exiting(process: str) -> bool:
    """Return whether each thread of a process is exiting or has exited."""
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208 - names are enough
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if not process_status(f"{process}/task/{thread}").exiting:
                    return False
    return True


def end_command(message: EndCommand, descriptors: list[int]) -> Done:
    """End the processes of one command, all at once, as ``_signal_command`` says; or all, for ``everything``."""
    join_processes(descriptors[0])
    if message.how == "everything":
        signal_all(signal.SIGKILL)
        until_gone(time.monotonic() + ENDING_PATIENCE)
        return Done()
    # While all are stopped, in one step, none can fork, and none can harm the child that reads their list.
    signal_all(signal.SIGSTOP)
    child = os.fork()
    if child == 0:
        try:
            _signal_command(message.shell, message.keep_pids, message.how)
        finally:
            os._exit(0)
    # A process may have begun to signal, and stop this child, before it was stopped itself.
    deadline = time.monotonic() + ENDING_PATIENCE
    while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        os.kill(child, signal.SIGCONT if time.monotonic() < deadline else signal.SIGKILL)
    signal_all(signal.SIGCONT)
    return Done()


def end_processes(message: EndProcesses, descriptors: list[int]) -> Done:
    """Kill a process of a container, its descendants and the processes of its session."""
    join_processes(descriptors[0])
    if not _in_child(_kill_family, message.process):
        # While all are stopped, in one step, none can fork.
        signal_all(signal.SIGSTOP)
        try:
            _in_child(_kill_family, message.process)
        finally:
            signal_all(signal.SIGCONT)
    return Done()


def _in_child(work: Callable[[int], bool], argument: int) -> bool:
    """Return what ``work`` returns in a child, which is in the joined pid namespace; again if the child is killed."""
    deadline = time.monotonic() + ENDING_PATIENCE
    while True:
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if work(argument) else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        elif (code := os.waitstatus_to_exitcode(status)) in (0, 1):
            return code == 0
        # A process of the container has stopped or killed the child.
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, "the command's processes could not be killed")


def _kill_family(first: int) -> bool:
    """Stop the family of ``first`` until no member is new, so that none can fork, then kill it.

    Returns False for a family that forks and ends faster than it is listed.
    """
    # With the times of their starts: ids of processes that have ended are given again to new ones.
    stopped: set[tuple[int, int]] = set()
    members: set[tuple[int, int]] = set()
    gone: set[int] = set()
    settled = 0
    for _ in range(_MOST_LISTS):
        listed = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        found = processes(listed)
        family = {process for process, status in found.items() if status.session == first or process == first}
        while more := {process for process, status in found.items() if status.parent in family} - family:
            family |= more
        members = {(process, found[process].started) for process in family - {1, os.getpid()}}
        # A process that has ended since the list was made may have a child that is not in the list.
        gone, before = set(listed) - set(found), gone
        settled = settled + 1 if members <= stopped and gone <= before else 0
        if settled == _AGREEING:
            break
        for process, _ in members - stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        stopped |= members
    for process, _ in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return settled == _AGREEING


def _signal_command(shell: int, keep_pids: Mapping[str, int], how: str) -> None:
    """Signal all but process 1, the shell, and ``keep_pids`` (process id → start time) with their descendants.

    ``interrupt`` sends them and the shell SIGINT: a shell drops the rest of its list when its child ends by SIGINT, and
    goes on with it when the child is killed. ``kill`` kills them and interrupts the shell, ``sweep`` leaves the shell
    alone, ``all`` kills it too. Every process is stopped meanwhile.
    """
    found = processes()
    for process in found:
        if process in (1, os.getpid(), shell):
            continue
        above = process
        while above in found and above not in (1, shell):
            if keep_pids.get(str(above)) == found[above].started:
                break
            above = found[above].parent
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
                if how != "interrupt":
                    os.kill(process, signal.SIGKILL)
    if shell in found and how != "sweep":
        os.kill(shell, signal.SIGKILL if how == "all" else signal.SIGINT)


def processes(listed: Iterable[int] | None = None) -> dict[int, ProcessStatus]:
    """Return the status of each process in this pid namespace that has not ended, by process id."""
    if listed is None:
        listed = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found: dict[int, ProcessStatus] = {}
    for process in listed:
        try:
            status = process_status(process)
        except OSError:
            continue
        if not status.ended:
            found[process] = status
    return found
