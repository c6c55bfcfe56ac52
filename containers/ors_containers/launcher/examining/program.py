"""The last steps before the program of an examination runs: its mounts, its rights, its files.

Invariants: the examination's files are in a mount namespace that no process of the sandbox has or can join. From the
program's first instruction, processes of the sandbox cannot inspect it (``syscalls.SHIELD``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ors_containers.launcher.examining.examiners import examiners
from ors_containers.launcher.messages import Examine, Program, User
from ors_containers.launcher.privileges import default_signals, give_pipe, join_groups, lower, place
from ors_containers.launcher.termination import ENDING_PATIENCE, until_gone
from ors_containers.linux import syscalls as system
from ors_containers.linux.confinement.hidden_processes import hide_processes, show_processes
from ors_containers.linux.limits.kernel_limits import TERMINAL_OPTIONS
from ors_containers.linux.sandbox_paths import EXAMINATION

__all__ = ["Here", "become", "examine_inside", "mount_files", "root_is_closed"]

#: Bytes an examination may write beside its files, in memory that its control group accounts for.
_SCRATCH = 64 * 2**20
_INODES = 16384
_SEARCHABLE = 0o111


class Here(BaseException):
    """Says that this process is the program's, which is not executed.

    It is raised to the bottom of the stack. Above a launcher's frames, the program would have less depth for itself,
    and its code could read the variables of these frames.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program


def examine_inside(
    message: Examine, descriptors: Sequence[int], seccomp: bytes, started: Callable[[], None]
) -> NoReturn:
    """Be the program of a frozen examination, in a copy of a warm Python that is in the sandbox (``visits``).

    It ends the sandbox's other processes, and does not end with its parent: the launcher would report its end then.
    ``started`` is called just before it raises ``Here``. Raises ``OSError``.
    """
    if os.getppid() != 0:  # of the sandbox's processes only those whose parent is outside have none
        raise OSError(errno.EPERM, "the sandbox's process ids were not joined")
    program = message.program
    process_1, _, source, output, lifeline, *groups = descriptors
    # From here on it is ended with all others: the server does that after it has closed the lifeline.
    if _is_closed(lifeline):
        raise OSError(errno.ECANCELED, "the server has given the examination up")
    for pipe in (source, output):
        give_pipe(pipe, program.user, process_1)
    # No process of the sandbox can signal this one, which is the host's root. No fork outruns one system call.
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    system.setns(process_1, system.ALL_NAMESPACES)
    show_processes()
    until_gone(time.monotonic() + ENDING_PATIENCE, {1, os.getpid()})
    mount_files(program.user, 0, 0)
    become(program, {}, seccomp, groups, (source, output))
    started()
    raise Here(program)


def _is_closed(lifeline: int) -> bool:
    poll = select.poll()
    poll.register(lifeline, 0)
    return bool(poll.poll(0))


def mount_files(user: User, size: int, count: int) -> None:
    """Mount a place for the examination's files, ``count`` of ``size`` bytes together, where no other process sees it.

    Other processes of the sandbox do not see the examination's in /proc then, and its root can be searched.
    """
    system.unshare(system.CLONE_NEWNS)
    system.mount("", "/", "", system.MS_REC | system.MS_PRIVATE)
    group = examiners(user)
    # The group's, and not the image's user's. An agent's program that a test starts is not in the group: it cannot list
    # the folder, and opens in it what the test names to it (``graders.admission``).
    access = (700, user.id, user.group) if group is None else (771, group, group)
    sizes = (_SCRATCH + size + 4096 * count, _INODES + count)
    options = "size={},nr_inodes={},mode={},uid={},gid={}".format(*sizes, *access)
    system.mount("tmpfs", EXAMINATION, "tmpfs", system.MS_NOSUID | system.MS_NODEV, options)
    # Its own terminals: an agent process has the user of the sandbox's terminals, and could forge the output of a
    # program that writes to one.
    system.mount("devpts", "/dev/pts", "devpts", system.MS_NOSUID | system.MS_NOEXEC, TERMINAL_OPTIONS)
    # An agent that owns the root directory can make it unsearchable.
    if root_is_closed():
        os.chmod("/", stat.S_IMODE(os.stat("/").st_mode) | _SEARCHABLE)
    if group is not None:
        hide_processes(group)


def root_is_closed() -> bool:
    """Return whether the program cannot search the root directory."""
    return os.stat("/").st_mode & _SEARCHABLE != _SEARCHABLE


def become(
    program: Program,
    files: Mapping[str, bytes],
    seccomp: bytes,
    groups: Iterable[int],
    streams: tuple[int, int],
    others: Iterable[tuple[int, int]] = (),
) -> None:
    """Be what the program has to be, with its files; ``streams`` are its input and output.

    ``others`` are more descriptors and their numbers. Raises ``OSError``.
    """
    source, output = streams
    join_groups(groups)
    for pipe in streams:
        give_pipe(pipe, program.user)
    place([(source, 0), (output, 1), (output, 2), *others])
    os.setsid()
    lower(program, shielded=True, group=examiners(program.user))
    for name, content in files.items():
        path = Path(EXAMINATION, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    system.set_seccomp(seccomp)
    default_signals()
