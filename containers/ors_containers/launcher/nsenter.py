"""What a child of the launcher does inside a sandbox: open a file, look at one, end a command's processes.

Each joins the sandbox through a pidfd of its process 1 and then acts as anybody inside would: a path is resolved in the
sandbox's own mounts with its user's rights, and a process id is one of its own pid namespace. So there is no check to
get wrong. Before it joins, the child makes itself unreadable for the sandbox's processes, and it imports nothing after.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ors_containers.linux import syscalls as system
from ors_containers.linux.proc_stat import process_status

__all__ = [
    "ENDING_PATIENCE",
    "Message",
    "interrupt_command",
    "join_processes",
    "open_file",
    "processes",
    "signal_all",
    "stat_file",
    "until_gone",
]

Message = dict[str, Any]

#: Seconds in which processes that were killed must have ended.
ENDING_PATIENCE = 20.0
#: Seconds after which it is enough that they end.
_GONE_PATIENCE = 2.0


def _visit(message: Message, holder: int) -> None:
    """Join the sandbox's files, as its user and without a single capability."""
    system.refuse_inspection()
    system.setns(holder, system.CLONE_NEWUSER | system.CLONE_NEWNS)
    system.drop_bounding_set()
    if not message["one_id"]:  # else the kernel has made it the only user there is
        system.become(message["user"], message["group"])
    system.drop_capabilities()
    os.umask(0o022)
    os.chdir(message["directory"])


def open_file(message: Message, descriptors: list[int]) -> Message:
    """Open a regular file; the answer carries its descriptor and its size."""
    _visit(message, descriptors[0])
    flags: int = message["flags"] | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if message["parents"]:
        Path(message["path"]).parent.mkdir(parents=True, exist_ok=True)
    # O_TRUNC only once it is known to be a regular file.
    descriptor = os.open(message["path"], flags & ~os.O_TRUNC, message["mode"])
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EISDIR, f"{_kind(found.st_mode)}, not a regular file")
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
        os.fchmod(descriptor, message["mode"])
    return {"descriptor": descriptor, "size": found.st_size}


def stat_file(message: Message, descriptors: list[int]) -> Message:
    """What ``stat`` says of a path."""
    _visit(message, descriptors[0])
    path = Path(message["path"])
    found = path.stat() if message["follow"] else path.lstat()
    return {
        "kind": _kind(found.st_mode),
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "user": found.st_uid,
        "group": found.st_gid,
        "modified": found.st_mtime,
        "link": str(path.readlink()) if stat.S_ISLNK(found.st_mode) else None,
    }


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
    """Send a signal to every process of the sandbox but process 1, in one step no fork can outrun.

    This process has joined the sandbox's process ids for its children, but is not among them: nothing in the sandbox
    can signal it. Its children are, and an agent with their user can stop or kill them; so each of them does one thing,
    at once, and another follows until one has done it. In between, the processes there are get the signal one by one,
    from here: forks outrun that, but what does nothing but stop or kill others has then ended.
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
            with contextlib.suppress(OSError):  # it has ended meanwhile
                process = os.open(f"/proc/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    # By its folder: its number is one of the sandbox, and means another process here.
                    signal.pidfd_send_signal(process, number)
                finally:
                    os.close(process)


def join_processes(holder: int) -> None:
    """Join every namespace of the sandbox. Raises ``OSError`` where what follows would reach the host's processes."""
    namespaces = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    system.refuse_inspection()
    system.setns(holder, system.ALL_NAMESPACES)
    own, joined = (os.stat(name, dir_fd=namespaces).st_ino for name in ("pid", "pid_for_children"))
    os.close(namespaces)
    if own == joined:
        raise OSError(errno.EPERM, "the sandbox's process ids were not joined")


def until_gone(deadline: float) -> None:
    """Wait until nothing is left of what was killed but process 1, dying processes and zombies included.

    What it has to give back, an agent can make so much that dying takes minutes: the kernel looks for each of 40,000
    locks of one file among all of them. From some time on it is enough that nothing executes its program any more.
    Raises ``OSError`` (``ETIMEDOUT``) where something still does at the ``deadline``.
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
    """Whether each thread of a process is on its way out, or out."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208 - names are enough
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if not process_status(f"{process}/task/{thread}").exiting:
                    return False
    return True


def interrupt_command(message: Message, descriptors: list[int]) -> Message:
    """End the processes of one command, all at once, as ``_end_command`` says; or, ``everything``, all there are."""
    join_processes(descriptors[0])
    if message["how"] == "everything":
        signal_all(signal.SIGKILL)
        until_gone(time.monotonic() + ENDING_PATIENCE)
        return {"killed": -1}
    # Stopped, in one step, nothing multiplies while it is looked at, and nothing harms the child that looks.
    signal_all(signal.SIGSTOP)
    news, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(report, str(_end_command(message["shell"], message["spared"], message["how"])).encode())
        finally:
            os._exit(0)
    os.close(report)
    # But for one that had begun to signal, and waited for the fork, when it was itself stopped.
    deadline = time.monotonic() + ENDING_PATIENCE
    while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        os.kill(child, signal.SIGCONT if time.monotonic() < deadline else signal.SIGKILL)
    killed = os.read(news, 64)
    signal_all(signal.SIGCONT)
    return {"killed": int(killed or 0)}


def _end_command(shell: int, spared: Mapping[str, int], how: str) -> int:
    """Signal all but process 1, the shell, and ``spared`` (process id → start time) with their descendants.

    ``interrupt`` sends them and the shell SIGINT: a shell drops the rest of its list when its child ends of that, and
    goes on with it when the child is killed. ``kill`` kills them and interrupts the shell, ``sweep`` leaves the shell
    alone, ``all`` kills it too. Everything is stopped meanwhile.
    """
    found = processes()
    ended = 0
    for process in found:
        if process in (1, os.getpid(), shell):
            continue
        above = process
        while above in found and above not in (1, shell):
            if spared.get(str(above)) == found[above][1]:
                break
            above = found[above][0]
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGINT)
                if how != "interrupt":
                    os.kill(process, signal.SIGKILL)
            ended += 1
    if shell in found and how != "sweep":
        os.kill(shell, signal.SIGKILL if how == "all" else signal.SIGINT)
    return ended


def processes() -> dict[int, tuple[int, int]]:
    """Parent and start time of every process in this pid namespace that has not ended."""
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = process_status(entry.name)
        except OSError:
            continue
        if not status.ended:
            found[int(entry.name)] = (status.parent, status.started)
    return found
