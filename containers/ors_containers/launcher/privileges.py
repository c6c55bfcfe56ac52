"""What a child of the launcher does to itself before it executes a program in a sandbox.

Invariant: when ``lower`` returns, the process has no right left that a program of the sandbox must not have, and can
get none back; the order of its steps is the one in which each can still be taken.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ors_containers.linux import syscalls as system

__all__ = ["default_signals", "give_pipe", "is_open", "join_groups", "lower", "open_groups", "place"]

Message = dict[str, Any]


def place(pairs: Iterable[tuple[int, int]]) -> None:
    """Put descriptors at given numbers, inheritable, whatever numbers they have now."""
    moved = [(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 64), target) for source, target in pairs]
    for source, target in moved:
        os.dup2(source, target, inheritable=True)
        os.close(source)


def is_open(descriptor: int) -> bool:
    """Whether this process has a descriptor of that number."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def open_groups(paths: Iterable[str]) -> list[int]:
    """Descriptors of control groups' ``cgroup.procs``; whoever opened them may join, whatever it is by then."""
    return [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in paths]


def join_groups(groups: Iterable[int]) -> None:
    """Move this process into control groups, and close their descriptors."""
    for group in groups:
        os.write(group, b"0")
        os.close(group)


def give_pipe(descriptor: int, user: int, group: int, holder: int | None = None) -> None:
    """Make a pipe the sandbox's user's, so that programs can open it again as /dev/stdout and /dev/stderr.

    With ``holder``, before its sandbox is joined: the one who may give away the host's root's is that root. Without,
    after it was joined and before rights were given up: a server that is an ordinary user owns what it may give away.
    A pipe that cannot be given stays a pipe that can be written.
    """
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    with contextlib.suppress(OSError, StopIteration):
        if holder is not None:
            if os.geteuid() != 0:
                return
            lines = Path(f"/proc/self/fdinfo/{holder}").read_text().splitlines()
            process = next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
            user, group = _outside(process, "uid_map", user), _outside(process, "gid_map", group)
        os.fchown(descriptor, user, group)


def _outside(process: int, table: str, number: int) -> int:
    """What an id inside the user namespace of ``process`` is for this one."""
    for line in Path(f"/proc/{process}/{table}").read_text().splitlines():
        inside, outside, count = (int(word) for word in line.split())
        if inside <= number < inside + count:
            return outside + number - inside
    raise OSError(errno.EINVAL, f"{number} is not in {table}")


def default_signals() -> None:
    """Undo what Python and the launcher ignore; ignored signals stay ignored in the program that is executed."""
    for number in (
        *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def lower(message: Message, *, shielded: bool = False, group: int | None = None) -> None:
    """Give up everything a sandbox's program must not have, in the order in which it can still be given up.

    ``shielded`` leaves ``system_calls.SHIELD``, which does nothing but keep processes that have less from this one.
    ``group`` is one more that the program is in.
    """
    for name, value in message["resources"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    if shielded:
        system.make_inheritable(system.SHIELD)
    system.drop_bounding_set()
    if not message["one_id"]:  # else the kernel has made it the only user there is
        system.become(message["user"], message["group"], () if group is None else (group,))
    if shielded:
        system.keep_ambient(system.SHIELD)
    else:
        system.drop_capabilities()
    system.no_new_privileges()
    os.umask(0o022)
    for directory in (message["directory"], "/"):
        try:
            os.chdir(directory)
        except OSError:
            continue
        break
