"""Destinations of finished trajectories besides the trainer: a file, or a server that keeps rollouts.

A sink has a thread of its own and a queue of bounded length. Handing over a trajectory takes no time, and nothing that
goes wrong afterwards reaches the run: it is logged, and the trajectory is lost. A sink that could stop or slow training
would be worse than none. A process that was forked starts a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ors_clients.api_keys import PLATFORM_API, server_key
from ors_clients.errors import ResponseTooLarge
from ors_clients.rollouts.trajectory import ToolStep, Trajectory
from ors_clients.rollouts.upload_events import RolloutLabels, report_event, rollout_events, summary
from ors_clients.tool_calls import ToolCall

__all__ = ["JsonlSink", "RolloutLabels", "RolloutsSink", "TrajectorySink"]

logger = logging.getLogger("ors_clients.rollouts.sinks")

_Encoded = TypeVar("_Encoded")
_Item = tuple[Trajectory, RolloutLabels]
#: Limits of the API on one request: events, and bytes.
_BATCH_EVENTS = 128
_BATCH_BYTES = 1_000_000
#: Losses that are logged each; after them, one in so many.
_LOGGED_LOSSES = 20


class TrajectorySink(Protocol):
    """Takes trajectories."""

    def submit(self, trajectory: Trajectory, labels: RolloutLabels) -> None:
        """Hand over a finished trajectory, from any thread. Returns at once and never raises."""
        ...

    async def close(self, seconds: float = 10.0) -> None:
        """Write what is left, for at most so long. Never raises."""
        ...


class _ThreadSink(ABC):
    """A queue and the thread that empties it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        #: Trajectories that were lost: the queue was full, or they could not be written.
        self.lost = 0
        self._renew()

    def _renew(self) -> None:
        self._process = os.getpid()
        self._queue: deque[_Item] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, trajectory: Trajectory, labels: RolloutLabels) -> None:
        """Hand over a finished trajectory."""
        if os.getpid() != self._process:
            self._renew()  # threads do not survive a fork, and their locks may not either
        with self._changed:
            if len(self._queue) >= self._capacity:
                self._queue.popleft()
                self._lose(1, "the queue is full")
            self._queue.append((trajectory, labels))
            if self._thread is None:
                self._stopping = False
                # An exit of the program without `close` still writes what is left; the thread itself does not hold it
                # up, for it may have a dead server to wait for.
                atexit.register(self.stop, 10.0)
                self._thread = threading.Thread(target=self._work, name=f"ors-{type(self).__name__}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    async def close(self, seconds: float = 10.0) -> None:
        """Write what is left."""
        await asyncio.to_thread(self.stop, seconds)

    def stop(self, seconds: float) -> None:
        """``close`` for programs without an event loop; blocks."""
        if os.getpid() != self._process:
            return  # the parent's queue
        deadline = time.monotonic() + seconds
        with self._changed:
            thread, self._stopping = self._thread, True
            self._changed.notify_all()
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                logger.warning("a trajectory sink had no time to write %d trajectories", len(self._queue))
        atexit.unregister(self.stop)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                items = list(self._queue)
                self._queue.clear()
                if not items:
                    self._thread = None
                    return
            try:
                self._write(items)
            except Exception as error:  # noqa: BLE001 - whatever it is, a sink must not end the run, nor itself
                self._lose(len(items), f"{type(error).__name__}: {error}")

    def _encoded(self, item: _Item, encode: Callable[[Trajectory, RolloutLabels], _Encoded]) -> _Encoded | None:
        """Return the encoding of one trajectory; None if it cannot be encoded and is lost."""
        try:
            return encode(*item)
        except Exception as error:  # noqa: BLE001 - labels hold whatever the run put there
            self._lose(1, f"{type(error).__name__}: {error}")
            return None

    def _lose(self, count: int, reason: str) -> None:
        before, self.lost = self.lost, self.lost + count
        if before >= _LOGGED_LOSSES and before // _LOGGED_LOSSES == self.lost // _LOGGED_LOSSES:
            return  # a server that is away for hours is not worth a line a trajectory
        logger.warning("%d trajectories were not kept (%d in all): %s", count, self.lost, reason)

    @abstractmethod
    def _write(self, items: list[_Item]) -> None:
        """Write the items, or call ``_lose``."""


class JsonlSink(_ThreadSink):
    """Appends one JSON object a trajectory to a file. ``tokens=False`` leaves out ids, mask and log-probabilities."""

    def __init__(self, path: str | Path, *, tokens: bool = True, capacity: int = 1_000) -> None:
        super().__init__(capacity)
        self._path = Path(path)
        self._tokens = tokens

    def _write(self, items: list[_Item]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            for item in items:
                row = self._encoded(item, self._row)
                if row is not None:
                    file.write(row)

    def _row(self, trajectory: Trajectory, labels: RolloutLabels) -> bytes:
        row = trajectory_row(trajectory, labels, tokens=self._tokens)
        # Lone surrogates, which UTF-8 has no bytes for, become question marks.
        return json.dumps(row, ensure_ascii=False, default=repr).encode("utf-8", "replace") + b"\n"


def trajectory_row(trajectory: Trajectory, labels: RolloutLabels, *, tokens: bool) -> dict[str, Any]:
    """Return a trajectory as one JSON object."""
    row: dict[str, Any] = {
        "run_name": labels.run_name,
        "environment": labels.environment,
        "split": labels.split,
        "step": labels.step,
        "task_spec": labels.task_spec,
        "reward": labels.reward,
        **summary(trajectory),
        "seconds": round(trajectory.seconds, 3),
        "metadata": dict(labels.metadata),
        "messages": trajectory.messages,
        "steps": [_step_row(step) for step in trajectory.steps],
    }
    if tokens:
        row |= {
            "prompt_ids": trajectory.prompt_ids,
            "response_ids": trajectory.response_ids,
            "loss_mask": trajectory.loss_mask,
            "logprobs": trajectory.logprobs,
        }
    return row


def _step_row(step: ToolStep) -> dict[str, Any]:
    call = step.call
    row: dict[str, Any] = {"turn": step.turn, "reward": step.reward, "seconds": round(step.seconds, 4)}
    if isinstance(call, ToolCall):
        row |= {"name": call.name, "input": call.input, "id": call.id}
    else:
        row["malformed"] = call.raw
    if step.problem is not None:
        row["problem"] = step.problem
    if step.result is not None:
        row |= {"finished": step.result.finished, "metadata": step.result.metadata}
    return row


class RolloutsSink(_ThreadSink):
    """Uploads to the openreward rollout API at ``url``: the platform's, or that of an ``ors-server``.

    ``url`` defaults to ``OPENREWARD_API_URL``, else the platform's own; ``api_key`` to what ``server_keys`` says of
    that address. What the server cannot take just now (no connection, 429, 5xx) is sent again, at most ``attempts``
    times.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        tokens: bool | None = None,
        capacity: int = 1_000,
        attempts: int = 5,
        first_pause: float = 0.5,
    ) -> None:
        super().__init__(capacity)
        self._url = (url or os.environ.get("OPENREWARD_API_URL") or PLATFORM_API).rstrip("/")
        self._key = server_key(self._url) if api_key is None else api_key
        self._tokens = os.environ.get("ORS_UPLOAD_TOKENS", "0") == "1" if tokens is None else tokens
        self._attempts = attempts
        self._first_pause = first_pause

    def upload(self, rollouts: Iterable[list[bytes]]) -> Iterator[tuple[int, str | None]]:
        """Send rollouts, each as its encoded events; blocks. For each request, yield the number of rollouts that begin
        in it, and why the server did not take it (None: it did)."""
        from ors_clients.transport.bounded_httpx import BoundedClient

        with BoundedClient(base_url=self._url, headers={"x-api-key": self._key}, timeout=30.0) as client:
            for batch, begun in _batches(rollouts):
                yield begun, self._send(client, batch)

    def upload_report(self, run_name: str, kind: str, report: Mapping[str, Any]) -> str | None:
        """Send the report of a run; blocks. Return why the server did not take it; None if it did."""
        event = json.dumps(report_event(run_name, kind, report), default=repr).encode()
        return next((problem for _, problem in self.upload([[event]]) if problem is not None), None)

    def _write(self, items: list[_Item]) -> None:
        for rollouts, problem in self.upload(self._events(items)):
            if problem is not None:
                self._lose(rollouts, problem)

    def _events(self, items: list[_Item]) -> Iterator[list[bytes]]:
        for item in items:
            events = self._encoded(item, self._encoded_events)
            if events is not None:
                yield events

    def _encoded_events(self, trajectory: Trajectory, labels: RolloutLabels) -> list[bytes]:
        events = rollout_events(trajectory, labels, tokens=self._tokens)
        return [json.dumps(event, separators=(",", ":"), default=repr).encode() for event in events]

    def _send(self, client: Any, batch: list[bytes]) -> str | None:
        """Send a batch; why it could not be, or None."""
        import httpx

        body = b'{"events":[' + b",".join(batch) + b"]}"
        pause = self._first_pause
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(min(pause, 30.0))
                pause *= 2
            try:
                response = client.post("/v1/rollouts", content=body, headers={"content-type": "application/json"})
            except ResponseTooLarge as error:
                problem = error.cause
                break
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if response.is_success:
                return None
            problem = f"the server answered {response.status_code}: {response.text[:200]}"
            if response.status_code != 429 and response.status_code < 500:
                break
        return problem


def _batches(rollouts: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], int]]:
    """Yield encoded events in batches that the API takes, each with the number of rollouts that begin in it."""
    batch: list[bytes] = []
    size = begun = 0
    for events in rollouts:
        for number, encoded in enumerate(events):
            if batch and (len(batch) >= _BATCH_EVENTS or size + len(encoded) > _BATCH_BYTES):
                yield batch, begun
                batch, size, begun = [], 0, 0
            batch.append(encoded)
            size += len(encoded)
            begun += number == 0
    if batch:
        yield batch, begun
