"""Event parser of the tests: reads responses to ``/call`` and ``/score_group`` as both SDKs do.

The parser follows the rules of both SDKs' own parsers (protocol, section 2), faults included. A stream that passes here
reaches real clients unaltered.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["LONGEST_LINE", "Event", "EventParser", "Reply", "parse_events"]

#: The longest line the older clients read, in bytes.
LONGEST_LINE = 64 * 1024


class Event(NamedTuple):
    """One server-sent event as both SDKs deliver it."""

    name: str
    data: str


class EventParser:
    """Both SDKs' parser: splits on newlines only, strips all leading white space of a value, requires event names."""

    def __init__(self) -> None:
        self.comments = 0
        self._pending = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events this chunk completes. Raises ``ValueError`` where a real client would fail."""
        events: list[Event] = []
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if len(self._pending) > LONGEST_LINE:
            raise ValueError("line too long")
        for raw in lines:
            if len(raw) > LONGEST_LINE:
                raise ValueError("line too long")
            line = raw.decode("utf-8", "ignore").rstrip("\r\n")
            if not line:
                if self._name:
                    events.append(Event(self._name, "\n".join(self._data)))
                self._name, self._data = "", []
            elif line.startswith(":"):
                self.comments += 1
            else:
                field, value = line.split(":", 1)
                if field == "event":
                    self._name = value.lstrip()
                elif field == "data":
                    self._data.append(value.lstrip())
        return events


def parse_events(body: bytes) -> list[Event]:
    """Return the events of a whole response."""
    return EventParser().feed(body)


class Reply:
    """The events of the response to a ``/call`` or ``/score_group``."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)

    @property
    def names(self) -> list[str]:
        """The events' names, in order."""
        return [event.name for event in self.events]

    @property
    def task_id(self) -> str:
        """The call's id, which must come first."""
        assert self.events[0].name == "task_id", self.events
        return self.events[0].data

    @property
    def result(self) -> dict[str, Any]:
        """The JSON of all ``chunk`` events and the ``end`` event together."""
        assert self.names[-1] == "end", self.events
        return json.loads("".join(event.data for event in self.events if event.name in ("chunk", "end")))

    @property
    def output(self) -> dict[str, Any]:
        """The tool's output; the call must have run."""
        result = self.result
        assert result["ok"] is True, result
        return result["output"]

    @property
    def text(self) -> str:
        """The text of the output's blocks."""
        return "".join(block["text"] for block in self.output["blocks"])

    @property
    def error(self) -> str:
        """The text of the ``error`` event, which must be the last."""
        assert self.names[-1] == "error", self.events
        return self.events[-1].data

    @property
    def reason(self) -> str:
        """The reason why the call ran no tool."""
        result = self.result
        assert result["ok"] is False, result
        return result["reason"]
