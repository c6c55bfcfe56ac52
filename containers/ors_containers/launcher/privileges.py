"""Steps of a child before it executes a program in a sandbox: descriptors, control groups, limits, privileges.

Invariant: when ``lower`` returns, the process has no right that a program of the sandbox must not have, and cannot
regain any; its steps are in the order in which each is still permitted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import stat
from collections.abc import Iterable, Mapping

from ors_containers.launcher.messages import Program, User
from ors_containers.linux import kernel_files
from ors_containers.linux import syscalls as system

__all__ = [
    "become_container_user",
    "default_signals",
    "enter_directory",
    "give_pipe",
    "is_open",
    "join_groups",
    "limit_resources",
    "lower",
    "open_groups",
    "place",
    "sealed_file",
]


def place(pairs: Iterable[tuple[int, int]]) -> None:
    """Put descriptors at given numbers, inheritable, whatever numbers they have now."""
    moved = [(fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, 64), target) for source, target in pairs]
    for source, target in moved:
        os.dup2(source, target, inheritable=True)
        os.close(source)


def is_open(descriptor: int) -> bool:
    """Return whether this process has a descriptor of that number."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def open_groups(paths: Iterable[str]) -> list[int]:
    """Open the files of control groups; a process may join through them after it gave up its own rights."""
    return [os.open(path, os.O_WRONLY | os.O_CLOEXEC) for path in paths]


def join_groups(groups: Iterable[int]) -> None:
    """Move this process, which has one thread, into control groups, and close their descriptors."""
    for group in groups:
        os.write(group, b"0")
        os.close(group)


def give_pipe(descriptor: int, user: User, process_1: int | None = None) -> None:
    """Chown a pipe to the sandbox's user, so that programs can open it again as /dev/stdout and /dev/stderr.

    Call it with ``process_1`` before the sandbox is joined: only the host's root may chown pipes of the host's root.
    Call it without after the sandbox was joined and before rights are dropped: that works for a server that is an
    ordinary user. A pipe that cannot be chowned can still be written.
    """
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    with contextlib.suppress(OSError, StopIteration):
        owner, group = user.id, user.group
        if process_1 is not None:
            if os.geteuid() != 0:
                return
            lines = kernel_files.read(f"/proc/self/fdinfo/{process_1}").splitlines()
            process = next(int(line.split()[1]) for line in lines if line.startswith(b"Pid:"))
            owner, group = _outside(process, "uid_map", owner), _outside(process, "gid_map", group)
        os.fchown(descriptor, owner, group)


def _outside(process: int, table: str, number: int) -> int:
    """Return this process's number for an id inside the user namespace of ``process``."""
    for line in kernel_files.read(f"/proc/{process}/{table}").splitlines():
        inside, outside, count = (int(word) for word in line.split())
        if inside <= number < inside + count:
            return outside + number - inside
    raise OSError(errno.EINVAL, f"{number} is not in {table}")


def default_signals() -> None:
    """Restore signals that Python and the launcher ignore: the executed program would go on ignoring them."""
    for number in (
        *(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD),
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def lower(program: Program, *, shielded: bool = False, group: int | None = None) -> None:
    """Set the program's limits, drop every right that it must not have, and enter its directory.

    A container's user has its capabilities as Docker's has: root all of them, another user none, and no program more.

    ``shielded`` keeps the capability ``syscalls.SHIELD``, whose only effect is that processes without it cannot inspect
    this one. ``group`` is one more group of the program, which a shielded program may take from programs that it
    starts (``syscalls.GROUPS``).
    """
    kept = () if not shielded else system.SHIELD if group is None else (system.GROUPS, *system.SHIELD)
    limit_resources(program.resources)
    if program.user.capabilities:
        become_container_user(program.user)
        os.umask(0o022)
        enter_directory(program.directory)
        return
    if shielded:
        system.make_inheritable(kept)
    system.drop_bounding_set()
    if not program.user.one_id:
        system.become(program.user.id, program.user.group, () if group is None else (group,))
    if shielded:
        system.keep_ambient(kept)
    else:
        system.drop_capabilities()
    system.no_new_privileges()
    os.umask(0o022)
    enter_directory(program.directory)


def become_container_user(user: User) -> None:
    """Be a user of a container, with its capabilities as root and with none as another user."""
    system.keep_only(user.capabilities)
    if not user.one_id:
        system.become(user.id, user.group, user.groups)
    system.set_capabilities(user.capabilities if user.id == 0 or user.one_id else ())


def sealed_file(name: str, content: bytes, *, readable: bool = True) -> int:
    """Return a descriptor of an executable, read-only file in memory, at its start.

    Without ``readable`` the kernel lets no process without CAP_SYS_PTRACE inspect one that executes it.
    """
    writable = os.memfd_create(name)
    os.write(writable, content)
    os.fchmod(writable, 0o555)
    # The kernel executes no program that a process has open for writing.
    descriptor = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    os.close(writable)
    if not readable:
        os.fchmod(descriptor, 0o111)
    return descriptor


def limit_resources(resources: Mapping[str, int]) -> None:
    """Set rlimits of this process, by the name of ``resource.RLIMIT_…``, as far as its hard limits allow."""
    for name, value in resources.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def enter_directory(path: str) -> None:
    """Change to a directory, or to / where that is not possible."""
    for directory in (path, "/"):
        try:
            os.chdir(directory)
        except OSError:
            continue
        break
