"""Changes to a copy of a program or shared library (ELF, 64 bits, little-endian), none of which moves a byte.

Invariant: a change keeps the length of what it replaces; a text that does not fit or is not found is a ``ValueError``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

__all__ = ["forget_search_paths", "has_search_path", "interpreter", "is_elf", "replace_interpreter", "replace_text"]

_DYNAMIC, _INTERPRETER = 2, 3
_DT_RPATH, _DT_RUNPATH = 15, 29
#: A kind of entry that loaders do not know and so ignore.
_DT_UNKNOWN = 0x6000_0F0F


def is_elf(content: bytes | bytearray) -> bool:
    """Return whether ``content`` is a file that this module can change."""
    return content[:6] == b"\x7fELF\x02\x01"


def interpreter(content: bytes | bytearray) -> str:
    """Return the path of a program's loader; empty for a static program and for a library."""
    for offset, size in _segments(content, _INTERPRETER):
        return content[offset : offset + size].rstrip(b"\0").decode()
    return ""


def replace_interpreter(content: bytearray, path: str) -> None:
    """Ask for the loader at ``path``, which must not be longer than the one before."""
    for offset, size in _segments(content, _INTERPRETER):
        if len(path) + 1 > size:
            raise ValueError(f"{path} is longer than the loader's path it replaces")
        content[offset : offset + size] = path.encode().ljust(size, b"\0")


def forget_search_paths(content: bytearray) -> None:
    """Drop the directories (RPATH, RUNPATH) in which the loader would look before it looks where it always does."""
    for offset, size in _segments(content, _DYNAMIC):
        for place in range(offset, offset + size, 16):
            if struct.unpack_from("<Q", content, place)[0] in (_DT_RPATH, _DT_RUNPATH):
                struct.pack_into("<Q", content, place, _DT_UNKNOWN)


def has_search_path(content: bytes | bytearray) -> bool:
    """Return whether a program names directories (RPATH, RUNPATH) in which the loader looks for libraries."""
    return any(
        struct.unpack_from("<Q", content, place)[0] in (_DT_RPATH, _DT_RUNPATH)
        for offset, size in _segments(content, _DYNAMIC)
        for place in range(offset, offset + size, 16)
    )


def replace_text(content: bytearray, old: str, new: str) -> None:
    """Put the constant ``new``, which must not be longer, in the place of every one that matches ``old``, a pattern."""
    found = [match.span(1) for match in re.finditer(rb"(?<=\0)(%b)(?=\0)" % old.encode(), content)]
    if not found:
        raise ValueError(f"the text {old} is not in it")
    for start, end in found:
        if len(new) > end - start:
            raise ValueError(f"{new} is longer than {bytes(content[start:end]).decode()}")
        content[start:end] = new.encode().ljust(end - start, b"\0")


def _segments(content: bytes | bytearray, kind: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each part of a kind."""
    (start,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    for number in range(count):
        at = start + number * size
        found, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", content, at)
        if found == kind:
            yield offset, length
