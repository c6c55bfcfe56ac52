"""Read and write the content of a file that was opened inside a sandbox."""

from __future__ import annotations

import asyncio
import errno
import os

from ors_containers.errors import FileTooLarge, file_error

__all__ = ["read_content", "write_content"]

_PIECE = 1 << 20


async def read_content(path: str, descriptor: int, size: int, limit: int) -> bytes:
    """Read an open file of ``size`` bytes and close it. Raises ``FileTooLarge`` above ``limit`` bytes."""
    try:
        if size > limit:
            raise FileTooLarge(path, errno.EFBIG, f"it has {size} bytes, more than {limit}")
        content = await asyncio.to_thread(_read_all, descriptor, limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise FileTooLarge(path, errno.EFBIG, f"it grew beyond {limit} bytes")
    return content


async def write_content(path: str, descriptor: int, content: bytes) -> None:
    """Write an open, empty file and close it. Raises ``FileError``."""
    try:
        await asyncio.to_thread(_write_all, descriptor, content)
    except OSError as error:
        raise file_error(path, error.errno or errno.EIO) from error
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, most: int) -> bytes:
    content = bytearray()
    while len(content) < most and (piece := os.read(descriptor, min(_PIECE, most - len(content)))):
        content += piece
    return bytes(content)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
