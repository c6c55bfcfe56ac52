"""One tool call or group scoring of a session."""

from __future__ import annotations

import asyncio
import os
import time
from enum import Enum
from typing import Any, Protocol

from ors_server.sessions.calls.result_folder import StoredResult
from ors_server.sessions.shared_timers import shared_timers, wake

__all__ = ["LARGE", "Call", "ResultState", "result_size"]

#: Memory that a finished call takes beside its result, in bytes, for the memory bounds.
_OVERHEAD = 512
#: Results above this size are written to their clients piece by piece, and are in the accounts until they are
#: delivered: a client may not read. In bytes.
LARGE = 64 * 1024


class ResultState(Enum):
    """The account of the ``ResultStore`` that a call's result is in."""

    NONE = "none"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"
    ON_DISK = "on disk"


class WaitingConnection(Protocol):
    """The connection of a request that waits for a result."""

    def end_when_lost(self, waiter: asyncio.Future[None] | None) -> None:
        """Set the result of ``waiter`` once the connection is lost; only of the last that was given."""
        ...


class Call:
    """A call from its start until its result is delivered."""

    __slots__ = (
        "_waiters",
        "entered",
        "expires",
        "fingerprint",
        "finished",
        "frames",
        "input",
        "inside",
        "key",
        "left",
        "name",
        "outcome",
        "readers",
        "recorded",
        "recorded_for_page",
        "result_state",
        "reward",
        "started",
        "stored",
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
        #: The encoded events after ``task_id``; None while the call runs, and while they are on disk.
        self.frames: bytes | None = None
        self.stored: StoredResult | None = None
        #: The events for the record, where they are others than those for the client.
        self.recorded: bytes | None = None
        #: Whether they stay when they are recorded: for the playground, which shows a verdict.
        self.recorded_for_page = False
        self.result_state = ResultState.NONE
        #: The requests that are being answered with this call; each retains the file of ``stored``.
        self.readers = 0
        #: Time after which an undelivered result may go to disk.
        self.expires = 0.0
        self.started = time.monotonic()
        #: When the environment's own code began and ended (``hosting.tool_runner.Timed``); 0 where it did not.
        self.entered = self.left = 0.0
        #: The reward of the result, and whether it ended the episode.
        self.reward: float | None = None
        self.finished = False
        #: Seconds of the author's code, and how the call has ended (``metrics.counts.OUTCOMES``).
        self.inside = 0.0
        self.outcome = "ok"
        self.task: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None

    @classmethod
    def delivered(cls, task_id: str, result: bytes | StoredResult) -> Call:
        """Make a call from a delivered result that is fetched again; only its id finds it."""
        call = cls("", None, "")
        call.task_id, call.result_state = task_id, ResultState.DELIVERED
        if isinstance(result, bytes):
            call.frames = result
        else:
            call.stored = result
        return call

    @property
    def done(self) -> bool:
        """True once there is a result."""
        return self.frames is not None or self.stored is not None

    @property
    def size(self) -> int:
        """Bytes that the result takes in memory."""
        return result_size(self.frames or b"")

    @property
    def length(self) -> int:
        """Bytes of the encoded events after ``task_id``, in memory or on disk."""
        if self.frames is not None:
            return len(self.frames)
        return 0 if self.stored is None else self.stored.size

    def begin_reading(self) -> None:
        """Note that a request begins to be answered with this call."""
        self.readers += 1
        if self.stored is not None:
            self.stored.file.retain()

    def end_reading(self) -> None:
        """Note that the answer to a request has ended."""
        self.readers -= 1
        if self.stored is not None:
            self.stored.file.release()

    def move_to_disk(self, stored: StoredResult) -> None:
        """Replace the result in memory by that on disk."""
        stored.file.retain(self.readers)
        self.frames, self.stored = None, stored

    def move_to_memory(self, frames: bytes) -> None:
        """Replace the result on disk by that in memory."""
        if self.stored is not None:
            self.stored.file.release(self.readers)
        self.frames, self.stored = frames, None

    async def wait(self, seconds: float, connection: WaitingConnection | None = None) -> None:
        """Wait for the result, about ``seconds`` and as long as the connection lives; ``done`` says if it came."""
        if self.done:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        timers = shared_timers()
        timer = timers.add(waiter, seconds)
        if connection is not None:
            connection.end_when_lost(waiter)
        try:
            await waiter
        finally:
            timers.remove(waiter, timer)
            if connection is not None:
                connection.end_when_lost(None)
            self._forget(waiter)

    def _forget(self, waiter: asyncio.Future[None]) -> None:
        if self._waiters is not None:
            self._waiters.remove(waiter)
            self._waiters = self._waiters or None

    def finish(self, frames: bytes) -> None:
        """Set the result and wake the requests that wait for it. The first result stands."""
        if self.done:
            return
        self.frames = frames
        self.task = None
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            wake(waiter)


def result_size(result: bytes | StoredResult) -> int:
    """Count the bytes of memory that a result takes."""
    return _OVERHEAD + (len(result) if isinstance(result, bytes) else 0)
