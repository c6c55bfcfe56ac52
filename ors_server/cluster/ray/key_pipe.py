"""The cluster's key on its way to a process that is started: neither its arguments nor its variables show it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

from ors_server.keys.cluster_key import KEY_FILE_VARIABLE

__all__ = ["key_pipe"]


@contextlib.contextmanager
def key_pipe(key: str) -> Generator[tuple[int, dict[str, str]]]:
    """Yield the descriptor of a pipe that has the key, and the variable by which ``take_cluster_key`` reads it."""
    reading, writing = os.pipe()
    try:
        os.write(writing, key.encode())
        os.close(writing)
        yield reading, {KEY_FILE_VARIABLE: f"/dev/fd/{reading}"}
    finally:
        os.close(reading)
