"""Heads that differ from an earlier one only in the session's id and in the length of the body.

The requests of a client's connection are alike, and so are the responses to them: a head that was read once is
recognised by comparing bytes. Reading a head costs more than all else that a gateway does for a request. What is not
alike, down to the byte, or has not come whole, is read as any other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ors_server.gateway.framing import Head
from ors_server.http.delivery import GATEWAY_HEADER

__all__ = ["RequestTemplate", "ResponseTemplate", "Templates"]

_FIELDS = re.compile(rb"\r\n(?:(x-session-id)|content-length):[ \t]*([^\r]*)", re.IGNORECASE)
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
        self._before, self._after = head[: length.start(2)], head[length.end(2) :]
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

    __slots__ = (
        "_after",
        "_before",
        "_between",
        "_first",
        "_gap",
        "_id_first",
        "_rest",
        "credential",
        "method",
        "response",
    )

    def __init__(self, head: Head, fields: Sequence[re.Match[bytes]], credential: bytes) -> None:
        first, second = fields
        self._before = head.data[: first.start(2)]
        self._between = head.data[first.end(2) : second.start(2)]
        self._after = head.data[second.end(2) :]
        self._first, self._gap, self._rest = len(self._before), len(self._between), len(self._after)
        self._id_first = first[1] is not None
        self.method = head.method
        self.credential = credential
        #: The head of the last response to such a request.
        self.response: ResponseTemplate | None = None

    def session_of(self, data: bytes) -> bytes | None:
        """Return the session's id where these bytes are one whole request with such a head; None otherwise."""
        stop = data.find(b"\r", self._first)
        start = stop + self._gap
        end = data.find(b"\r", start)
        if not (
            data.startswith(self._before) and data.startswith(self._between, stop) and data.startswith(self._after, end)
        ):
            return None
        sid, length = data[self._first : stop], data[start:end]
        if not self._id_first:
            sid, length = length, sid
        if length.isdigit() and len(length) <= _DIGITS and end + self._rest + int(length) == len(data):
            return sid
        return None

    def learn(self, head: bytes) -> None:
        """Take the head of a whole response of a known length."""
        fields = [*_FIELDS.finditer(head)]
        self.response = ResponseTemplate(head, fields[0]) if len(fields) == 1 and len(head) <= _LONGEST else None


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
        fields = [*_FIELDS.finditer(head.data)]
        if len(fields) != 2:
            return None
        template = RequestTemplate(head, fields, credential)
        if not credential:
            if len(self._by_line) >= _SHARED:
                self._by_line.clear()
            self._by_line[head.data[: head.data.find(b"\r")]] = template
        return template
