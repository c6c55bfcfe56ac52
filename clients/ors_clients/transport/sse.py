"""The event stream that answers a call, read byte for byte.

A stream is ``task_id``, then ``chunk``s, then ``end``, whose data put together is JSON; or ``error``. Comments keep it
alive. The SDKs' parsers strip all white space from the start of a data line and so lose some of a result that was cut
before a blank (protocol, section 2); this one takes away the one space that the format puts there, and nothing else.

Bytes come in pieces of any size: a piece may end between the two characters of a line end, or in a character. What has
been read never depends on where the pieces were cut.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from ors_clients.models import unexpected_response
from ors_clients.transport.json_codec import read_json

__all__ = ["CallEvents", "Event", "EventParser"]


class Event(NamedTuple):
    """One event; ``data`` of several lines is joined with newlines."""

    name: str
    data: bytes


class EventParser:
    """Turns pieces of a stream into events."""

    __slots__ = ("_after_cr", "_data", "_name", "_pending")

    def __init__(self) -> None:
        #: The pieces of a line that has not ended: put together once, however many they are.
        self._pending: list[bytes] = []
        self._after_cr = False
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that this piece completes."""
        if self._after_cr and piece:
            self._after_cr = False
            if piece[:1] == b"\n":  # the second half of CRLF
                piece = piece[1:]
        if b"\r" in piece:  # a line ends with CRLF, LF or a lone CR
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *lines = piece.split(b"\n")
        self._pending.append(first)
        if lines:
            begun, self._pending = b"".join(self._pending), [lines.pop()]
            lines.insert(0, begun)
        events: list[Event] = []
        for line in lines:
            if not line:
                if self._name or self._data:
                    events.append(Event(self._name, b"\n".join(self._data)))
                    self._name, self._data = "", []
                continue
            field, _, value = line.partition(b":")
            if value[:1] == b" ":
                value = value[1:]
            if field == b"data":
                self._data.append(value)
            elif field == b"event":
                self._name = value.decode("utf-8", "replace")
        return events


class CallEvents:
    """The events of one response to ``/call`` (or ``/create_session``) so far."""

    __slots__ = ("_chunks", "_parser", "complete", "error", "last_piece", "task_id")

    def __init__(self) -> None:
        self._parser = EventParser()
        self._chunks: list[bytes] = []
        #: Time of the last piece, by ``time.monotonic``; None before the first.
        self.last_piece: float | None = None
        #: The id to fetch the result again by, once the server has named it.
        self.task_id: str | None = None
        #: The text of the ``error`` event.
        self.error: str | None = None
        #: Whether ``end`` or ``error`` has arrived: the stream is complete.
        self.complete = False

    def feed(self, piece: bytes) -> None:
        """Take a piece of the response."""
        self.last_piece = time.monotonic()
        for name, data in self._parser.feed(piece):
            if self.complete:
                return
            if name in ("chunk", "end"):
                self._chunks.append(data)
                self.complete = name == "end"
            elif name == "task_id":
                self.task_id = data.decode("utf-8", "replace")
            elif name == "error":
                self.error = data.decode("utf-8", "replace")
                self.complete = True

    @property
    def data(self) -> bytes:
        """The data of ``chunk`` and ``end``."""
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)

    def json(self) -> Any:
        """Return the data as a value. Raises ``ServerUnavailable`` where it is not JSON."""
        try:
            return read_json(self.data)
        except ValueError:
            raise unexpected_response("JSON in events") from None
