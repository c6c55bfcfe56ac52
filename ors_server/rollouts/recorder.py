"""Recording of the sessions that a server plays, as rollouts.

The event loop notes events (``events``) and hands them over about once a second, in batches; the writer's thread does
the rest, and neither reads what the other changes. Invariants: a call never waits for a record; at most ``limit`` bytes
of events wait, and what comes above that is dropped and counted; the values of a session's secrets are redacted before
anything of it leaves the memory of this process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from ors_server.rollouts.aggregates.derived_columns import TASK_TOKEN, Outcome, task_of
from ors_server.rollouts.recording.batches import Batch, Batches, End, Event, Sofar, StoredSession
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.rollouts.verdict_marks import mark_of_frames
from ors_server.telemetry.redaction import forms_of
from ors_server.wire.encoding import encode

__all__ = ["Recorder", "Recording"]

logger = logging.getLogger("ors_server.rollouts")

#: Bytes of events that may wait to be stored.
LIMIT = 64 * 2**20
#: Seconds between two handings-over.
INTERVAL = 1.0
#: Bytes of events that are handed over sooner.
_BATCH = 4 * 2**20
#: Seconds between two signs of life, and between two log lines about what was dropped.
ALIVE_EVERY = 15.0
_LOG_EVERY = 60.0
#: Bytes that an event takes in memory besides its data, and that the row of a session takes.
_OVERHEAD = 200
_ROW = 2000
_LARGEST = sys.float_info.max


class Recorder:
    """Recorder of one server's sessions. Used on the event loop."""

    def __init__(self, writer: RolloutWriter, *, limit: int = LIMIT) -> None:
        self._writer = writer
        self._limit = limit
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        #: Events that were dropped because too many waited, since the start.
        self.dropped = 0
        #: Sessions that are not stored at all, for the same reason.
        self.dropped_sessions = 0
        #: What is not handed over yet; its bytes, and how many they may be before room is made again.
        self._batches: list[tuple[Recording, Batch]] = []
        self._size = self._bound = 0
        self._timer: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self._logged_at = -_LOG_EVERY

    @property
    def waiting(self) -> int:
        """Bytes of events that wait to be stored."""
        return self._size + self._writer.records_waiting

    def start(self) -> None:
        """Mark the sessions of processes that have died as lost, now and from time to time."""
        self._writer.keep_alive(self.name)
        self._alive = asyncio.get_running_loop().call_later(ALIVE_EVERY, self.start)

    def close(self) -> None:
        """Hand over what was noted; the writer is closed afterwards."""
        self._hand_over()
        if self._alive is not None:
            self._alive.cancel()
            self._alive = None
            self._writer.keep_alive(self.name)  # a process that died just now may have none in its place yet

    def begin(
        self,
        *,
        sid: str,
        environment: str,
        split: str | None,
        index: int | None,
        task: Mapping[str, Any],
        secrets: Iterable[str],
        owner: str | None,
    ) -> Recording:
        """Begin to record a session. ``task`` is as clients see it; ``secrets`` are values that are never stored."""
        at = time.time_ns() // 1_000_000
        recording = Recording(self, StoredSession(str(uuid.uuid4()), sid, forms_of(secrets)))
        spec = encode({name: value for name, value in task.items() if name != TASK_TOKEN}).decode()
        info = {} if index is None else {"task_index": index}
        known = task_of(environment, None, split, spec, info)
        row = {
            "id": recording.stored.rollout_id,
            "run_name": f"recorded-{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d}",
            "environment": environment,
            "split": split,
            "started_at": at,
            "task_spec": spec,
            "metadata": json.dumps({"session": sid}),
            "owner": owner,
            "source": "session",
            "task_key": known.key,
            "task_label": known.label,
            "task_index": known.index,
        }
        size = len(spec) + _ROW
        if self._make_room(size):
            self._size += size
            self._new_batch(recording).begun = row
        else:
            recording.muted = True
            self.dropped_sessions += 1
        return recording

    def note(self, recording: Recording, event: Event) -> None:
        """Note what a session did; count it as dropped where too much waits."""
        batch = recording.batch
        size = len(event[-1]) + _OVERHEAD
        if batch is None or self._size + size > self._bound:
            batch = self._batch_with_room(recording, size)
            if batch is None:
                return
        self._size += size
        batch.events += event

    def _batch_with_room(self, recording: Recording, size: int) -> Batch | None:
        """Return the batch that takes an event; None where none does, for which the event is counted as dropped."""
        if recording.muted:
            return None
        if self._size + size > self._bound and not self._make_room(size):
            recording.dropped += 1
            return None
        return recording.batch or self._new_batch(recording)

    def end(self, recording: Recording, end: End) -> None:
        """Note the end of a session. It is never dropped."""
        if not recording.muted:
            self._size += _OVERHEAD + len(end.reason)
            (recording.batch or self._new_batch(recording)).end = end

    def _make_room(self, size: int) -> bool:
        """Return whether ``size`` bytes more may wait, and count what may not as dropped."""
        if self._size + size > _BATCH:
            self._hand_over()
        left = self._limit - self._writer.records_waiting
        self._bound = min(_BATCH, left)
        if self._size + size <= left:
            return True
        self.dropped += 1
        now = time.monotonic()
        if now - self._logged_at > _LOG_EVERY:
            self._logged_at = now
            logger.error(
                "records of sessions are dropped: more wait than may",
                extra={"dropped": self.dropped, "sessions": self.dropped_sessions, "limit": self._limit},
            )
        return False

    def _new_batch(self, recording: Recording) -> Batch:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL, self._hand_over)
        batch = recording.batch = Batch(recording.stored)
        self._batches.append((recording, batch))
        return batch

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._batches:
            offset = time.time() - time.monotonic()
            for recording, batch in self._batches:
                batch.sofar = recording.sofar()
                recording.batch = None
            batches = [batch for _, batch in self._batches]
            self._writer.record(Batches(self.name, batches, self._size, offset))
            self._batches, self._size, self._bound = [], 0, 0


class EndedCall(Protocol):
    """A call with a result (``sessions.call.Call``); times are by the monotonic clock."""

    task_id: str
    name: str
    started: float
    #: When the author's code began and ended; 0 where it did not.
    entered: float
    left: float
    reward: float | None
    finished: bool


class Recording:
    """The record of one session, as the event loop has it. Times are by the monotonic clock."""

    __slots__ = (
        "_mark",
        "_prompted",
        "_recorder",
        "batch",
        "dropped",
        "finished",
        "max_reward",
        "muted",
        "stored",
        "total_reward",
    )

    def __init__(self, recorder: Recorder, stored: StoredSession) -> None:
        self._recorder = recorder
        #: What the writer's thread keeps of the session.
        self.stored = stored
        #: True where none of it is stored.
        self.muted = False
        #: What the recorder has not handed over yet.
        self.batch: Batch | None = None
        self._prompted = False
        self.max_reward: float | None = None
        self.total_reward: float | None = None
        self.finished = False
        #: The reservation about the verdict (``marks``); empty for none.
        self._mark = ""
        #: Events that were dropped.
        self.dropped = 0

    def sofar(self) -> Sofar:
        """Return what the row of the session says of it until now."""
        return Sofar(self.max_reward, self.total_reward, self.finished, self.dropped, self._mark)

    def prompt(self, kind: str, data: bytes) -> None:
        """Note the prompt that the client reads, the first time: ``blocks`` or ``messages``, as JSON."""
        if not self._prompted:
            self._prompted = True
            at = time.monotonic()
            for each in [data] if kind == "blocks" else [to_json([message]) for message in from_json(data)]:
                self._recorder.note(self, (at, None, kind, None, None, each))

    def call(self, at: float, call_id: str, request: bytes) -> None:
        """Note that a call has begun, of the JSON object ``request`` with ``name`` and ``input``."""
        self._recorder.note(self, (at, call_id, None, None, None, request))

    def result(self, at: float, call: EndedCall, frames: bytes) -> None:
        """Note the result of a call, as it was sent."""
        reward = call.reward
        if reward is not None:
            if self.max_reward is None or reward > self.max_reward:
                self.max_reward = reward
            total = (self.total_reward or 0.0) + reward
            self.total_reward = total if -_LARGEST <= total <= _LARGEST else math.copysign(_LARGEST, total)
        if call.finished:
            self.finished = True
            self._mark = mark_of_frames(frames) or self._mark
        waited = call.entered - call.started if call.entered else None
        inside = call.left - call.entered if call.left else None
        self._recorder.note(self, (at, call.task_id, call.name, waited, inside, frames))

    def end(self, outcome: Outcome, reason: str) -> None:
        """Note the end of the session. A session that has finished ended that way, whatever came afterwards."""
        self._recorder.end(self, End("finished" if self.finished else outcome, reason))
