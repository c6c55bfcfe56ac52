"""The files of an examination on their way to the launcher: one file in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

__all__ = ["pack", "unpack"]


def pack(descriptor: int, files: Mapping[str, bytes]) -> None:
    """Write ``files`` into an empty file, as ``unpack`` reads them."""
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(json.dumps([[name, len(content)] for name, content in files.items()]).encode() + b"\n")
        for content in files.values():
            file.write(content)


def unpack(descriptor: int) -> dict[str, bytes]:
    """Return files as ``pack`` writes them: a line of names and sizes, then the contents."""
    content = b""
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        content = file.read()
    head, _, rest = content.partition(b"\n")
    files: dict[str, bytes] = {}
    start = 0
    for name, size in json.loads(head):
        files[name] = rest[start : start + size]
        start += size
    return files
