"""The one thread that writes uploads to the file, many of them at a time.

A request hands over its body and waits; the thread takes all waiting uploads, parses them, stores them in one
transaction and answers (group commit). Invariants: an upload is answered only after it is on the disk, so an upload
that was answered survives the process; at most ``limit`` bytes wait, and an upload above that is refused with a
request to retry; no thread, file or folder is created before the first upload. A fault of the file fails the current
uploads only, and the next uploads try the file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ors_server.errors import OrsError
from ors_server.rollouts.errors import InvalidEvents, StoreBusy, StoreUnavailable
from ors_server.rollouts.events import InvalidEvent, read_event, read_upload
from ors_server.rollouts.file import FILE_NAME, Additions, explained, open_to_write

__all__ = ["RolloutWriter"]

logger = logging.getLogger("ors_server.rollouts")

#: Bytes of uploads that may wait: two of the largest allowed from each of two clients.
QUEUE_LIMIT = 64 * 2**20
#: Bytes of uploads that go into one transaction, if so many wait.
GROUP_LIMIT = 4 * 2**20
#: What an upload takes in memory besides its body.
_OVERHEAD = 1024
#: Events after which the thread lets others run, and for how many seconds. Python would make the event loop, and every
#: call with it, wait for 5 ms each time; asked to yield for no time at all, it would give the thread the next turn too.
_TURN = 16
_PAUSE = 20e-6
#: Problems that an answer lists, more or less.
_PROBLEMS = 100
#: Seconds that uploads have to be written when the server stops.
_CLOSING = 10.0


@dataclass(eq=False, slots=True)
class _Upload:
    body: bytes
    #: How many events are stored, once they are.
    answer: Future[int] = field(default_factory=Future[int])
    #: Events that fit, and that do not; what is wrong with those.
    stored: int = 0
    invalid: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def size(self) -> int:
        return len(self.body) + _OVERHEAD


class RolloutWriter:
    """Stores uploads in the file of ``folder``."""

    def __init__(self, folder: Path, *, limit: int = QUEUE_LIMIT) -> None:
        self.folder = folder
        self._limit = limit
        self._uploads: queue.SimpleQueue[_Upload | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Under the lock:
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        # The thread's own:
        self._connection: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._failing = False

    async def store(self, body: bytes) -> int:
        """Store an upload's events; how many they are, once they are on the disk.

        Raises ``InvalidBody``, ``InvalidEvents`` (the others are stored), ``StoreBusy`` and ``StoreUnavailable``.
        """
        upload = _Upload(body)
        # What has begun is stored, whether or not its client still waits.
        upload.answer.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The server is being stopped", "Send this upload to another, or later")
            if self._waiting and self._waiting + upload.size > self._limit:
                raise StoreBusy(self._limit)
            self._waiting += upload.size
            if self._thread is None:
                # A daemon: a disk that hangs must not keep the process from ending.
                self._thread = threading.Thread(target=self._work, name="ors-rollouts", daemon=True)
                self._thread.start()
            self._uploads.put(upload)
        return await asyncio.wrap_future(upload.answer)

    async def close(self) -> None:
        """Store what waits and close the file. Raises nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._uploads.put(None)
        if thread is not None:
            await asyncio.to_thread(thread.join, _CLOSING)

    # --- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        closing = False
        while not closing:
            group, closing = self._next_group()
            try:
                self._store(group)
            except Exception as error:  # a fault of ours, which must not end the thread
                logger.exception("storing uploads failed")
                self._close()
                for upload in group:
                    if not upload.answer.done():
                        upload.answer.set_exception(error)
            with self._lock:
                self._waiting -= sum(upload.size for upload in group)
        self._close()

    def _next_group(self) -> tuple[list[_Upload], bool]:
        """Everything that waits, up to a size, but at least one; and whether that was the last."""
        group: list[_Upload] = []
        size = 0
        while size < GROUP_LIMIT:
            try:
                upload = self._uploads.get(block=not group)
            except queue.Empty:
                break
            if upload is None:
                return group, True
            group.append(upload)
            size += upload.size
        return group, False

    def _store(self, group: list[_Upload]) -> None:
        additions = Additions()
        read: list[_Upload] = []
        for upload in group:
            try:
                _read(upload, additions)
                read.append(upload)
            except OrsError as error:
                upload.answer.set_exception(error)
        try:
            if not additions.empty:
                additions.write(self._open())
        except (sqlite3.Error, OSError, StoreUnavailable) as error:
            self._fail(read, error)
            return
        if self._failing and not additions.empty:
            self._failing = False
            logger.info("rollouts are stored again", extra={"folder": str(self.folder)})
        for upload in read:
            if upload.problems:
                upload.answer.set_exception(InvalidEvents(upload.problems, upload.invalid, upload.stored))
            else:
                upload.answer.set_result(upload.stored)

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            # Moved away or removed while it was open, it would take events that cannot be found again.
            if self._inode == _inode(self.folder / FILE_NAME):
                return self._connection
            self._close()
        self._connection = open_to_write(self.folder)
        self._inode = _inode(self.folder / FILE_NAME)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _fail(self, uploads: list[_Upload], error: sqlite3.Error | OSError | StoreUnavailable) -> None:
        self._close()
        told = error if isinstance(error, StoreUnavailable) else explained(error, "ORS_DATA_DIR")
        if not self._failing:  # once, not for each of a thousand uploads
            self._failing = True
            logger.error("rollouts cannot be stored", extra={"folder": str(self.folder), "reason": told.text})
        for upload in uploads:
            upload.answer.set_exception(told)


def _read(upload: _Upload, additions: Additions) -> None:
    for number, event in enumerate(read_upload(upload.body)):
        try:
            additions.add(read_event(number, event))
            upload.stored += 1
        except InvalidEvent as error:
            upload.invalid += 1
            if len(upload.problems) < _PROBLEMS:
                upload.problems.extend(error.problems)
        if number % _TURN == _TURN - 1:
            time.sleep(_PAUSE)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
