"""The ledger of a session's calls: a ``task_id`` and a key run at most once; results can be fetched again, unchanged.

A call has an id bound to its session. A request either starts a call or attaches to one: by ``task_id``; by
``Idempotency-Key``; or, without either, because it has the tool and input of a call whose connection broke before the
server had written the last byte of the result. A ``task_id`` never starts a call (protocol 0.1). So a call without a
key runs again when its answer was lost in a proxy that the server does not know of, and the request is repeated
(``http/delivery`` has the rule for proxies that it knows of).

Results are kept encoded. A delivered result stays for a while, for a client that lost it after all; an undelivered
result stays as long as its session, in memory first and then on disk (``result_store``).

Of a delivered call only the result is kept, as a tuple of a number and bytes. The garbage collector does not walk such
tuples. It would walk the ``Call`` objects of the last minute, a hundred thousand of them, and pause the server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Protocol

from ors_server.sessions.calls.call import LARGE, Call, ResultState
from ors_server.sessions.calls.call_slots import Slots
from ors_server.sessions.calls.result_folder import StoredResult
from ors_server.sessions.calls.result_store import ResultStore
from ors_server.sessions.errors import IdempotencyConflict

__all__ = ["CallLedger", "Recipient", "ResultExpired"]


class ResultExpired(Exception):
    """The call ran, its result was delivered, and it has since been forgotten."""


class Recipient(Protocol):
    """A request that is answered with a call."""

    @property
    def disconnected(self) -> bool:
        """True where its connection is known to be lost."""
        ...


class CallLedger:
    """The calls of one session."""

    __slots__ = ("_answering", "_by_key", "_calls", "_closed", "_delivered", "_lost", "_results", "_running", "_slots")

    def __init__(self, results: ResultStore, slots: Slots) -> None:
        self._results = results
        self._slots = slots
        self._closed = False
        #: The calls that were not delivered yet.
        self._calls: dict[str, Call] = {}
        #: Delivered results, each with the time at which it may be evicted; the first delivered first.
        self._delivered: dict[str, tuple[float, bytes | StoredResult]] | None = None
        #: The calls without a result.
        self._running: list[Call] | None = None
        #: Fingerprint and id of the call that each key was used for.
        self._by_key: dict[str, tuple[int, str]] | None = None
        #: The requests that are being answered, each with its call. A dictionary by calls would take more memory.
        self._answering: list[tuple[Call, Recipient]] | None = None
        #: Calls without a key whose connection was lost and that no request has fetched since, by tool and input; the
        #: oldest first.
        self._lost: dict[int, list[Call]] | None = None

    # --- the code of calls -------------------------------------------------------------------

    def start(
        self, name: str, input: Mapping[str, Any], key: str | None, *, task_id: str | None = None
    ) -> tuple[Call, bool]:
        """Return the call that a request means, and whether it is new and has to be run; a new call takes a slot.

        ``task_id`` is the id of a new call, where the caller has made one.

        Raises ``IdempotencyConflict`` for a key used for another call, ``ResultExpired`` for a call whose result is
        forgotten, ``ServerBusy`` where a limit on calls is reached, and ``ResultsFull``.
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
            call = self._find_lost(name, input)
            if call is not None:
                return call, False
        self._results.check_room()
        self._slots.acquire(self.running_count)
        call = Call(name, input, key)
        if task_id is not None:
            call.task_id = task_id
        self._calls[call.task_id] = call
        if self._running is None:
            self._running = [call]
        else:
            self._running.append(call)
        if key is not None and fingerprint is not None:
            if self._by_key is None:
                self._by_key = {}
            self._by_key[key] = (fingerprint, call.task_id)
        return call, True

    def has_connected_twin(self, name: str, input: Mapping[str, Any]) -> bool:
        """Return whether a call without a key of this tool and input runs for a connected request."""
        return any(
            call.key is None and _same(call, name, input) and self._has_connected_recipient(call)
            for call in self._running or ()
        )

    def finish(self, call: Call, frames: bytes) -> None:
        """Record a call's result, unless there is one, and wake the requests that wait for it."""
        call.finish(frames)
        if self._running is not None and call in self._running:
            self._running.remove(call)
            self._running = self._running or None
        if not call.readers and not self._closed and call.task_id in self._calls:
            self._results.keep_undelivered(self, call)

    def end_run(self, call: Call, frames: bytes) -> None:
        """Free the slot of a call whose code has ended, and record its result."""
        self._slots.release()
        self.finish(call, frames)

    @property
    def running_count(self) -> int:
        """The number of calls without a result."""
        return 0 if self._running is None else len(self._running)

    def running(self) -> list[Call]:
        """Return the calls without a result."""
        return list(self._running or ())

    # --- requests ----------------------------------------------------------------------------

    def find(self, task_id: str) -> Call | None:
        """Return the call of this id, if it is of this session and not forgotten; it is no longer a lost call."""
        call = self._calls.get(task_id)
        if call is not None:
            self._forget_lost(call)
            return call
        kept = None if self._delivered is None else self._delivered.get(task_id)
        if kept is None:
            return None
        call = Call.delivered(task_id, kept[1])
        if call.length > LARGE and self._delivered is not None:
            del self._delivered[task_id]
            self._calls[task_id] = call
            self._results.take_back(self, call)
        return call

    def begin_response(self, call: Call, recipient: Recipient) -> None:
        """Note that a request begins to be answered with a call."""
        call.begin_reading()
        if self._answering is None:
            self._answering = []
        self._answering.append((call, recipient))

    def begin_large_response(self, call: Call) -> None:
        """Account for the memory of a large result until its ``end_response``: its client may not read it."""
        if not self._closed and call.task_id in self._calls:
            self._results.keep_undelivered(self, call)

    def end_response(self, call: Call, recipient: Recipient, *, delivered: bool) -> None:
        """Note that an answer has ended: its last byte was written, or the connection was lost before."""
        if self._answering is not None:
            self._answering.remove((call, recipient))
            self._answering = self._answering or None
        call.end_reading()
        if self._closed:
            if not call.readers and self._calls.pop(call.task_id, None) is not None:
                self._results.drop(call)
            return
        if delivered:
            self._keep_delivered(call)
        else:
            self._keep_lost(call)

    def _keep_delivered(self, call: Call) -> None:
        self._forget_lost(call)
        result = call.frames if call.frames is not None else call.stored
        if call.result_state is ResultState.DELIVERED or result is None:
            return
        call.input = None
        expires = self._results.keep_delivered(self, call)
        self._calls.pop(call.task_id, None)
        if self._delivered is None:
            self._delivered = {}
        self._delivered[call.task_id] = (expires, result)
        self._results.bound_delivered()

    def _keep_lost(self, call: Call) -> None:
        if call.result_state is ResultState.DELIVERED:
            return
        if self._has_connected_recipient(call):
            return
        if call.key is None:  # a call with a key is found by its key
            if call.fingerprint is None:
                call.fingerprint = _fingerprint(call.name, call.input)
            if self._lost is None:
                self._lost = {}
            lost = self._lost.setdefault(call.fingerprint, [])
            if call not in lost:
                lost.append(call)
            if call.done:
                call.input = None
        if call.done and call.result_state is ResultState.NONE:
            self._results.keep_undelivered(self, call)

    def _has_connected_recipient(self, call: Call) -> bool:
        return any(found is call and not recipient.disconnected for found, recipient in self._answering or ())

    def _find_lost(self, name: str, input: Mapping[str, Any]) -> Call | None:
        """Return the oldest call of this tool and input whose connection was lost."""
        for call, recipient in self._answering or ():
            # The connection may be lost and its request not have noticed yet.
            disconnected = recipient.disconnected and not self._has_connected_recipient(call)
            if disconnected and call.key is None and _same(call, name, input):
                self._forget_lost(call)
                return call
        if self._lost:
            lost = self._lost.get(_fingerprint(name, input))
            if lost:
                call = lost[0]
                self._forget_lost(call)
                return call
        return None

    def _forget_lost(self, call: Call) -> None:
        """Forget the call as lost: from now on an identical request is a new call, not a retry."""
        if self._lost and call.fingerprint is not None:
            lost = self._lost.get(call.fingerprint)
            if lost and call in lost:
                lost.remove(call)
                if not lost:
                    del self._lost[call.fingerprint]

    # --- for the result store ----------------------------------------------------------------

    def undelivered(self, task_id: str) -> Call | None:
        """Return the call of this id if it was not delivered."""
        return self._calls.get(task_id)

    def evict(self, now: float) -> bool:
        """Forget delivered results that expire up to ``now``; return whether any are left."""
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

    def close(self) -> None:
        """Drop every result of the session, which has ended."""
        self._closed = True
        self._results.forget_ledger(self)
        for call in [call for call in self._calls.values() if not call.readers]:
            self._results.drop(call)
            del self._calls[call.task_id]  # the others go with their last response
        self.evict(math.inf)
        self._running = None
        self._by_key = self._lost = None


def _fingerprint(name: str, input: Any) -> int:
    return hash((name, json.dumps(input, sort_keys=True, default=repr)))


def _same(call: Call, name: str, input: Mapping[str, Any]) -> bool:
    if call.name != name:
        return False
    if call.fingerprint is None:
        call.fingerprint = _fingerprint(name, call.input)
    # Fingerprints compare as JSON does: to Python, 1 and true are equal.
    return call.fingerprint == _fingerprint(name, input)
