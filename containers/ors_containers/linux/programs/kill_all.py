"""The child that signals every process of a pid namespace: machine code on the memory of the process that starts it.

``kill(-1)`` reaches the processes of the caller's own namespace, and a process that has joined one is itself not in it:
its children are. A child by ``fork`` has a copy of Python's memory, which the kernel makes, write-protects on both
sides, and frees again: more than a millisecond for one system call. This child has a stack of its own and nothing else.

Invariant: it makes one system call and ends. Processes of the namespace can stop or kill it before, and learn nothing
from it, for it cannot be inspected if the process that starts it cannot (``syscalls.refuse_inspection``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from functools import cache

__all__ = ["prepare", "signal_all_by_child"]

#: int signal_all(void *number) { kill(-1, number); return 0; }
_CODE = {
    # mov esi, edi; mov edi, -1; mov eax, 62; syscall; xor eax, eax; ret
    "x86_64": bytes.fromhex("89fe bfffffffff b83e000000 0f05 31c0 c3"),
    # mov x1, x0; mov x0, -1; mov x8, 129; svc #0; mov x0, 0; ret
    "aarch64": struct.pack("<6I", 0xAA0003E1, 0x92800000, 0xD2801028, 0xD4000001, 0xD2800000, 0xD65F03C0),
}
_CLONE_VM = 0x100
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE, _ANONYMOUS = 0x02, 0x20

_libc = ctypes.CDLL(None, use_errno=True)


def signal_all_by_child(number: int) -> int:
    """Start the child and return its process id; its exit status is 0. Raises ``OSError``.

    The caller waits for the child before it starts another one: they have the same stack.
    """
    code, stack = prepare()
    child = _libc.clone(code, stack, _CLONE_VM | signal.SIGCHLD, ctypes.c_void_p(number))
    if child == -1:
        raise OSError(ctypes.get_errno(), "clone")
    return child


@cache
def prepare() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """Make the code and the stack, once a process: children inherit them. Return the addresses of code and stack.

    Raises ``OSError``, and ``KeyError`` for a machine without code.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    # A file's: memory that was written may not be executed under systemd's MemoryDenyWriteExecute or SELinux.
    file = os.memfd_create("kill-all")
    try:
        os.write(file, _CODE[platform.machine()])
        code = _map(page, _READ | _EXECUTE, _PRIVATE, file)
    finally:
        os.close(file)
    stack = _map(2 * page, _READ | _WRITE, _PRIVATE | _ANONYMOUS, -1)
    return ctypes.c_void_p(code), ctypes.c_void_p(stack + 2 * page)


def _map(size: int, protection: int, flags: int, file: int) -> int:
    _libc.mmap.restype = ctypes.c_void_p
    start: int = _libc.mmap(None, ctypes.c_size_t(size), protection, flags, file, ctypes.c_long(0))
    if start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"memory for signals cannot be mapped: {os.strerror(ctypes.get_errno())}")
    return start
