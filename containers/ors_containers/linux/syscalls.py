"""The system calls that Python does not offer, each as a function that raises ``OSError``.

Only the launcher's single-threaded children call these, between ``fork`` and ``exec``. Constants are those of Linux's
``uapi`` headers; the numbers of calls newer than 424 are the same on every architecture.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Collection, Generator
from pathlib import Path

from ors_containers.linux.limits.proc_stat import process_status

__all__ = [
    "ALL_CAPABILITIES",
    "ALL_NAMESPACES",
    "CLONE_NEWCGROUP",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWTIME",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "GROUPS",
    "MS_BIND",
    "MS_MOVE",
    "MS_NOATIME",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "MS_SLAVE",
    "SHIELD",
    "acting_as",
    "allow_inspection",
    "attach",
    "become",
    "become_subreaper",
    "drop_bounding_set",
    "drop_capabilities",
    "end_with_parent",
    "keep_ambient",
    "keep_only",
    "make_inheritable",
    "mount",
    "no_new_privileges",
    "pivot",
    "refuse_inspection",
    "scope_signals",
    "set_capabilities",
    "set_recording_seccomp",
    "set_seccomp",
    "setns",
    "unmount",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
#: 0 on a kernel without time namespaces. A sandbox has one because its file in /proc is one that can be locked.
CLONE_NEWTIME = 0x00000080 if Path("/proc/self/ns/time").exists() else 0
#: Every namespace a sandbox has of its own, joined in one call.
ALL_NAMESPACES = (
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID)
    | CLONE_NEWNET
    | CLONE_NEWTIME
)

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 2, 4, 4096, 16384, 1 << 18, 1 << 19
MS_RDONLY, MS_NOEXEC, MS_REMOUNT, MS_NOATIME, MS_MOVE = 1, 8, 32, 1024, 8192
_MNT_DETACH = 2

ALL_CAPABILITIES = range(64)

#: CAP_SETGID, which takes the examiners' group from a program that an examination starts, and is given to none.
GROUPS = 6

#: Capabilities that permit nothing in a sandbox: the kernel asks for each in the host's user namespace only (LINUX_
#: IMMUTABLE, SYS_MODULE, SYS_RAWIO, SYS_PACCT, SYS_TIME, SYS_TTY_CONFIG, MKNOD, AUDIT_WRITE, AUDIT_CONTROL,
#: MAC_OVERRIDE, SYSLOG, WAKE_ALARM, BLOCK_SUSPEND, AUDIT_READ). But a process that has one cannot be inspected by those
#: that have it not: its memory, descriptors, root, directory, environment and maps in /proc are closed to them
#: (ptrace(2), "Ptrace access mode checking"), user ids being the same or not. There are several so that the programs of
#: an examination can be kept apart as well (``process_isolation``).
SHIELD = (9, 16, 17, 20, 25, 26, 27, 29, 30, 32, 34, 35, 36, 37)

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_SECCOMP_MODE_FILTER = 2
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
#: Root of a namespace gets nothing from being root, and none of this can be undone (SECBIT_NOROOT … _LOCKED).
_SECUREBITS = 0b101111
#: A change of user takes no capability away (SECBIT_NO_SETUID_FIXUP).
_KEEPING = 0b100
_CAPABILITY_VERSION_3 = 0x20080522

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK_CREATE_RULESET = 444
_SYS_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_SCOPE_SIGNAL = 2
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000

_libc = ctypes.CDLL(None, use_errno=True)


class _SockFilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Join the namespaces of a process (a pidfd; Linux 5.8) or the one namespace an open file names."""
    _checked(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """``mount(2)``."""
    data = options.encode() or None
    _checked(
        _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data),
        f"mounting {kind or source} on {target}",
    )


def unmount(point: str) -> None:
    """Unmount the uppermost mount on ``point`` and the mounts below it, whether in use or not."""
    _checked(_libc.umount2(point.encode(), _MNT_DETACH), f"unmounting {point}")


def attach(source: str, target: str, user_namespace: int | None = None) -> None:
    """Mount the tree at ``source`` on ``target``, read-only and without devices or setuid programs.

    With ``user_namespace`` its owners are as that namespace maps them, which needs the capabilities of the namespace
    that mounted the file system: only the host's root can do it. Mounts below ``source`` are included
    only without it, because each of them would have to be mappable.
    """
    below = 0 if user_namespace is not None else _AT_RECURSIVE
    tree = _checked(
        _libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, source.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC | below),
        f"open_tree {source}",
    )
    try:
        attributes = _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV)
        if user_namespace is not None:
            attributes.attr_set |= _MOUNT_ATTR_IDMAP
            attributes.userns_fd = user_namespace
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        _checked(
            _libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | below, ctypes.byref(attributes), size),
            f"mount_setattr {source}",
        )
        _checked(
            _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH),
            f"move_mount {source} to {target}",
        )
    finally:
        os.close(tree)


def become_subreaper() -> None:
    """Become the parent of orphans among this process's descendants: so a shell's exit status reaches the launcher."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def refuse_inspection() -> None:
    """Keep processes without the host's CAP_SYS_PTRACE from inspecting this process until it executes a program.

    Its own files in /proc belong to root from then on. Its name and its arguments, which any process may read there,
    are blanked: they contain paths of the host.
    """
    start, end = process_status("self").arguments
    if start:
        ctypes.memset(start, 0, end - start)
    set_name("visitor")
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def allow_inspection() -> None:
    """Undo ``refuse_inspection``: the files of this process in /proc are its user's again."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def no_new_privileges() -> None:
    """No program this process executes can gain privileges; cannot be undone."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def become(user: int, group: int, others: Collection[int] = ()) -> None:
    """Be another user, with no groups but ``group`` and ``others``; as a namespace's root."""
    os.setgroups(list(others))
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def drop_bounding_set() -> None:
    """No program this process executes can ever have a capability, root or not. Call it while there are some."""
    _checked(_libc.prctl(_PR_SET_SECUREBITS, _SECUREBITS, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")
    for capability in ALL_CAPABILITIES:
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == -1:
            break  # EINVAL: past the last one this kernel knows


def drop_capabilities() -> None:
    """Give up every capability this process has."""
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    _set_capabilities([0] * 6)


@contextlib.contextmanager
def acting_as(user: int) -> Generator[None]:
    """Be another user within a block, with the capabilities of this one, which is root."""
    before = _libc.prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0)
    _checked(_libc.prctl(_PR_SET_SECUREBITS, before | _KEEPING, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")
    try:
        os.seteuid(user)
        try:
            yield
        finally:
            os.seteuid(0)
    finally:
        _checked(_libc.prctl(_PR_SET_SECUREBITS, before, 0, 0, 0), "prctl(PR_SET_SECUREBITS)")


def make_inheritable(capabilities: Collection[int]) -> None:
    """Let ``keep_ambient`` keep these; must come before ``drop_bounding_set``."""
    found = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capget(ctypes.byref(header), ctypes.byref(found)), "capget")
    for capability in capabilities:
        found[3 * (capability // 32) + 2] |= 1 << capability % 32
    _set_capabilities(list(found))


def keep_ambient(capabilities: Collection[int]) -> None:
    """Give up every capability but these, which the programs this process executes have as well."""
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    wanted = [0] * 6
    for capability in capabilities:
        for place in range(3):
            wanted[3 * (capability // 32) + place] |= 1 << capability % 32
    _set_capabilities(wanted)
    for capability in capabilities:
        _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0), "prctl(PR_CAP_AMBIENT)")


def set_capabilities(capabilities: Collection[int]) -> None:
    """Keep these capabilities alone, which programs of a namespace's root have too, as far as its bounding set goes."""
    wanted = [0] * 6
    for capability in capabilities:
        for place in range(2):  # not inheritable
            wanted[3 * (capability // 32) + place] |= 1 << capability % 32
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    _set_capabilities(wanted)


def _set_capabilities(wanted: list[int]) -> None:
    """Effective, permitted and inheritable of the first 32, then of the others."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)(*wanted))), "capset")


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Get a signal when the parent ends; until this process gains rights by executing, which ours never do."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def set_name(name: str) -> None:
    """Set this process's name, of which the kernel keeps 15 bytes."""
    _checked(_libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0), "prctl(PR_SET_NAME)")


def scope_signals() -> None:
    """Keep this process and all after it from signalling, and inspecting, any other; cannot be undone.

    A domain of Landlock (ABI 6, Linux 6.12) without rules for files. Needs CAP_SYS_ADMIN or no_new_privs. Raises
    ``OSError`` where the kernel has no Landlock, has it switched off, or knows no scopes.
    """
    attributes = (ctypes.c_uint64 * 3)(0, 0, _LANDLOCK_SCOPE_SIGNAL)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = _checked(
        _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, 0), "landlock_create_ruleset"
    )
    try:
        _checked(_libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def keep_only(capabilities: Collection[int]) -> None:
    """Bound the capabilities of programs that this process executes, which would have all as a namespace's root."""
    for capability in ALL_CAPABILITIES:
        if capability not in capabilities and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == -1:
            break  # EINVAL: past the last one this kernel knows


def pivot(root: str) -> None:
    """Make ``root``, a mount, the root of this mount namespace, and unmount the old root."""
    os.chdir(root)
    # The new root is mounted over the old one, which is then unmounted: that needs no directory for the old root.
    _checked(_libc.pivot_root(b".", b"."), f"pivot_root {root}")
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


def set_seccomp(program: bytes) -> None:
    """Install a filter (``struct sock_filter`` after ``struct sock_filter``) for this process and all after it."""
    filters = _SockFilterProgram(len(program) // 8, program)
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filters), 0, 0), "prctl(PR_SET_SECCOMP)")


def set_recording_seccomp(program: bytes) -> int:
    """Install a filter as ``set_seccomp`` does; return the descriptor at which the calls that it stops arrive."""
    filters = ctypes.byref(_SockFilterProgram(len(program) // 8, program))
    number = _SYS_SECCOMP[platform.machine()]
    # Linux 5.19: a signal does not begin a call again that is being answered; programs that get many would not go on.
    listener = _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE, filters)
    if listener == -1:
        listener = _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, _NEW_LISTENER, filters)
    return _checked(listener, "seccomp")
