"""The system calls that Python does not offer, each as a function that raises ``OSError``.

Only the launcher's single-threaded children call these, between ``fork`` and ``exec``. Constants are those of Linux's
``uapi`` headers; the numbers of calls newer than 424 are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import os

__all__ = [
    "ALL_CAPABILITIES",
    "ALL_NAMESPACES",
    "CLONE_NEWNS",
    "CLONE_NEWUSER",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOSUID",
    "MS_REC",
    "MS_SLAVE",
    "attach",
    "become",
    "become_subreaper",
    "drop_bounding_set",
    "drop_capabilities",
    "mount",
    "no_new_privileges",
    "refuse_inspection",
    "set_seccomp",
    "setns",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
#: Every namespace a sandbox has of its own, joined in one call.
ALL_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_SLAVE = 2, 4, 4096, 16384, 1 << 19

ALL_CAPABILITIES = range(64)

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_PR_SET_SECUREBITS = 28
_SECCOMP_MODE_FILTER = 2
#: Root of a namespace gets nothing from being root, and none of this can be undone (SECBIT_NOROOT … _LOCKED).
_SECUREBITS = 0b101111
_CAPABILITY_VERSION_3 = 0x20080522

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
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


def attach(source: str, target: str, user_namespace: int | None = None) -> None:
    """Mount the tree at ``source`` on ``target``, read-only and without devices or setuid programs.

    With ``user_namespace`` its owners are as that namespace maps them, which needs the capabilities of the namespace
    that mounted the file system: only the host's root can do it. Mounts below ``source`` come along without it alone,
    because each of them would have to be mappable.
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
    """Get the orphans among our descendants, so that a shell's exit status reaches the launcher."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def refuse_inspection() -> None:
    """Keep processes without the host's CAP_SYS_PTRACE from this one's memory and descriptors, until it executes.

    Its own files in /proc belong to root from then on.
    """
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def no_new_privileges() -> None:
    """No program this process executes can gain privileges; cannot be undone."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def become(user: int, group: int) -> None:
    """Be another user, with no groups but ``group``; as a namespace's root."""
    os.setgroups([])
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
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


def set_seccomp(program: bytes) -> None:
    """Install a filter (``struct sock_filter`` after ``struct sock_filter``) for this process and all after it."""
    filters = _SockFilterProgram(len(program) // 8, program)
    _checked(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filters), 0, 0), "prctl(PR_SET_SECCOMP)")
