"""The one thread that writes to the rollouts' database: uploads, and the sessions that the server records.

A request hands over its body and waits; the thread takes all that waits, parses it, stores it in one transaction and
answers (group commit). Invariants: an upload is answered only after it is on the disk, so an upload that was answered
survives the process; at most ``limit`` bytes wait, and an upload above that is refused with a request to retry; no
thread, file or folder is created before there is something to store. A fault of the database fails the current uploads
only, and the next uploads try again; records of sessions wait until it is over. While a PostgreSQL cannot be reached,
everything waits on the disk instead (``waiting``), so uploads are answered and nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ors_server.errors import OrsError
from ors_server.rollouts.errors import InvalidEvents, StoreBusy, StoreUnavailable
from ors_server.rollouts.location import Location
from ors_server.rollouts.recording.recorder_locks import dead_recorders, forget_recorders, hold
from ors_server.rollouts.storing.spool import Spool
from ors_server.rollouts.uploads import InvalidEvent, read_event, read_upload

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ors_server.rollouts.recording.batches import Batches
    from ors_server.rollouts.storing.additions import Additions

__all__ = ["RolloutWriter"]

logger = logging.getLogger("ors_server.rollouts")

#: Bytes of uploads that may wait: two of the largest allowed from each of two clients.
QUEUE_LIMIT = 64 * 2**20
#: Bytes that go into one transaction, if so many wait.
GROUP_LIMIT = 4 * 2**20
#: What an upload takes in memory besides its body.
_OVERHEAD = 1024
#: Events after which the thread lets others run, and for how many seconds. Python would make the event loop, and every
#: call with it, wait for 5 ms each time; asked to yield for no time at all, it would give the thread the next turn too.
_TURN = 16
_PAUSE = 20e-6
#: Problems that an answer lists, more or less.
_PROBLEMS = 100
#: Seconds that what waits has to be written when the server stops.
_CLOSING = 10.0
#: Seconds after which the thread tries again to store what waits.
RETRY = 1.0


@dataclass(eq=False, slots=True)
class _Upload:
    body: bytes
    owner: str | None
    #: How many events are stored, once they are.
    answer: Future[int] = field(default_factory=Future[int])
    #: Events that fit, and that do not; what is wrong with those.
    stored: int = 0
    invalid: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def size(self) -> int:
        return len(self.body) + _OVERHEAD

    def succeed(self) -> None:
        if self.problems:
            self.answer.set_exception(InvalidEvents(self.problems, self.invalid, self.stored))
        else:
            self.answer.set_result(self.stored)


class SignOfLife(NamedTuple):
    """A recorder lives."""

    recorder: str


class RolloutWriter:
    """Stores uploads and records in a database."""

    def __init__(self, location: Location, *, limit: int = QUEUE_LIMIT) -> None:
        self.location = location
        self._limit = limit
        self._jobs: queue.SimpleQueue[_Upload | Batches | SignOfLife | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Under the lock:
        self._waiting = 0
        self._records_waiting = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        # The thread's own:
        self._connection: Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._failing = False
        self._unwritten: list[Batches] = []
        self._sign: SignOfLife | None = None
        #: The recorder that lives, and the descriptor of its lock.
        self._living: tuple[str, int | None] | None = None
        self._disk = None if location.url is None else Spool(location.folder)

    @property
    def waiting(self) -> int:
        """Bytes of uploads and records that wait in memory."""
        return self._waiting + self._records_waiting

    @property
    def records_waiting(self) -> int:
        """Bytes of records that wait in memory."""
        return self._records_waiting

    @property
    def failing(self) -> bool:
        """True while the database cannot be used."""
        return self._failing

    async def store(self, body: bytes, owner: str | None = None) -> int:
        """Store an upload's events, sent with the key ``owner``; return how many they are, once they are on the disk.

        Raises ``InvalidBody``, ``InvalidEvents`` (the others are stored), ``StoreBusy`` and ``StoreUnavailable``.
        """
        upload = _Upload(body, owner)
        # What has begun is stored, whether or not its client still waits.
        upload.answer.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise StoreUnavailable("The server is being stopped", "Send this upload to another, or later")
            if self._waiting and self._waiting + upload.size > self._limit:
                raise StoreBusy(self._limit)
            self._waiting += upload.size
            self._start()
            self._jobs.put(upload)
        # Before its client is answered, who may send the next one at once.
        upload.answer.add_done_callback(lambda _: self._leave(upload.size))
        return await asyncio.wrap_future(upload.answer)

    def _leave(self, size: int) -> None:
        with self._lock:
            self._waiting -= size

    def record(self, records: Batches) -> None:
        """Store what sessions did, some time later. Its caller bounds ``records_waiting``."""
        with self._lock:
            self._records_waiting += records.size
            self._start()
            self._jobs.put(records)

    def keep_alive(self, recorder: str) -> None:
        """Store that a recorder lives, and mark the sessions of those that have died as lost."""
        with self._lock:
            self._start()
            self._jobs.put(SignOfLife(recorder))

    def resume(self) -> None:
        """Store what an earlier process left on the disk."""
        if self._disk is not None and self._disk.exists:
            with self._lock:
                self._start()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            # A daemon: a disk that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._work, name="ors-rollouts", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Store what waits and close the database. Raises nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
            self._jobs.put(None)
        if thread is not None:
            await asyncio.to_thread(thread.join, _CLOSING)

    # --- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        closing = False
        while not closing:
            uploads, records, closing = self._next_group()
            self._unwritten += records
            try:
                self._store(uploads)
            except Exception as error:  # a fault of ours, which must not end the thread
                logger.exception("storing rollouts failed")
                self._close()
                for upload in uploads:
                    if not upload.answer.done():
                        upload.answer.set_exception(error)
                self._forget_records()
        if self._unwritten:
            logger.error("records of sessions are lost: the database could not be used until the end")
        self._close()
        if self._disk is not None:
            self._disk.close()
        if self._living is not None:
            self._end_life(*self._living)

    def _end_life(self, recorder: str, descriptor: int | None) -> None:
        if not self._unwritten:  # else its sessions have no outcome, and the next process marks them
            forget_recorders(self.location.folder, [recorder])
        if descriptor is not None:
            os.close(descriptor)

    def _next_group(self) -> tuple[list[_Upload], list[Batches], bool]:
        """Everything that waits, up to a size; and whether that was the last.

        It is at least one thing, unless earlier ones are to be tried again.
        """
        uploads: list[_Upload] = []
        records: list[Batches] = []
        size = 0
        patience = RETRY if self._unwritten or (self._disk is not None and not self._disk.empty) else None
        while size < GROUP_LIMIT:
            try:
                job = self._jobs.get(timeout=patience) if not size else self._jobs.get(block=False)
            except queue.Empty:
                break
            if job is None:
                return uploads, records, True
            if isinstance(job, SignOfLife):
                self._sign = job
                size += 1
                continue
            if isinstance(job, _Upload):
                uploads.append(job)
            else:
                records.append(job)
            size += job.size
        return uploads, records, False

    def _store(self, uploads: list[_Upload]) -> None:
        # Imported by the thread that needs it: a server that stores nothing does not wait for SQLAlchemy.
        from ors_server.rollouts.storing.additions import Additions
        from ors_server.rollouts.storing.database import FAULTS, is_away

        additions = Additions()
        read: list[_Upload] = []
        for upload in uploads:
            try:
                _read(upload, additions)
                read.append(upload)
            except OrsError as error:
                upload.answer.set_exception(error)
        try:
            if self._disk is not None and not self._disk.empty and not self._drain(self._disk):
                self._keep_on_disk(self._disk, read)
            elif not additions.empty or self._unwritten or self._sign is not None:
                connection = self._open()
                if not additions.empty:
                    additions.write(connection)
                self._write_records(connection)
                self._write_sign(connection)
                self._succeeded()
        except (*FAULTS, StoreUnavailable) as error:
            self._fail(error)
            if self._disk is None or not is_away(error):
                self._refuse(read, error)
                return
            try:
                self._keep_on_disk(self._disk, read)
            except (sqlite3.Error, OSError) as full:
                self._refuse(read, full)
                return
        for upload in read:
            upload.succeed()

    def _write_records(self, connection: Connection) -> None:
        from ors_server.rollouts.storing.record_rows import write_rows

        while self._unwritten:
            write_rows(connection, self._unwritten[0].recorder, self._unwritten[0].rows())
            self._written(self._unwritten.pop(0))

    def _write_sign(self, connection: Connection) -> None:
        from ors_server.rollouts.storing.record_rows import mark_lost

        if self._sign is not None:
            recorder, folder = self._sign.recorder, self.location.folder
            if self._living is None:  # before the database knows its name
                self._living = recorder, hold(folder, recorder)
            dead = dead_recorders(folder)
            lost = mark_lost(connection, recorder, dead)
            forget_recorders(folder, dead)
            self._sign = None
            if lost:
                logger.warning("sessions of a process that died are marked as lost", extra={"sessions": lost})

    def _written(self, records: Batches) -> None:
        with self._lock:
            self._records_waiting -= records.size

    def _forget_records(self) -> None:
        while self._unwritten:
            self._written(self._unwritten.pop())

    def _keep_on_disk(self, disk: Spool, uploads: list[_Upload]) -> None:
        """Keep uploads and records on the disk until the database can be reached."""
        disk.add([(upload.owner, upload.body) for upload in uploads if upload.stored], self._unwritten)
        self._forget_records()

    def _drain(self, disk: Spool) -> bool:
        """Store what waits on the disk; return whether all of it is stored."""
        from ors_server.rollouts.storing.additions import Additions
        from ors_server.rollouts.storing.database import FAULTS, is_away
        from ors_server.rollouts.storing.record_rows import write_rows

        try:
            connection = self._open()
            with disk.draining() as drains:
                if not drains:
                    return False  # another process stores it just now
                while portion := disk.oldest(GROUP_LIMIT):
                    additions = Additions()
                    for _, owner, body in portion.uploads:
                        _read(_Upload(body, owner), additions)
                    if not additions.empty:
                        additions.write(connection)
                    for records in portion.records:
                        write_rows(connection, records.recorder, records.rows())
                    disk.remove(portion.last)
        except FAULTS as error:
            if not is_away(error):
                raise
            self._fail(error)
            return False
        self._succeeded()
        return True

    def _open(self) -> Connection:
        from ors_server.rollouts.storing.database import open_to_write

        if self._connection is not None:
            # Moved away or removed while it was open, it would take events that cannot be found again.
            if self.location.url is not None or self._inode == _inode(self.location.file):
                return self._connection
            self._close()
        self._connection = open_to_write(self.location)
        self._inode = _inode(self.location.file)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # whatever the driver raises: it is not used again
                self._connection.close()
            self._connection = None

    def _succeeded(self) -> None:
        if self._failing:
            self._failing = False
            logger.info("rollouts are stored again", extra={"place": self.location.shown})

    def _fail(self, error: BaseException) -> None:
        from ors_server.rollouts.storing.database import explained

        self._close()
        if not self._failing:  # once, not for each of a thousand uploads
            self._failing = True
            told = explained(error, self.location, self.location.setting)
            logger.error("rollouts cannot be stored", extra={"place": self.location.shown, "reason": told.text})

    def _refuse(self, uploads: list[_Upload], error: BaseException) -> None:
        from ors_server.rollouts.storing.database import explained

        told = explained(error, self.location, self.location.setting)
        for upload in uploads:
            upload.answer.set_exception(told)


def _read(upload: _Upload, additions: Additions) -> None:
    for number, event in enumerate(read_upload(upload.body)):
        try:
            additions.add(read_event(number, event), upload.owner)
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
