"""The log never blocks the server: lines that its reader does not take in time are dropped and counted."""

import asyncio
import io
import json
import logging
import queue
import re
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr

import pytest

from ors_server import Settings
from ors_server.telemetry.logs import DroppingQueueHandler, start_logging
from tests.server.protocol.live import live_server
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE

logger = logging.getLogger("ors_server.tests")
#: More lines than the queue holds.
MANY = 12_000


class Stalled(io.StringIO):
    """A stream that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        self.released.wait(PATIENCE)
        return super().write(text)


@contextmanager
def stalled_output() -> Generator[Stalled]:
    """Replace standard error by a stream that blocks, and restore logging afterwards."""
    stream = Stalled()
    names = ("ors_server", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in names)]
    before = [(each, each.handlers, each.level, each.propagate) for each in loggers]
    try:
        with redirect_stderr(stream):
            yield stream
    finally:
        stream.released.set()
        for each, handlers, level, propagate in before:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_that_do_not_fit_are_dropped_and_counted(log_format: str) -> None:
    settings = Settings(log_format="json" if log_format == "json" else "text")
    with stalled_output() as output:
        listener = start_logging(settings)
        for number in range(MANY):
            logger.warning("event", extra={"number": number})
        output.released.set()
        end = time.monotonic() + PATIENCE
        while "number" not in output.getvalue() and time.monotonic() < end:
            threading.Event().wait(0.01)  # until the queue has space again
        logger.warning("after")
        listener.stop()
    lines = output.getvalue().splitlines()
    assert "after" in lines[-1]
    numbers = [int(found[1]) for line in lines if (found := re.search(r"number\"?[=:] ?(\d+)", line))]
    assert numbers == sorted(numbers)
    assert 1_000 <= len(numbers) < MANY
    lost = [
        json.loads(line)["lines"] if log_format == "json" else int(line.rpartition("lines=")[2])
        for line in lines
        if "log lines dropped" in line
    ]
    assert len(numbers) + sum(lost) == MANY


def test_the_count_starts_again_after_it_was_reported() -> None:
    records: queue.Queue[logging.LogRecord] = queue.Queue(3)
    handler = DroppingQueueHandler(records)
    told: list[object] = []
    for _ in range(2):
        for number in range(8):
            handler.handle(logging.makeLogRecord({"msg": f"line {number}", "levelno": logging.INFO}))
        while not records.empty():
            record = records.get()
            told += [vars(record)["lines"]] if record.getMessage() == "log lines dropped" else []
    handler.handle(logging.makeLogRecord({"msg": "last", "levelno": logging.INFO}))
    while not records.empty():
        record = records.get()
        told += [vars(record)["lines"]] if record.getMessage() == "log lines dropped" else []
    # Eight into a queue of three: five do not fit. Then the note occupies a place of its own, so six.
    assert told == [5, 6]


async def test_a_server_whose_log_is_not_read_keeps_responding() -> None:
    """A full pipe blocks only the thread that writes the log."""
    with live_server(unread_log=True) as server:
        client = Client(url=server.url)
        async with asyncio.timeout(PATIENCE), client.http:
            sid = await client.open()
            for _ in range(20):
                assert (await client.call(sid, "fail", {"size": 12_000})).names == ["task_id", "error"]
            assert (await client.get("/health")).status_code == 200
            assert (await client.call(sid, "count")).text == "0"
        server.process.kill()  # whether it could end by itself is another question
