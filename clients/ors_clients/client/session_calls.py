"""The tool calls of a session, each repeated until its result is known, or cannot be.

A call runs at most once, whatever happens to its connection. Our server honours an ``Idempotency-Key`` and announces it
when the session is created (``X-Idempotent-Calls``), so a lost call is sent again with the same key. With other servers
a lost call is resumed only by its ``task_id``, which starts nothing. If the server had not sent the ``task_id`` yet, or
a gateway answered instead of the server, it is unknown whether the tool ran: ``CallOutcomeUnknown`` is raised.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from ors_clients.client.keepalive import Heartbeat
from ors_clients.errors import (
    CallOutcomeUnknown,
    ClientError,
    InfrastructureFailure,
    ServerUnavailable,
    SessionLost,
    ToolFailed,
)
from ors_clients.models import ToolResult, read_result, unexpected_response
from ors_clients.transport.base import ConnectionLost, Headers, Response
from ors_clients.transport.connection import Connection, RetryPolicy, dumps, is_retryable_refusal
from ors_clients.transport.error_responses import redact
from ors_clients.transport.sse import CallEvents

__all__ = ["FRESH_ENOUGH", "SessionCalls"]

#: Texts of ``error`` events that are not the tool's own.
_LOST = ("SessionGone:", "InfrastructureError:")
_NO_REWARD = "NonFiniteReward:"
_FORGOTTEN = ("unknown task_id", "ResultExpired:")
#: Longest idle time, in seconds, of a connection for a request that must not be repeated: the server may have closed an
#: older one, and it would be unknown whether the request had arrived. Keyed calls may take older connections.
FRESH_ENOUGH = 1.0
#: Seconds of a stream after which its loss counts as the first failure again.
_PROGRESS = 10.0
#: Seconds within which a call's response has to begin. Our server sends the task id within a second, so after a minute
#: the request is sent again. Other servers may be silent for longer: ors-sdk's waits before its first byte for all of
#: the set-up, and for any tool that blocks its event loop.
_FIRST_BYTE, _FIRST_BYTE_OF_OTHERS = 60.0, 3600.0


class SessionCalls:
    """The calls of a session."""

    def __init__(
        self, connection: Connection, beat: Heartbeat, path: str, headers: Headers, hidden: tuple[str, ...]
    ) -> None:
        self._connection = connection
        self._beat = beat
        self._path = path
        self._headers = headers
        self._hidden = hidden
        #: True if the server honours an ``Idempotency-Key``.
        self.keyed = False
        #: True if a tool has ended the episode.
        self.finished = False
        self._key = uuid.uuid4().hex[:16]
        self._count = 0

    async def run(self, name: str, input: Mapping[str, Any]) -> ToolResult:
        """Call a tool and wait for its result. Raises what ``AsyncSession.call`` raises."""
        connection, keyed = self._connection, self.keyed
        call = {"name": name, "input": input}
        body = dumps(call)
        self._count += 1
        headers = (self._headers, Headers([("Idempotency-Key", f"{self._key}-{self._count}")]))
        longest_idle = 60.0 if keyed else FRESH_ENOUGH
        policy: RetryPolicy | None = None
        task_id: str | None = None
        while True:
            events = CallEvents()
            started = time.monotonic()
            lost: ConnectionLost | None = None
            response: Response | None = None
            try:
                response = await connection.once(
                    "POST",
                    self._path,
                    body,
                    headers,
                    longest_idle=longest_idle,
                    first_byte=_FIRST_BYTE if keyed else _FIRST_BYTE_OF_OTHERS,
                    on_data=events.feed,
                )
            except ConnectionLost as error:
                lost = error
            if events.complete:
                self._beat.last_sent = time.monotonic()
                if events.error is not None:
                    raise self._failure(name, events.error)
                result = read_result(events.json())
                self.finished = self.finished or result.finished
                return result
            if policy is None:
                policy = RetryPolicy(connection)
            longest_idle = -1.0
            if response is not None and response.status != 200:
                if not (keyed or task_id or is_retryable_refusal(response)):
                    self._refuse_to_repeat(name, response)
                await policy.after_refusal(response, session=True, secrets=self._hidden)
                continue
            if response is not None and response.body:
                raise unexpected_response("a stream of events")
            if lost is None:
                lost = ConnectionLost("the event stream ended before its result", sent=True)
            if events.task_id is not None and events.task_id != task_id:
                task_id = events.task_id
                body = dumps({**call, "task_id": task_id})
            if lost.sent and task_id is None and not keyed:
                raise CallOutcomeUnknown(
                    f"The connection was lost while {name!r} was called ({lost})",
                    "The server makes no promise about repeated calls, so it was not called again.",
                )
            if events.last_piece is not None and events.last_piece - started > _PROGRESS:
                policy.progressed()
            await policy.after_loss(lost)

    def _refuse_to_repeat(self, name: str, response: Response) -> None:
        """Raise ``CallOutcomeUnknown`` for an error of a gateway, which may have passed the call on."""
        if response.status > 500:
            error = self._connection.error(response, session=True, secrets=self._hidden)
            if isinstance(error, ServerUnavailable):  # not the server's error for a lost session
                raise CallOutcomeUnknown(
                    f"{name!r} was called, and then: {error.cause}",
                    "A gateway may have passed the call on, and the server makes no promise about repeated calls, "
                    "so it was not called again.",
                )

    def _failure(self, name: str, text: str) -> ClientError:
        """Return an ``error`` event as the error the caller gets."""
        text = redact(text, (*self._connection.secrets, *self._hidden))
        if text.startswith(_LOST):
            return SessionLost(text)
        if text.startswith(_FORGOTTEN):
            return CallOutcomeUnknown(f"{name!r} was called, but its result is gone: {text}")
        if text.startswith(_NO_REWARD):
            return InfrastructureFailure(text, "Look at the environment.")  # as ``check_reward``: not the model's doing
        return ToolFailed(name, text)
