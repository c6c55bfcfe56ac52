"""Open files of the server: work on them in threads, and the limit on how many it may open.

A thread has a descriptor of its own. A cancelled call ends while its thread still works: were the call's descriptor
closed then, the thread would read and write whatever has its number next.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Generator
from typing import TypeVar

from ors_containers.errors import FileTooLarge, ServerExhausted, file_error

__all__ = ["OwnedDescriptor", "in_thread", "read_content", "server_limits", "write_all", "write_content"]

_PIECE = 1 << 20

T = TypeVar("T")


class OwnedDescriptor:
    """A descriptor that is used and closed by whichever thread takes it first, and by no other."""

    def __init__(self, descriptor: int) -> None:
        self._left = [descriptor]

    def take(self) -> int:
        """Return the descriptor, which the caller then closes. Raises ``IndexError`` where it was taken before."""
        return self._left.pop()  # no other thread's call comes in between

    def close(self) -> None:
        """Close it unless it was taken."""
        with contextlib.suppress(IndexError):
            os.close(self.take())


@contextlib.contextmanager
def server_limits() -> Generator[None]:
    """Raise ``ServerExhausted`` instead of an ``OSError`` with one of its ``NUMBERS``."""
    try:
        yield
    except OSError as error:
        if error.errno in ServerExhausted.NUMBERS:
            raise ServerExhausted from error
        raise


async def in_thread(descriptor: int, work: Callable[[int], T]) -> T:
    """Return what ``work`` makes of a duplicate of ``descriptor``, in a thread that closes the duplicate at its end.

    A cancelled call drops work that no thread has taken; other work is done to its end. Raises what it raises.
    """
    own = OwnedDescriptor(os.dup(descriptor))

    def use() -> T:
        taken = own.take()
        try:
            return work(taken)
        finally:
            os.close(taken)

    try:
        return await asyncio.to_thread(use)
    finally:
        # Also where no thread could be started: a later one finds the work in the queue nevertheless.
        own.close()


async def read_content(path: str, descriptor: int, size: int, limit: int) -> bytes:
    """Read an open file of ``size`` bytes and close it. Raises ``FileError``, above ``limit`` bytes too."""
    try:
        if size > limit:
            raise FileTooLarge(path, errno.EFBIG, f"it has {size} bytes, more than {limit}")
        try:
            with server_limits():
                content = await in_thread(descriptor, lambda own: _read_all(own, limit + 1))
        except OSError as error:
            raise file_error(path, error.errno or errno.EIO) from error
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise FileTooLarge(path, errno.EFBIG, f"it grew beyond {limit} bytes")
    return content


async def write_content(path: str, descriptor: int, content: bytes) -> None:
    """Write an open, empty file and close it. Raises ``FileError``."""
    try:
        with server_limits():
            await in_thread(descriptor, lambda own: write_all(own, content))
    except OSError as error:
        raise file_error(path, error.errno or errno.EIO) from error
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write ``content`` at the descriptor's place in the file. Raises ``OSError``."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_all(descriptor: int, most: int) -> bytes:
    content = bytearray()
    while len(content) < most and (piece := os.read(descriptor, min(_PIECE, most - len(content)))):
        content += piece
    return bytes(content)
