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
_PRIVATE_ANONYMOUS = 0x22

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
    _libc.mmap.restype = ctypes.c_void_p
    size, nowhere = ctypes.c_size_t(3 * page), ctypes.c_long(0)
    start = _libc.mmap(None, size, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, nowhere)
    content = _CODE[platform.machine()]
    ctypes.memmove(start, content, len(content))
    if _libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), _READ | _EXECUTE) == -1:
        raise OSError(ctypes.get_errno(), f"memory cannot be executed: {os.strerror(ctypes.get_errno())}")
    return ctypes.c_void_p(start), ctypes.c_void_p(start + 3 * page)
