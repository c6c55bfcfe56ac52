"""The ledger of tool calls: a ``task_id`` and a key run at most once; results can be fetched again, byte for byte.

A call has an id bound to its session. A request either starts a call or attaches to one: by ``task_id``; by
``Idempotency-Key``; or, without either, by being the same tool and input as a call whose connection the server saw
break before it had written the last byte of the result. Nothing else attaches, and a ``task_id`` never starts anything
(protocol 0.1). So a call without a key whose answer a proxy took and lost runs again when it is sent again.

Results are kept encoded. A delivered one stays a while, for a client that lost it after all; an undelivered one stays
as long as its session, in memory first and then on disk. ``ResultStore`` bounds the memory of both, over all sessions.

Of a delivered call only its result is kept, as a tuple of a number and bytes. The garbage collector does not walk such
tuples, but would walk the ``Call`` objects of the last minute, a hundred thousand of them, and stop the server for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from ors_server.errors import IdempotencyConflict
from ors_server.hosting.executors import ThreadPool
from ors_server.http.exchange import Exchange
from ors_server.sessions.result_folder import ResultFolder
from ors_server.settings import Settings

logger = logging.getLogger("ors_server.sessions.call_ledger")

__all__ = ["Call", "CallLedger", "ResultExpired", "ResultStore"]

#: What a finished call costs beside its result, in bytes, for the memory bounds.
_OVERHEAD = 512
#: Results that go to disk at one go.
_BATCH = 256


class ResultExpired(Exception):
    """The call ran, its result was delivered, and it has since been forgotten."""


class Kept(Enum):
    """Where a call's result is, for the accounts of the ``ResultStore``."""

    NOWHERE = "nowhere"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"
    ON_DISK = "on disk"


class _ResultFile:
    """A batch of results on disk; the file goes with the last of them."""

    __slots__ = ("_left", "path")

    def __init__(self, path: Path, contents: Sequence[bytes]) -> None:
        """Write them, at one go: a file for each would be a wait for the interpreter for each. Raises ``OSError``."""
        self.path = path
        self._left = len(contents)
        rest = [memoryview(content) for content in contents]
        try:
            with path.open("xb", buffering=0) as file:
                while rest:
                    written = os.writev(file.fileno(), rest)
                    while rest and written >= len(rest[0]):
                        written -= len(rest.pop(0))
                    if rest:
                        rest[0] = rest[0][written:]
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def release(self) -> None:
        """One of the results is needed no longer."""
        self._left -= 1
        if not self._left:
            with contextlib.suppress(OSError):
                self.path.unlink()


class _Place(NamedTuple):
    """Where a result is on disk."""

    file: _ResultFile
    offset: int
    size: int

    def read(self) -> bytes:
        """The result. Raises ``OSError``."""
        with self.file.path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), self.size, self.offset)
        if len(content) != self.size:
            raise OSError(f"{self.file.path} has become shorter")
        return content


class Call:
    """One tool call or group scoring."""

    __slots__ = (
        "_waiters",
        "expires",
        "fingerprint",
        "frames",
        "input",
        "kept",
        "key",
        "name",
        "place",
        "started",
        "task",
        "task_id",
    )

    def __init__(self, name: str, input: Any, key: str | None) -> None:
        self.task_id = os.urandom(16).hex()
        self.name = name
        #: Kept until the call is delivered, or found by its fingerprint instead.
        self.input = input
        self.key = key
        self.fingerprint: int | None = None
        #: The encoded events after ``task_id``; None while the call runs, and when they are on disk.
        self.frames: bytes | None = None
        self.place: _Place | None = None
        self.kept = Kept.NOWHERE
        #: When a result that is not delivered may go to disk.
        self.expires = 0.0
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result."""
        return self.frames is not None or self.place is not None

    @property
    def watched(self) -> bool:
        """Whether a request waits for the result."""
        return self._waiters is not None and any(not waiter.done() for waiter in self._waiters)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until there is a result, at most ``seconds``; look at ``done`` afterwards."""
        if self.done:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        if seconds is None:
            await waiter
            return
        timer = loop.call_later(seconds, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def finish(self, frames: bytes) -> None:
        """Set the result; the first one stands."""
        if self.done:
            return
        self.frames = frames
        self.task = None
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            _wake(waiter)

    @classmethod
    def delivered(cls, task_id: str, frames: bytes) -> Call:
        """A call whose result was delivered and is asked for again."""
        call = cls("", None, None)
        call.task_id, call.frames, call.kept = task_id, frames, Kept.DELIVERED
        return call

    @property
    def size(self) -> int:
        """Bytes this call's result holds in memory."""
        return _size(self.frames or b"")


def _size(frames: bytes) -> int:
    return _OVERHEAD + len(frames)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _fingerprint(name: str, input: Any) -> int:
    return hash((name, json.dumps(input, sort_keys=True, default=repr)))


class CallLedger:
    """The calls of one session."""

    __slots__ = ("_by_key", "_calls", "_closed", "_delivered", "_lost", "_open", "_results", "_running")

    def __init__(self, results: ResultStore) -> None:
        self._results = results
        self._closed = False
        #: The calls that were not delivered yet.
        self._calls: dict[str, Call] = {}
        #: Results that were, with the time at which they may go; the first delivered first.
        self._delivered: dict[str, tuple[float, bytes]] | None = None
        self._running: set[Call] | None = None
        #: Fingerprint and id of the call that each key was used for.
        self._by_key: dict[str, tuple[int, str]] | None = None
        #: The requests that calls are being answered to.
        self._open: dict[Call, list[Exchange]] | None = None
        #: Calls whose connection was lost and that nobody attends to, by tool and input; the oldest first.
        self._lost: dict[int, list[Call]] | None = None

    def find(self, task_id: str) -> Call | None:
        """The call of this id, if it is of this session and still known. Whoever asks attends to it from now on."""
        call = self._calls.get(task_id)
        if call is not None:
            self._attended(call)
            return call
        kept = None if self._delivered is None else self._delivered.get(task_id)
        return None if kept is None else Call.delivered(task_id, kept[1])

    def undelivered(self, task_id: str) -> Call | None:
        """The call of this id if it was not delivered, without attending to it."""
        return self._calls.get(task_id)

    def start(
        self, name: str, input: Mapping[str, Any], key: str | None, admit: Callable[[], None]
    ) -> tuple[Call, bool]:
        """The call this request means, and whether it is new and has to be run; ``admit`` is asked before a new one.

        Raises ``IdempotencyConflict`` for a key used for another call, ``ResultExpired`` for one whose result is gone,
        and what ``admit`` raises.
        """
        fingerprint: int | None = None
        if key is not None:
            fingerprint = _fingerprint(name, input)
            known = None if self._by_key is None else self._by_key.get(key)
            if known is not None:
                if known[0] != fingerprint:
                    raise IdempotencyConflict(key)
                earlier = self.find(known[1])
                if earlier is None:
                    raise ResultExpired()
                return earlier, False
        else:
            call = self._unattended(name, input)
            if call is not None:
                return call, False
        admit()
        call = Call(name, input, key)
        self._calls[call.task_id] = call
        if self._running is None:
            self._running = {call}
        else:
            self._running.add(call)
        if key is not None and fingerprint is not None:
            if self._by_key is None:
                self._by_key = {}
            self._by_key[key] = (fingerprint, call.task_id)
        return call, True

    def attend(self, call: Call, exchange: Exchange) -> None:
        """A request begins to be answered with a call."""
        if self._open is None:
            self._open = {}
        self._open.setdefault(call, []).append(exchange)

    def leave(self, call: Call, exchange: Exchange, *, delivered: bool) -> None:
        """A request's answer has ended: its last byte was written, or the connection was lost before."""
        if self._open is not None:
            exchanges = self._open[call]
            exchanges.remove(exchange)
            if not exchanges:
                del self._open[call]
                self._open = self._open or None
        if self._closed:
            return  # nothing is kept any more
        if delivered:
            self._deliver(call)
        else:
            self._lose(call)

    @property
    def running_count(self) -> int:
        """How many calls have no result."""
        return 0 if self._running is None else len(self._running)

    def running(self) -> list[Call]:
        """The calls without a result."""
        return list(self._running or ())

    def finish(self, call: Call, frames: bytes) -> None:
        """Record a call's result and wake who waits for it."""
        watched = call.watched
        call.finish(frames)
        if self._running is not None:
            self._running.discard(call)
            self._running = self._running or None
        if not watched and not self._closed and call.task_id in self._calls:
            self._results.keep_undelivered(self, call)

    def _deliver(self, call: Call) -> None:
        self._attended(call)
        if call.kept is Kept.DELIVERED or call.frames is None:
            return
        call.input = None
        expires = self._results.keep_delivered(self, call)
        self._calls.pop(call.task_id, None)
        if self._delivered is None:
            self._delivered = {}
        self._delivered[call.task_id] = (expires, call.frames)
        self._results.bound_delivered()

    def _lose(self, call: Call) -> None:
        if call.kept is Kept.DELIVERED or (self._open is not None and _connected(self._open.get(call, ()))):
            return  # another connection has it, or waits for it
        if call.key is None:  # else its key finds it
            if call.fingerprint is None:
                call.fingerprint = _fingerprint(call.name, call.input)
            if self._lost is None:
                self._lost = {}
            waiting = self._lost.setdefault(call.fingerprint, [])
            if call not in waiting:
                waiting.append(call)
            if call.done:
                call.input = None
        if call.done and call.kept is Kept.NOWHERE:
            self._results.keep_undelivered(self, call)

    def evict(self, now: float) -> bool:
        """Forget delivered results that expire up to ``now``; whether any delivered ones are left."""
        delivered = self._delivered or {}
        expired: list[str] = []
        for task_id, (expires, _) in delivered.items():
            if expires > now:
                break
            expired.append(task_id)
        for task_id in expired:
            self._results.forget_delivered(delivered.pop(task_id)[1])
        self._delivered = delivered or None
        return bool(delivered)

    def _unattended(self, name: str, input: Mapping[str, Any]) -> Call | None:
        """An earlier call of this tool and input whose connection was lost, the oldest first."""
        if self._open is not None:
            # The connection may be gone and its request not yet have noticed.
            for call, exchanges in self._open.items():
                if call.key is None and _same(call, name, input) and not _connected(exchanges):
                    self._attended(call)
                    return call
        if self._lost:
            waiting = self._lost.get(_fingerprint(name, input))
            if waiting:
                call = waiting[0]
                self._attended(call)
                return call
        return None

    def _attended(self, call: Call) -> None:
        """Somebody waits for the call or has got it: no other request may be taken for its repetition."""
        if self._lost and call.fingerprint is not None:
            waiting = self._lost.get(call.fingerprint)
            if waiting and call in waiting:
                waiting.remove(call)
                if not waiting:
                    del self._lost[call.fingerprint]

    def close(self) -> None:
        """The session has ended: drop every result."""
        self._closed = True
        self._results.leave(self)
        for call in self._calls.values():
            self._results.drop(call)
        self._calls.clear()
        self.evict(math.inf)
        self._running = None
        self._by_key = self._lost = None


def _same(call: Call, name: str, input: Mapping[str, Any]) -> bool:
    if call.name != name:
        return False
    if call.fingerprint is None:
        call.fingerprint = _fingerprint(name, call.input)
    # By what JSON tells apart: to Python, 1 and true are equal.
    return call.fingerprint == _fingerprint(name, input)


def _connected(exchanges: Iterable[Exchange]) -> bool:
    return any(not exchange.disconnected for exchange in exchanges)


class ResultStore:
    """Bounds the memory that results of all sessions take; moves undelivered ones to disk."""

    def __init__(self, settings: Settings, pool: ThreadPool) -> None:
        self._settings = settings
        self._pool = pool
        # By session and not by call: what an ended session kept goes with it, and the collector has less to walk.
        # The session whose last delivery is the longest ago comes first.
        self._delivered: OrderedDict[CallLedger, None] = OrderedDict()
        self._delivered_bytes = 0
        self._undelivered: deque[tuple[CallLedger, str]] = deque()
        self._undelivered_bytes = 0
        self._folder: ResultFolder | None = None
        self._names = itertools.count()
        self._spilling: asyncio.Task[None] | None = None

    @property
    def bytes_in_memory(self) -> int:
        """Memory that results take, in bytes."""
        return self._delivered_bytes + self._undelivered_bytes

    def keep_delivered(self, ledger: CallLedger, call: Call) -> float:
        """Account for a result that was delivered, which its ledger keeps; until when it shall."""
        self.drop(call)
        call.kept = Kept.DELIVERED
        self._delivered_bytes += call.size
        self._delivered[ledger] = None
        self._delivered.move_to_end(ledger)
        return time.monotonic() + self._settings.delivered_ttl

    def forget_delivered(self, frames: bytes) -> None:
        """A ledger keeps this delivered result no longer."""
        self._delivered_bytes -= _size(frames)

    def bound_delivered(self) -> None:
        """Drop the oldest delivered results that are over the memory bound."""
        while self._delivered_bytes > self._settings.delivered_memory and self._delivered:
            oldest, _ = self._delivered.popitem(last=False)
            oldest.evict(math.inf)

    def keep_undelivered(self, ledger: CallLedger, call: Call) -> None:
        """Keep a result nobody has got yet."""
        if call.kept is not Kept.NOWHERE:
            return
        call.kept = Kept.UNDELIVERED
        call.expires = time.monotonic() + self._settings.result_ttl
        self._undelivered_bytes += call.size
        self._undelivered.append((ledger, call.task_id))
        if self._undelivered_bytes > self._settings.result_memory and self._spilling is None:
            self._spilling = asyncio.create_task(self._spill())

    def leave(self, ledger: CallLedger) -> None:
        """A session has ended."""
        self._delivered.pop(ledger, None)

    def drop(self, call: Call) -> None:
        """Take a result out of the accounts, and off the disk."""
        if call.kept is Kept.UNDELIVERED:
            self._undelivered_bytes -= call.size
        elif call.kept is Kept.ON_DISK and call.place is not None:
            call.place.file.release()
        call.kept = Kept.NOWHERE

    async def frames(self, call: Call) -> bytes:
        """A finished call's events, read back from disk where they are there."""
        if call.frames is not None:
            return call.frames
        place = call.place
        assert place is not None
        try:
            frames: bytes = await self._pool.submit(place.read)
        except FileNotFoundError:
            if call.frames is None:
                raise
            return call.frames  # another request has read it back meanwhile
        if call.kept is Kept.ON_DISK:
            self.drop(call)
            call.frames, call.place = frames, None
        return frames

    async def sweep(self) -> None:
        """Forget delivered results that are old; move undelivered ones that are old or too many to disk."""
        now = time.monotonic()
        for ledger in [ledger for ledger in self._delivered if not ledger.evict(now)]:
            self._delivered.pop(ledger, None)
        if self._spilling is None:
            self._spilling = asyncio.create_task(self._spill())
        await asyncio.shield(self._spilling)

    async def _spill(self) -> None:
        try:
            while batch := self._next_batch():
                await self._to_disk(batch)
        except OSError as error:
            # Better too much memory than a lost result; the next sweep tries again.
            logger.warning("undelivered results cannot go to disk", extra={"reason": str(error)})
        finally:
            self._spilling = None

    def _next_batch(self) -> dict[Call, CallLedger]:
        """Undelivered results to write at one go: the oldest, while they are too old or too many."""
        batch: dict[Call, CallLedger] = {}
        now = time.monotonic()
        excess = self._undelivered_bytes - self._settings.result_memory
        while self._undelivered and len(batch) < _BATCH:
            ledger, task_id = self._undelivered[0]
            call = ledger.undelivered(task_id)
            if call is not None and call.kept is Kept.UNDELIVERED and call not in batch:
                if excess <= 0 and call.expires > now:
                    break
                batch[call] = ledger
                excess -= call.size
            self._undelivered.popleft()
        return batch

    def close(self) -> None:
        """Remove what is on disk."""
        if self._folder is not None:
            self._remove()
            self._folder = None

    async def _to_disk(self, batch: dict[Call, CallLedger]) -> None:
        try:
            if self._folder is None:
                self._folder = ResultFolder()
                # Also where nobody closes: a server without a lifespan, or one that ends by an exception.
                self._remove = weakref.finalize(self, self._folder.remove)
            contents = [call.frames or b"" for call in batch]
            path = self._folder.path / str(next(self._names))
            file: _ResultFile = await self._pool.submit(lambda: _ResultFile(path, contents))
        except OSError:
            if self._folder is not None and not self._folder.path.exists():
                self.close()  # somebody has tidied up; the next try makes another
            self._undelivered.extendleft((ledger, call.task_id) for call, ledger in reversed(batch.items()))
            raise
        offset = 0
        for call, content in zip(batch, contents, strict=True):
            place = _Place(file, offset, len(content))
            offset += len(content)
            if call.kept is not Kept.UNDELIVERED:  # delivered or dropped while it was written
                file.release()
                continue
            self._undelivered_bytes -= call.size
            call.kept = Kept.ON_DISK
            call.place = place
            call.frames = None
