"""A program that starts another apart from the rest of its user's.

    python -m ors_containers.linux.isolated_program '{"hide": ["/srv/others"], …}' COMMAND…

The command has mounts, process ids and System V IPC of its own: it sees and signals only processes that it has started,
and ``View`` says which folders it has. Nothing on the host changes. It keeps its user, network and all other files.
Everything that it has started ends with it, and it ends with the process that started this program.

Root starts the command in a user namespace in which all ids are the same, an ordinary user in one in which it is the
same user: there the command cannot undo a mount. Its parent is process 1 of its namespace, whose parent is this
program's first process; both pass on signals and the command's status.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from ors_containers.linux import syscalls as system
from ors_containers.linux.bound_folder import REFUSED, bind_folder
from ors_containers.linux.confinement.user_namespaces import map_one_id

__all__ = ["View", "apart", "main"]

_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_NAMESPACES = system.CLONE_NEWNS | system.CLONE_NEWPID | system.CLONE_NEWIPC


class View(NamedTuple):
    """The folders of a command. Those that do not exist are left out."""

    #: A folder of the host, and the path directly below the root at which the command sees it.
    bind: tuple[str, str] | None = None
    #: Folders that are empty for the command.
    hide: Sequence[str] = ()
    #: Folders that it cannot write.
    read_only: Sequence[str] = ()


def apart(view: View) -> list[str]:
    """Return the program and arguments that start a command with this view."""
    return [sys.executable, "-P", "-m", __name__, json.dumps(view._asdict())]


def main(arguments: list[str]) -> None:
    """Run the command, and end as it does."""
    view, command = View(**json.loads(arguments[0])), arguments[1:]
    system.end_with_parent()
    try:
        _enter(view)
    except OSError as error:
        _refuse(error)
    # Until they can be passed on they wait: process 1 would lose them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        _run_first(command)
    _end_as(_follow(child))


def _enter(view: View) -> None:
    here = Path.cwd()
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        system.unshare(_NAMESPACES)
    else:
        system.unshare(system.CLONE_NEWUSER | _NAMESPACES)
        map_one_id(user, user, group, group)
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    if view.bind is not None:
        bind_folder(*view.bind)
    for path in _existing(view.read_only):
        system.attach(path, path)
    for path in _topmost(_existing(view.hide)):
        flags = system.MS_NOSUID | system.MS_NODEV
        system.mount("tmpfs", path, "tmpfs", flags | system.MS_RDONLY, "mode=755,size=4k")
    os.chdir(here)


def _existing(paths: Sequence[str]) -> list[str]:
    """Return the folders themselves, those above before those below."""
    return sorted({os.path.realpath(path) for path in paths if Path(path).is_dir()})


def _topmost(paths: Sequence[str]) -> list[str]:
    """Return the folders that lie below no other one of them, which come before those below."""
    found: list[str] = []
    for path in paths:
        if not any(Path(path).is_relative_to(above) for above in found):
            found.append(path)
    return found


def _run_first(command: list[str]) -> None:
    """As process 1: start the command, and collect what it leaves."""
    system.end_with_parent()
    os.setsid()
    flags = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC
    try:
        system.mount("proc", "/proc", "proc", flags)
        child = _start(command)
    except OSError as error:
        _refuse(error)
    os._exit(_follow(child))


def _start(command: list[str]) -> int:
    ready, say_ready = os.pipe()
    go, say_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(say_go)
        system.end_with_parent()
        if os.geteuid() == 0:
            system.unshare(system.CLONE_NEWUSER | system.CLONE_NEWNS)
        os.close(say_ready)
        os.read(go, 1)
        os.close(ready)
        os.close(go)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        try:
            os.execvp(command[0], command)  # noqa: S606 - the program's purpose
        except OSError as error:
            sys.stderr.write(f"{command[0]}: {error.strerror}\n")
            os._exit(127)
    os.close(say_ready)
    os.read(ready, 1)
    if os.geteuid() == 0:
        for ids in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{ids}").write_text(_identity(Path("/proc/self", ids).read_text()))
    os.close(say_go)
    return child


def _identity(mapped: str) -> str:
    """Return the map that leaves all ids of a map as they are."""
    rows = (line.split() for line in mapped.splitlines())
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in rows)


def _follow(child: int) -> int:
    """Pass signals on to a child until it ends; return its status as a shell would."""

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    # Pipes of the command must close when it closes them.
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _end_as(status: int) -> None:
    """End with a status, or by the signal that it stands for."""
    if status > 128:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(status - 128, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            os.kill(os.getpid(), status - 128)
    os._exit(status)


def _refuse(error: OSError) -> NoReturn:
    sys.stderr.write(f"This program cannot be kept apart from others: {error.strerror or error}\n")
    sys.stderr.flush()
    os._exit(REFUSED)


if __name__ == "__main__":
    main(sys.argv[1:])
