"""Bounds on the memory that the results of all sessions take; undelivered results over the bound go to disk.

Invariants: an undelivered result is lost only with its session; a disk that fails costs memory and no result.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import math
import tempfile
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from functools import partial
from typing import Protocol

from ors_server.hosting.executors import ThreadPool
from ors_server.sessions.calls.call import Call, ResultState, result_size
from ors_server.sessions.calls.result_folder import ResultFile, ResultFolder, StoredResult
from ors_server.sessions.errors import ResultsFull
from ors_server.settings import Settings

__all__ = ["Ledger", "ResultStore"]

logger = logging.getLogger("ors_server.sessions.result_store")

#: Results that are written to disk in one file.
_BATCH = 256
#: Bytes of a large result that are read at a time: what a client that does not read costs in memory.
_PIECE = 128 * 1024
#: The share of ``ORS_RESULT_MEMORY`` up to which results may wait in memory while the disk fails.
_WITHOUT_DISK = 2
#: Bytes written to disk at once above which the freed memory is returned to the kernel.
_RETURNED = 2**20


class Ledger(Protocol):
    """The part of a ``CallLedger`` that the store uses."""

    def undelivered(self, task_id: str) -> Call | None:
        """Return the call of this id if it was not delivered."""
        ...

    def evict(self, now: float) -> bool:
        """Forget delivered results that expire up to ``now``; return whether any are left."""
        ...


class ResultStore:
    """The accounts of results. Used on the event loop only; files are written and read on the pool's threads."""

    def __init__(self, settings: Settings, pool: ThreadPool) -> None:
        self._settings = settings
        self._pool = pool
        # By session and not by call: one entry goes when a session ends, and the garbage collector has less to walk.
        # The session whose last delivery is the longest ago comes first.
        self._delivered: OrderedDict[Ledger, None] = OrderedDict()
        self._delivered_bytes = 0
        self._undelivered: deque[tuple[Ledger, str]] = deque()
        self._undelivered_bytes = 0
        self._folder: ResultFolder | None = None
        self._names = itertools.count()
        self._spilling: asyncio.Task[None] | None = None
        #: Why the last attempt to write to the disk failed; None if it succeeded.
        self._disk_error: str | None = None

    @property
    def bytes_in_memory(self) -> int:
        """Memory that results take, in bytes."""
        return self._delivered_bytes + self._undelivered_bytes

    # --- accounts ----------------------------------------------------------------------------

    def keep_delivered(self, ledger: Ledger, call: Call) -> float:
        """Account for a delivered result, which its ledger keeps; return the time until which it is kept."""
        if call.result_state is ResultState.UNDELIVERED:
            self._undelivered_bytes -= call.size
        call.result_state = ResultState.DELIVERED
        self._delivered_bytes += call.size
        self._delivered[ledger] = None
        self._delivered.move_to_end(ledger)
        return time.monotonic() + self._settings.delivered_ttl

    def forget_delivered(self, result: bytes | StoredResult) -> None:
        """Account for a delivered result that its ledger has evicted."""
        self._delivered_bytes -= result_size(result)
        if not isinstance(result, bytes):
            result.file.release()

    def take_back(self, ledger: Ledger, call: Call) -> None:
        """Account for a delivered result that is fetched again as for one that was not delivered."""
        self._delivered_bytes -= call.size
        if call.stored is not None:
            call.result_state = ResultState.ON_DISK
        else:
            call.result_state = ResultState.NONE
            self.keep_undelivered(ledger, call)

    def bound_delivered(self) -> None:
        """Evict the oldest delivered results while they exceed ``ORS_DELIVERED_MEMORY``."""
        while self._delivered_bytes > self._settings.delivered_memory and self._delivered:
            oldest, _ = self._delivered.popitem(last=False)
            oldest.evict(math.inf)

    def keep_undelivered(self, ledger: Ledger, call: Call) -> None:
        """Account for a result that was not delivered, and write the oldest to disk where memory is exceeded."""
        if call.result_state is not ResultState.NONE:
            return
        call.result_state = ResultState.UNDELIVERED
        call.expires = time.monotonic() + self._settings.result_ttl
        self._undelivered_bytes += call.size
        self._undelivered.append((ledger, call.task_id))
        if self._undelivered_bytes > self._settings.result_memory and self._spilling is None:
            self._spilling = asyncio.create_task(self._spill())

    def check_room(self) -> None:
        """Raise ``ResultsFull`` while the disk fails and results have filled the memory that they may take without it.

        Exceeding that could end the process, and every session with it.
        """
        if self._disk_error is None or self._undelivered_bytes <= _WITHOUT_DISK * self._settings.result_memory:
            return
        raise ResultsFull(self._undelivered_bytes, tempfile.gettempdir(), self._disk_error)

    def drop(self, call: Call) -> None:
        """Take a result out of the accounts, and off the disk."""
        if call.result_state is ResultState.UNDELIVERED:
            self._undelivered_bytes -= call.size
        elif call.result_state is ResultState.ON_DISK and call.stored is not None:
            call.stored.file.release()
        call.result_state = ResultState.NONE

    def forget_ledger(self, ledger: Ledger) -> None:
        """Forget the ledger of a session that has ended."""
        self._delivered.pop(ledger, None)

    async def sweep(self) -> None:
        """Evict delivered results that have expired; write undelivered results to disk that are old or too many."""
        now = time.monotonic()
        for ledger in [ledger for ledger in self._delivered if not ledger.evict(now)]:
            self._delivered.pop(ledger, None)
        if self._spilling is None:
            self._spilling = asyncio.create_task(self._spill())
        await asyncio.shield(self._spilling)

    # --- the disk ----------------------------------------------------------------------------

    async def frames(self, call: Call) -> bytes:
        """Return a finished call's events, read back from disk where necessary. Raises ``OSError``."""
        if call.frames is not None:
            return call.frames
        stored = call.stored
        assert stored is not None
        try:
            frames: bytes = await self._pool.submit(stored.read)
        except FileNotFoundError:
            if call.frames is None:
                raise
            return call.frames  # another request has read it back meanwhile
        if call.result_state is ResultState.ON_DISK:
            self.drop(call)
            call.move_to_memory(frames)
        return frames

    async def pieces(self, call: Call) -> AsyncGenerator[bytes]:
        """Yield a finished call's events piece by piece. Between two pieces the result may go to disk.

        Raises ``OSError``.
        """
        position = 0
        while position < call.length:
            if call.frames is not None:
                piece = call.frames[position : position + _PIECE]
            else:
                assert call.stored is not None
                piece = await self._pool.submit(partial(call.stored.read, position, _PIECE))
            position += len(piece)
            yield piece
            await asyncio.sleep(0)  # a socket may take them all before the event loop would notice that it is lost

    async def _spill(self) -> None:
        try:
            while batch := self._next_batch():
                await self._write(batch)
                self._disk_error = None
        except OSError as error:
            self._disk_error = error.strerror or str(error)
            # Exceeding the memory is better than losing a result; the next sweep tries again.
            logger.warning("undelivered results cannot go to disk", extra={"reason": str(error)})
        finally:
            self._spilling = None

    def _next_batch(self) -> dict[Call, Ledger]:
        """Take the oldest undelivered results, while they have expired or exceed the memory."""
        batch: dict[Call, Ledger] = {}
        now = time.monotonic()
        excess = self._undelivered_bytes - self._settings.result_memory
        while self._undelivered and len(batch) < _BATCH:
            ledger, task_id = self._undelivered[0]
            call = ledger.undelivered(task_id)
            if call is not None and call.result_state is ResultState.UNDELIVERED and call not in batch:
                if excess <= 0 and call.expires > now:
                    break
                batch[call] = ledger
                excess -= call.size
            self._undelivered.popleft()
        return batch

    async def _write(self, batch: dict[Call, Ledger]) -> None:
        try:
            if self._folder is None:
                self._folder = ResultFolder()
                # Runs also without ``close``: in a server without a lifespan, or one that ends by an exception.
                self._remove = weakref.finalize(self, self._folder.remove)
            contents = [call.frames or b"" for call in batch]
            path = self._folder.path / str(next(self._names))
            file: ResultFile = await self._pool.submit(lambda: ResultFile(path, contents))
        except OSError:
            if self._folder is not None and not self._folder.path.exists():
                self.close()  # the folder was removed from outside; the next attempt makes another
            self._undelivered.extendleft((ledger, call.task_id) for call, ledger in reversed(batch.items()))
            raise
        offset = 0
        sizes = [len(content) for content in contents]
        contents.clear()
        for call, size in zip(batch, sizes, strict=True):
            stored = StoredResult(file, offset, size)
            offset += size
            if call.result_state is not ResultState.UNDELIVERED:  # delivered or dropped during the write
                file.release()
                continue
            self._undelivered_bytes -= call.size
            call.result_state = ResultState.ON_DISK
            call.move_to_disk(stored)
        if offset > _RETURNED:
            await self._pool.submit(_return_free_memory)

    def close(self) -> None:
        """Remove all results from the disk."""
        if self._folder is not None:
            self._remove()
            self._folder = None


def _return_free_memory() -> None:
    """Return freed memory to the kernel; the allocator keeps large blocks as long as blocks behind them are in use."""
    with contextlib.suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
