"""Children that are machine code on the memory of the process that starts them.

Some steps need a process of their own for a system call or two: ``kill(-1)`` reaches the processes of the caller's own
pid namespace, and a process that has joined one is itself not in it, its children are; the ids of a user namespace are
mapped from outside, while a process is in it. A child by ``fork`` has a copy of Python's memory, which the kernel
makes, write-protects on both sides, and frees again: more than a millisecond. These have a stack of their own and
nothing else.

Invariant: a child makes the system calls of its code and ends; it does not outlive its parent. Other processes can stop
or kill it before, and learn nothing from it: it cannot be inspected if its parent cannot.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from functools import cache
from typing import NamedTuple

__all__ = ["prepare", "signal_all_by_child", "waiting_child"]

_x86_64 = bytes.fromhex
_CALL, _RETURN = 0xD4000001, 0xD65F03C0  # svc #0; ret


def _aarch64(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


#: int signal_all(long number) { kill(-1, number); return 0; }
_SIGNAL_ALL = {
    # mov esi, edi; mov edi, -1; mov eax, 62; syscall; xor eax, eax; ret
    "x86_64": _x86_64("89fe bfffffffff b83e000000 0f05 31c0 c3"),
    # mov x1, x0; mov x0, -1; mov x8, 129; svc #0; mov x0, 0; ret
    "aarch64": _aarch64(0xAA0003E1, 0x92800000, 0xD2801028, _CALL, 0xD2800000, _RETURN),
}
#: int wait(long ends) { char c; close(ends >> 32); read((int) ends, &c, 1); return 0; }
_WAIT = {
    # push rdi; shr rdi, 32; mov eax, 3; syscall; pop rdi; mov edi, edi; lea rsi, [rsp-64]; mov edx, 1;
    # xor eax, eax; syscall; xor eax, eax; ret
    "x86_64": _x86_64("57 48c1ef20 b803000000 0f05 5f 89ff 488d7424c0 ba01000000 31c0 0f05 31c0 c3"),
    # mov x3, x0; lsr x0, x0, #32; mov x8, 57; svc #0; mov w0, w3; sub x1, sp, #64; mov x2, 1; mov x8, 63; svc #0;
    # mov x0, 0; ret
    "aarch64": _aarch64(
        0xAA0003E3, 0xD360FC00, 0xD2800728, _CALL, 0x2A0303E0, 0xD10103E1, 0xD2800022, 0xD28007E8, _CALL, 0xD2800000,
        _RETURN,
    ),
}  # fmt: skip
_CLONE_VM = 0x100
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE, _ANONYMOUS = 0x02, 0x20

_libc = ctypes.CDLL(None, use_errno=True)


class _Code(NamedTuple):
    """Addresses."""

    signal_all: int
    wait: int
    stack: int


def signal_all_by_child(number: int) -> int:
    """Signal every process of the pid namespace that children are in; return the child's process id.

    Its exit status is 0. The caller waits for it before it starts another one: they have the same stack. Raises
    ``OSError``.
    """
    return _start(prepare().signal_all, number, 0)


def waiting_child(namespaces: int, read_end: int, write_end: int) -> int:
    """Start a child in new namespaces, flags of ``clone``; return its process id. It ends when the pipe is closed.

    The ends are those of a pipe that no other process has, so the child ends with this process. The rest is as above.
    """
    return _start(prepare().wait, write_end << 32 | read_end, namespaces)


def _start(code: int, argument: int, namespaces: int) -> int:
    stack = ctypes.c_void_p(prepare().stack)
    flags = _CLONE_VM | signal.SIGCHLD | namespaces
    child = _libc.clone(ctypes.c_void_p(code), stack, flags, ctypes.c_void_p(argument))
    if child == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return child


@cache
def prepare() -> _Code:
    """Make the code and the stack, once a process: children inherit them. Return their addresses.

    Raises ``OSError``, and ``KeyError`` for a machine without code.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    first, second = (code[platform.machine()] for code in (_SIGNAL_ALL, _WAIT))
    # A file's: memory that was written may not be executed under systemd's MemoryDenyWriteExecute or SELinux.
    file = os.memfd_create("children")
    try:
        os.write(file, first + second)
        code = _map(page, _READ | _EXECUTE, _PRIVATE, file)
    finally:
        os.close(file)
    stack = _map(2 * page, _READ | _WRITE, _PRIVATE | _ANONYMOUS, -1)
    return _Code(code, code + len(first), stack + 2 * page)


def _map(size: int, protection: int, flags: int, file: int) -> int:
    _libc.mmap.restype = ctypes.c_void_p
    start: int = _libc.mmap(None, ctypes.c_size_t(size), protection, flags, file, ctypes.c_long(0))
    if start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"memory for children cannot be mapped: {os.strerror(ctypes.get_errno())}")
    return start
