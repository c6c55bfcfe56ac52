"""The filter of system calls for a sandbox (classic BPF).

It allows every call except those that reach beyond the sandbox or have no use in one: other processes' memory and
limits, mounts, namespaces, kernel modules, keys, io_uring, clocks. Sockets that the kernel does not confine by
namespaces are refused as well: a socket of a family other than unix, inet, inet6 and netlink (``AF_VSOCK`` would reach
a hypervisor). ``clone3`` fails with ENOSYS, because its flags are in memory that a filter cannot read; every C library
then uses ``clone``, whose flags are checked. ``io_setup`` fails with ENOSYS, because the whole machine shares a few AIO
contexts; programs do without. Calls of a foreign architecture, including 32-bit and x32, fail with ENOSYS.

A container's filter allows what Docker's allows and a container's namespaces confine (``_OF_CONTAINERS``): debuggers,
``chroot``, limits of other processes.

Invariant: the filter only removes rights; with no_new_privs, or without CAP_SYS_ADMIN, it cannot be removed.
"""

from __future__ import annotations

import errno
import struct
from typing import Literal, NamedTuple

__all__ = ["ARCHITECTURES", "RECORDED_CALLS", "RecordedCall", "recording_filter", "seccomp_filter"]

#: ``AUDIT_ARCH_*`` of each machine, by ``platform.machine()``.
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

#: Refused with EPERM: (x86-64, aarch64); None where the architecture has no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "unshare": (272, 97),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "lookup_dcookie": (212, 18),
}
#: Allowed in a container: they act on processes of the same user or on the caller alone.
_OF_CONTAINERS = frozenset(("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "chroot"))


class RecordedCall(NamedTuple):
    """The places of a call's arguments."""

    #: ``look``: the call asks whether something is there.
    kind: Literal["execute", "open", "look"]
    path: int
    #: The directory that the path is relative to; None for the caller's.
    directory: int | None = None
    flags: int = 0
    #: The flags are in memory.
    by_address: bool = False
    #: The place of flags with which the path may be empty: then the call is about an open file.
    may_be_empty: int | None = None
    #: The arguments of a program, as the addresses of texts; its variables come after them.
    arguments: int = 0


_AT = {
    "execve": RecordedCall("execute", 0, arguments=1),
    "execveat": RecordedCall("execute", 1, 0, arguments=2),
    "open": RecordedCall("open", 0, flags=1),
    "openat": RecordedCall("open", 1, 0, flags=2),
    "openat2": RecordedCall("open", 1, 0, flags=2, by_address=True),
    "stat": RecordedCall("look", 0),
    "lstat": RecordedCall("look", 0),
    "access": RecordedCall("look", 0),
    "newfstatat": RecordedCall("look", 1, 0, may_be_empty=3),
    "faccessat": RecordedCall("look", 1, 0),
    "faccessat2": RecordedCall("look", 1, 0, may_be_empty=3),
    "statx": RecordedCall("look", 1, 0, may_be_empty=2),
}
_NUMBERS = {
    "x86_64": (59, 322, 2, 257, 437, 4, 6, 21, 262, 269, 439, 332),
    "aarch64": (221, 281, None, 56, 437, None, None, None, 79, 48, 439, 291),
}
#: The calls that ``recording_filter`` stops, by machine and number.
RECORDED_CALLS: dict[str, dict[int, RecordedCall]] = {
    machine: {number: call for number, call in zip(numbers, _AT.values(), strict=True) if number is not None}
    for machine, numbers in _NUMBERS.items()
}
_AT_EMPTY_PATH = 0x1000
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_IO_SETUP = (206, 0)
_IOCTL = (16, 29)
_SOCKET = (41, 198)
_PRLIMIT64 = (302, 261)

#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NAMESPACE_FLAGS = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
#: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK.
_FAMILIES = (1, 2, 10, 16)
_X32_BIT = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _answer(number: int) -> bytes:
    return _instruction(_RETURN, 0x00050000 | number)


def _argument(index: int) -> bytes:
    return _instruction(_LOAD, _ARGUMENTS_AT + 8 * index)  # the low half: both architectures are little-endian


_allowed = _instruction(_RETURN, _ALLOW)


def _unless(number: int, body: bytes) -> bytes:
    """``body`` for system call ``number`` alone; it must end in an answer on every path."""
    return _instruction(_EQUAL, number, 0, len(body) // 8) + body


def seccomp_filter(machine: str, *, container: bool = False) -> bytes:
    """Return the filter for ``machine`` (``platform.machine()``), as ``struct sock_filter`` s in a row.

    Raises ``KeyError`` for a machine that is not in ``ARCHITECTURES``.
    """
    column = list(ARCHITECTURES).index(machine)
    program = _instruction(_LOAD, _ARCHITECTURE_AT)
    program += _instruction(_EQUAL, ARCHITECTURES[machine], 1, 0) + _answer(errno.ENOSYS)
    program += _instruction(_LOAD, _NUMBER_AT)
    if machine == "x86_64":
        program += _instruction(_AT_LEAST, _X32_BIT, 0, 1) + _answer(errno.ENOSYS)

    program += _unless(_CLONE3[column], _answer(errno.ENOSYS))
    program += _unless(_IO_SETUP[column], _answer(errno.ENOSYS))
    program += _unless(
        _CLONE[column], _argument(0) + _instruction(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1) + _answer(errno.EPERM) + _allowed
    )
    program += _unless(
        _IOCTL[column],
        _argument(1)
        + _instruction(_EQUAL, _TIOCSTI, 1, 0)
        + _instruction(_EQUAL, _TIOCLINUX, 0, 1)
        + _answer(errno.EPERM)
        + _allowed,
    )
    # Of the process itself alone: the kernel lets everybody take away files and memory from processes of the same user.
    itself_alone = _argument(0) + _instruction(_EQUAL, 0, 1, 0) + _answer(errno.EPERM) + _allowed
    if not container:
        program += _unless(_PRLIMIT64[column], itself_alone)
    families = b"".join(_instruction(_EQUAL, family, 0, 1) + _allowed for family in _FAMILIES)
    program += _unless(_SOCKET[column], _argument(0) + families + _answer(errno.EAFNOSUPPORT))
    for name, numbers in _REFUSED.items():
        number = numbers[column]
        if number is not None and not (container and name in _OF_CONTAINERS):
            program += _unless(number, _answer(errno.EPERM))
    return program + _allowed


def recording_filter(machine: str) -> bytes:
    """Return a filter that stops each call of ``RECORDED_CALLS`` until a process that records it lets it go on.

    It refuses nothing, and belongs beside ``seccomp_filter``. Raises ``KeyError`` as that does.
    """
    program = _instruction(_LOAD, _ARCHITECTURE_AT)
    program += _instruction(_EQUAL, ARCHITECTURES[machine], 1, 0) + _allowed
    program += _instruction(_LOAD, _NUMBER_AT)
    notify = _instruction(_RETURN, _NOTIFY)
    for number, call in RECORDED_CALLS[machine].items():
        body = notify
        if call.may_be_empty is not None:
            empty = _instruction(_ANY_BIT, _AT_EMPTY_PATH, 0, 1) + _allowed
            body = _argument(call.may_be_empty) + empty + notify
        program += _unless(number, body)
    return program + _allowed
