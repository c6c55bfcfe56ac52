"""Structured logs that never block the server.

A line is an event with fields; one that is written while a request is answered or a call runs has their ids. Requests
are not logged. A thread of its own writes the lines from a bounded queue: a terminal or pipe that is not read stalls
that thread and not the server. Lines that did not fit are counted.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import queue
import sys
from functools import partial
from typing import Any

from ors_server.settings import Settings
from ors_server.wire.request_ids import ids_of_context
from ors_server.worker import identity

__all__ = ["note", "start_logging", "warn"]

#: Characters that would move a terminal's cursor or colour what follows: clients' texts may have them.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class TextFormatter(logging.Formatter):
    """Formatter of ``time level event key=value …``, with a traceback on the next lines."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_quoted(value)}" for name, value in _fields(record).items())
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():7} {record.getMessage()}{fields}"
        text = f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
        return text.translate(_CONTROLS)


class JSONFormatter(logging.Formatter):
    """Formatter of one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _quoted(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(character in ' "=\n' for character in text) else text


class DroppingQueueHandler(logging.handlers.QueueHandler):
    """Put records in the queue, and drop them when it is full instead of waiting."""

    def __init__(self, records: queue.Queue[Any]) -> None:
        super().__init__(records)
        self._records = records
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self.dropped and not self._records.full():
                lost, self.dropped = self.dropped, 0
                note = logging.makeLogRecord({"name": "ors_server.telemetry.logs", "levelno": logging.WARNING})
                note.levelname, note.msg, note.lines = "WARNING", "log lines dropped", lost
                self._records.put_nowait(note)
            self._records.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.getMessage()  # the arguments may change before the thread formats them
        for name, value in ids_of_context().items():
            vars(record).setdefault(name, value)
        return record


def warn(settings: Settings, text: str) -> None:
    """Write a warning to stderr before the logs are started, as a line of their format."""
    if settings.log_format == "json":
        note(text, logging.WARNING)
    else:
        sys.stderr.write(f"Warning: {text}\n")


def note(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write a line of JSON to stderr before the logs are started."""
    record = logging.LogRecord("ors_server.serve", level, "", 0, event, None, None)
    vars(record).update(fields)
    sys.stderr.write(f"{JSONFormatter().format(record)}\n")


def _add_slot(slot: int, record: logging.LogRecord) -> bool:
    record.slot = slot
    return True


def start_logging(settings: Settings) -> logging.handlers.QueueListener:
    """Write the logs of this process to stderr as the settings say. ``stop()`` the listener to flush."""
    records: queue.Queue[Any] = queue.Queue(10_000)
    output = logging.StreamHandler(sys.stderr)
    worker = identity()
    if worker is not None:
        output.addFilter(partial(_add_slot, worker.slot))
    output.setFormatter(JSONFormatter() if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers = [DroppingQueueHandler(records)]
    root.setLevel(logging.WARNING)
    logging.getLogger("ors_server").setLevel(settings.log_level.upper())
    # The server logs its own start and end instead of uvicorn's.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(logging.WARNING)
    listener = logging.handlers.QueueListener(records, output)
    listener.start()
    return listener
