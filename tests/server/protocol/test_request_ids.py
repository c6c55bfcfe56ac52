"""The ids of requests, sessions and calls in log lines, and in responses."""

import asyncio
import logging
import queue
import re
from collections.abc import Generator
from typing import Any

import pytest

from ors_server import ToolOutput, tool
from ors_server.telemetry.logs import DroppingQueueHandler, JSONFormatter, TextFormatter
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Text, said
from tests.support.events import Reply, parse_events

log = logging.getLogger("an_authors_logger")


class Logging(Bare):
    @tool
    async def soon(self, params: Text) -> ToolOutput:
        log.warning("soon", extra={"text": params.text})
        return said()

    @tool(concurrent=True)
    def threaded(self, params: Text) -> ToolOutput:
        log.warning("threaded", extra={"text": params.text})
        return said()

    @tool
    async def slow(self) -> ToolOutput:
        await asyncio.sleep(0.1)
        log.warning("slow")
        return said()

    def get_prompt(self) -> Any:
        raise ValueError("no prompt")


@pytest.fixture
def records() -> Generator["queue.Queue[Any]"]:
    """Collect the log records of this process, as the server's thread gets them."""
    found: queue.Queue[Any] = queue.Queue()
    handler = DroppingQueueHandler(found)
    logging.getLogger().addHandler(handler)
    yield found
    logging.getLogger().removeHandler(handler)


def line(records: "queue.Queue[Any]", message: str) -> dict[str, Any]:
    """Take records until the one with this message; return its fields."""
    while True:
        record = records.get_nowait()
        if record.getMessage() == message:
            return {**vars(record), "_record": record}


def test_no_text_of_a_client_moves_the_terminals_cursor() -> None:
    record = logging.makeLogRecord({"msg": "a\x1b[2J\tb\r\nc\x9b", "path": "\x1b]0;x\x07", "levelname": "INFO"})
    assert TextFormatter().format(record).endswith(r"a\x1b[2J" + "\tb" + r"\x0d" + "\nc" + r"\x9b path=\x1b]0;x\x07")


async def test_lines_have_the_ids_of_their_request_session_and_call(serve: Serve, records: "queue.Queue[Any]") -> None:
    client = serve(Logging)
    sid = await client.open()
    response = await client.post("/call", {"name": "soon", "input": {"text": "a"}}, sid, x_request_id="run-7/step:1")
    reply = Reply(parse_events(response.content))
    found = line(records, "soon")
    assert (found["request"], found["sid"], found["call"]) == ("run-7/step:1", sid, reply.task_id)
    assert f"request=run-7/step:1 sid={sid} call={reply.task_id}" in TextFormatter().format(found["_record"])
    assert f'"call": "{reply.task_id}"' in JSONFormatter().format(found["_record"])

    replies = await asyncio.gather(*(client.call(sid, "threaded", {"text": str(number)}) for number in range(9)))
    lines = [line(records, "threaded") for _ in replies]
    assert {found["call"] for found in lines} == {reply.task_id for reply in replies}
    assert len({found["request"] for found in lines}) == 9


async def test_the_response_has_an_id_that_the_client_gave_or_the_log_has(
    serve: Serve, records: "queue.Queue[Any]"
) -> None:
    client = serve(Logging)
    sid = await client.open()
    assert "x-request-id" not in (await client.get("/health")).headers
    for path in ("/health", "/splits", "/nothing", "/v1/environments"):
        assert (await client.get(path, x_request_id="a-1")).headers["x-request-id"] == "a-1"
    body: dict[str, Any] = {"name": "slow", "input": {}}
    slow = await client.post("/call", body, sid, x_request_id="a-2")  # answered by a stream
    assert slow.headers["x-request-id"] == "a-2"
    assert line(records, "slow")["request"] == "a-2"
    failed = await client.get("/prompt", sid)
    assert failed.status_code == 500
    assert line(records, "environment failed")["request"] == failed.headers["x-request-id"]


@pytest.mark.parametrize("given", ["", " ", "two words", "x" * 129, 'a"b', "{}", "-a", "é"])
async def test_an_id_that_is_not_plain_is_replaced(serve: Serve, given: str) -> None:
    client = serve(Logging)
    response = await client.http.get("/health", headers=[(b"x-request-id", given.encode())])
    assert re.fullmatch(r"[0-9a-f]{16}", response.headers["x-request-id"])


async def test_maintenance_has_the_ids_of_no_request(serve: Serve, records: "queue.Queue[Any]") -> None:
    client = serve(Logging, session_ttl=0.2)
    await client.open(x_request_id="the-first")
    sessions: Any = client.app.sessions  # type: ignore[union-attr]
    sessions.maintenance = lambda: log.warning("maintained")
    for _ in range(200):
        await asyncio.sleep(0.02)
        if not records.empty():
            break
    assert "request" not in line(records, "maintained")
