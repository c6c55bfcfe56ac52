"""Agreement of the workers of one server on their lists of tasks, so that index *i* of a split is one task in all.

Each worker calls the author's ``list_tasks`` itself. A list that depends on the order of a set or of a folder, on
chance or on the time differs between workers, and a session would play another task than the one that was listed.

The first worker that lists a split writes the digest of its list to a file, and holds a shared lock on the file as long
as it lives. Every other worker compares its own list before it uses it for the first time: it holds the lock, too, or
refuses the split. So no task of a differing list is ever given out, and the workers that agree go on. When no worker
holds the lock any longer, the digest counts for none, and the next worker writes its own: so a new version of an
environment can replace the old one, worker by worker. The kernel releases the lock (``fcntl``) of a killed worker.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from ors_server.hosting.errors import TaskListsDiffer

__all__ = ["TaskAgreement", "digest_of"]

logger = logging.getLogger("ors_server.hosting.task_agreement")

#: Tasks that are encoded before other requests get a turn.
_PIECE = 2000
#: Tries to get a lock that another worker holds while it writes, and seconds between them.
_TRIES = 50
_PAUSE = 0.001


class TaskAgreement:
    """The lists of one environment in one worker. ``folder`` is one for all workers of the server."""

    def __init__(self, folder: Path, environment: str) -> None:
        self._folder = folder
        self._environment = environment
        #: Digests by split, of the lists that were compared. The worker's state has them.
        self.digests: dict[str, str] = {}
        #: Open files by split, with the lock that says that this worker agrees.
        self._held: dict[str, int] = {}

    async def add(self, split: str, tasks: Sequence[Any]) -> None:
        """Take a list that was just made; a list with values that JSON has not is not compared."""
        digest = await digest_of(tasks)
        if digest is not None:
            self.digests[split] = digest

    def check(self, split: str) -> None:
        """Raise ``TaskListsDiffer`` while a living worker has another list of a split."""
        digest = self.digests.get(split)
        if digest is None or split in self._held:
            return
        name = hashlib.sha256(f"{self._environment}\0{split}".encode()).hexdigest()
        try:
            descriptor = os.open(self._folder / f"{name[:32]}.tasks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:  # the supervisor has ended, and its folder with it
            logger.warning("lists of tasks cannot be compared", extra={"split": split, "reason": str(error)})
            return
        if not _agrees(descriptor, digest.encode()):
            os.close(descriptor)
            raise TaskListsDiffer(self._environment, split)
        self._held[split] = descriptor


def _agrees(descriptor: int, digest: bytes) -> bool:
    """Return whether a file has this digest, which is written first where no worker agrees with the file's."""
    for _ in range(_TRIES):
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        else:
            os.pwrite(descriptor, digest, 0)  # digests have one length
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_PAUSE)
            continue
        return os.pread(descriptor, len(digest) + 1, 0) == digest
    return False


async def digest_of(tasks: Sequence[Any]) -> str | None:
    """Return the digest of whole tasks; None where JSON cannot hold them."""
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(tasks), _PIECE):
        try:
            digest.update(to_json(list(tasks[start : start + _PIECE])) + b"\n")
        except (ValueError, TypeError, RecursionError):  # PydanticSerializationError is a ValueError
            return None
        await asyncio.sleep(0)
    return digest.hexdigest()
