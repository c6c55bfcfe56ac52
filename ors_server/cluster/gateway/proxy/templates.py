"""Heads that differ from an earlier one only in a few values: the session's id, the length of the body, keys of calls.

The requests of a client's connection are alike, and so are the responses to them: a head that was read once is
recognised by comparing bytes. Reading a head costs more than all else that a gateway does for a request. What is not
alike, down to the byte, or has not come whole, is read as any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ors_server.cluster.gateway.proxy.framing import Head
from ors_server.http.delivery import GATEWAY_HEADER

__all__ = ["RequestTemplate", "ResponseTemplate", "Templates"]

#: Headers whose values differ from one request to the next, and from one response to the next.
_FIELDS = re.compile(
    rb"\r\n(x-session-id|content-length|idempotency-key|x-request-id|traceparent|tracestate):[ \t]*([^\r]*)",
    re.IGNORECASE,
)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([^\r]*)", re.IGNORECASE)
#: Values that the parser of heads takes.
_PLAIN = re.compile(rb"[ -~]*")
#: Headers of requests that are passed on in another way.
_SPECIAL = frozenset((b"expect", b"transfer-encoding", b"upgrade", GATEWAY_HEADER))
#: Templates that clients share, and bytes of a head from which one is made.
_SHARED, _LONGEST = 1024, 2048
#: Digits of a length.
_DIGITS = 9


class ResponseTemplate:
    """The head of a response."""

    __slots__ = ("_after", "_before", "_first", "_rest")

    def __init__(self, head: bytes, length: re.Match[bytes]) -> None:
        self._before, self._after = head[: length.start(1)], head[length.end(1) :]
        self._first, self._rest = len(self._before), len(self._after)

    def fits(self, data: bytes) -> bool:
        """Return whether these bytes are one whole response with such a head."""
        stop = data.find(b"\r", self._first)
        length = data[self._first : stop]
        return (
            data.startswith(self._before)
            and data.startswith(self._after, stop)
            and length.isdigit()
            and len(length) <= _DIGITS
            and stop + self._rest + int(length) == len(data)
        )


class RequestTemplate:
    """The head of requests of sessions whose ids name their workers."""

    __slots__ = ("_before", "_id", "_length", "_parts", "credential", "method", "response")

    def __init__(self, head: Head, fields: Sequence[re.Match[bytes]], credential: bytes) -> None:
        data = head.data
        names = [field[1].lower() for field in fields]
        #: The bytes before the first value that may differ, and those after each.
        self._before = data[: fields[0].start(2)]
        starts = [*(field.start(2) for field in fields[1:]), len(data)]
        self._parts = [data[field.end(2) : start] for field, start in zip(fields, starts, strict=True)]
        self._id, self._length = names.index(b"x-session-id"), names.index(b"content-length")
        self.method = head.method
        self.credential = credential
        #: The head of the last response to such a request.
        self.response: ResponseTemplate | None = None

    def session_of(self, data: bytes) -> bytes | None:
        """Return the session's id where these bytes are one whole request with such a head; None otherwise.

        The id has yet to be compared with those that name their workers.
        """
        if not data.startswith(self._before):
            return None
        start = len(self._before)
        values: list[bytes] = []
        for part in self._parts:
            stop = data.find(b"\r", start)
            if not data.startswith(part, stop):
                return None
            values.append(data[start:stop])
            start = stop + len(part)
        length = values[self._length]
        if not length.isdigit() or len(length) > _DIGITS or start + int(length) != len(data):
            return None
        sid = values[self._id]
        if len(values) > 2 and _PLAIN.fullmatch(b"".join(values)) is None:
            return None
        return sid

    def learn(self, head: bytes) -> None:
        """Take the head of a whole response of a known length."""
        length = _LENGTH.search(head)
        self.response = None if length is None or len(head) > _LONGEST else ResponseTemplate(head, length)


class Templates:
    """The templates of one gateway that do not belong to one client: those without a key."""

    def __init__(self) -> None:
        #: The last one for each request line.
        self._by_line: dict[bytes, RequestTemplate] = {}

    def find(self, data: bytes) -> RequestTemplate | None:
        """Return a template that a request may fit."""
        return self._by_line.get(data[: data.find(b"\r")])

    def make(self, head: Head, credential: bytes) -> RequestTemplate | None:
        """Return the template of a head, which was read just now; None for one that cannot be."""
        if len(head.data) > _LONGEST or not head.keep_alive or head.version != "1.1":
            return None
        if b"content-length" not in head.headers or not _SPECIAL.isdisjoint(head.headers):
            return None
        if len(head.values(b"x-session-id")) != 1:
            return None
        fields = [*_FIELDS.finditer(head.data)]
        template = RequestTemplate(head, fields, credential)
        if not credential:
            if len(self._by_line) >= _SHARED:
                self._by_line.clear()
            self._by_line[head.data[: head.data.find(b"\r")]] = template
        return template
