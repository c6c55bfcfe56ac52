"""The ids of a request, for the log lines that are written while it is answered.

A client's ``X-Request-ID`` is taken where it is short and plain. An id is otherwise made when a log line needs it, so
that a request without one costs nothing. The context of a request has its ids and little else: timers keep contexts
alive as long as connections are idle.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar

__all__ = ["REQUEST_ID", "RequestIds", "call_id", "ids_of_context", "request_ids"]

#: The header, in lower case.
REQUEST_ID = b"x-request-id"
_PLAIN = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
#: Longest session id in a log line, in characters: clients choose them.
_LONGEST = 200


class RequestIds:
    """The ids of one request."""

    __slots__ = ("_given", "_made", "_sid")

    def __init__(self, given: bytes | None, sid: bytes | None) -> None:
        self._given = given
        self._sid = sid
        self._made: str | None = None

    @property
    def request(self) -> str:
        """The client's id, or one that was made."""
        if self._made is None:
            plain = self._given is not None and _PLAIN.fullmatch(self._given)
            self._made = self._given.decode() if plain and self._given else os.urandom(8).hex()
        return self._made

    @property
    def for_response(self) -> str | None:
        """The id to answer with: where the client gave one, or a log line has it."""
        return None if self._given is None and self._made is None else self.request

    @property
    def session(self) -> str | None:
        """The session's id as the client gave it."""
        return None if self._sid is None else self._sid.decode("latin-1").strip()[:_LONGEST]


#: The ids of the request that is answered, and the id of the call that runs.
request_ids: ContextVar[RequestIds | None] = ContextVar("request_ids", default=None)
call_id: ContextVar[tuple[str, str] | None] = ContextVar("call_id", default=None)


def ids_of_context() -> dict[str, str]:
    """Return the ids that a log line written now has: ``request``, ``sid`` and ``call``."""
    found: dict[str, str] = {}
    ids = request_ids.get()
    if ids is not None:
        found["request"] = ids.request
        if ids.session:
            found["sid"] = ids.session
    running = call_id.get()
    if running is not None:
        found["sid"], found["call"] = running
    return found
