"""Receive descriptors over a socket, close-on-exec.

Python's own ``socket.recv_fds`` drops its ``flags`` (CPython before 3.14), so what it receives is inherited: a shell's
programs would have the shell's control socket. Invariant: a descriptor is never inheritable, from its first moment on.
"""

from __future__ import annotations

import array
import socket

__all__ = ["receive"]


def receive(connection: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive a message of at most ``size`` bytes with at most ``most`` descriptors. Raises like ``recvmsg``."""
    descriptors = array.array("i")
    space = socket.CMSG_LEN(most * descriptors.itemsize)
    data, ancillary, _, _ = connection.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)
