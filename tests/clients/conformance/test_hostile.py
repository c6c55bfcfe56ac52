"""Hostile servers: the check ends in time, with bounded memory, and prints no control character of theirs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable
from random import Random
from typing import Any

import pytest
from ors_clients.conformance.check import Report, check
from ors_clients.conformance.generator import Generator, NoInput
from ors_clients.conformance.report import as_json, print_report
from ors_clients.conformance.rule import Outcome, plain
from ors_clients.conformance.rules import SERVER_RULES
from ors_clients.conformance.schemas import Schema, SchemaTooCostly
from ors_clients.conformance.subject import Subject
from ors_clients.conformance.wire import LARGEST, Wire
from pydantic import BaseModel, Field
from rich.console import Console

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
ESCAPES = "\x1b]0;title\x07\x1b[31mred\u202e\u2028 [bold]markup[/bold]"


@contextlib.asynccontextmanager
async def hostile(handler: Handler) -> AsyncGenerator[str]:
    """Serve each connection by a handler that gets the path."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        faults = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, ValueError)
        with contextlib.suppress(*faults):
            head = await reader.readuntil(b"\r\n\r\n")
            await handler(head.split()[1], writer)
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
        writer.transport.abort()  # where the wait was cancelled, too

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for _ in range(10):  # turns in which a connection that was just accepted comes to its handler
            await asyncio.sleep(0)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()
        await asyncio.sleep(0)  # in which an aborted connection is closed


async def endless(path: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"\r\n")
    while True:
        writer.write(b"event: task_id\r\ndata: 1\r\n\r\n" * 100)
        await writer.drain()
        await asyncio.sleep(0)


async def gigabyte(path: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"content-length: 1073741824\r\n\r\n")
    for _ in range(1024):
        writer.write(b"x" * 1024 * 1024)
        await writer.drain()


async def redirects(path: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 308 Again\r\ncontent-length: 0\r\nlocation: %b/x\r\n\r\n" % path)


async def redirects_elsewhere(path: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 308 There\r\ncontent-length: 0\r\nlocation: http://[::bad/%b\r\n\r\n" % path)


async def slow(path: bytes, writer: asyncio.StreamWriter) -> None:
    for byte in OK + b"x-more: " + b"x" * 100_000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


async def garbage(path: bytes, writer: asyncio.StreamWriter) -> None:
    body = b"\xff\x00no colon\r\n\r\ndata\r\n: \x1b[2J\r\nevent\r\n" * 50
    writer.write(OK + b"content-length: %d\r\n\r\n" % len(body) + body)


async def not_http(path: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x1b[31m\x00\xff SSH-2.0\r\n\r\n")


async def header_flood(path: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"y" * 1000) for n in range(5000)) + b"\r\n")
    await writer.drain()


async def nested(path: bytes, writer: asyncio.StreamWriter) -> None:
    body = b'[{"tools":' * 50_000
    writer.write(OK + b"content-length: %d\r\n\r\n" % len(body) + body)


async def escapes(path: bytes, writer: asyncio.StreamWriter) -> None:
    value: Any = {"detail": ESCAPES}
    if path.endswith(b"list_environments"):
        value = [ESCAPES]
    elif path.endswith(b"tools"):
        value = {"tools": [{"name": ESCAPES, "description": ESCAPES, "input_schema": {"type": ESCAPES}}]}
    elif path.endswith(b"splits"):
        value = [{"name": ESCAPES, "type": ESCAPES}]
    elif path.endswith(b"tasks"):
        value = {"num_tasks": 1, "tasks": [{ESCAPES: ESCAPES}], "env_name": ESCAPES}
    body = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nserver: \x1b[31m\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


async def reported(handler: Handler, time_limit: float = 4.0) -> Report:
    async with hostile(handler) as url:
        wire = Wire(url, timeout=0.2)
        try:
            return await check(Subject(wire), SERVER_RULES, target=url, time_limit=time_limit)
        finally:
            await wire.close()


def printed(report: Report) -> str:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=True, color_system="standard", highlight=False)
    print_report(console, report)
    return file.getvalue()


@pytest.mark.parametrize(
    "handler",
    [endless, gigabyte, redirects, redirects_elsewhere, slow, garbage, not_http, header_flood, nested, escapes],
    ids=lambda handler: handler.__name__,
)
async def test_a_hostile_server_fails_in_time(handler: Handler) -> None:
    start = time.monotonic()
    report = await reported(handler, 1.0)
    assert time.monotonic() - start < 30  # of a busy machine; a second beside the last rule
    assert report.failed
    assert not any(result.outcome is Outcome.ERROR for result in report.results), [
        result for result in report.results if result.outcome is Outcome.ERROR
    ]
    json.dumps(as_json(report))


async def test_a_gigabyte_is_not_kept() -> None:
    tracemalloc.start()
    try:
        async with hostile(gigabyte) as url:
            wire = Wire(url, timeout=20)
            answer = await wire.get("/health")
            await wire.close()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(answer.body) == LARGEST
    assert "cut" in answer.problem
    assert peak < 8 * LARGEST


async def test_escapes_do_not_reach_the_terminal() -> None:
    report = await reported(escapes)
    texts = [printed(report), json.dumps(as_json(report), ensure_ascii=False)]
    assert any(result.outcome is Outcome.FAILED for result in report.results)
    for text in texts:
        for forbidden in ("\x1b]", "\x07", "\u202e", "\u2028", "title\x07"):
            assert forbidden not in text
    assert "[bold]markup" in texts[0]  # the server's markup is text


def test_texts_are_plain_and_short() -> None:
    assert plain(ESCAPES) == "]0;title [31mred [bold]markup[/bold]"
    assert len(plain("x" * 10_000_000)) == 301
    assert plain("a\tb\nc\x00d\ud800e") == "a b c d e"


# --- schemas -------------------------------------------------------------------------------------


def laughs(levels: int) -> dict[str, Any]:
    """Return a small schema whose references are exponentially many."""
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)
    }
    definitions[f"d{levels}"] = {"type": "object"}
    return {"type": "object", "allOf": [{"$ref": "#/$defs/d0"}], "$defs": definitions}


@pytest.mark.parametrize(
    "schema",
    [
        laughs(60),
        {"type": "object", "$ref": "#"},
        {"type": "object", "allOf": [{"$ref": "#"}]},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "http://127.0.0.1:1/schema"}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "minLength": 10**9}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "array", "minItems": 10**9}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"pattern": "^(x+x+)+y$", "minLength": 5}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"enum": ["x" * 60], "pattern": "^(x+x+)+y$"}}},
        {"type": "object", "required": ["x" * 60], "patternProperties": {"^(x+x+)+y$": {}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "pattern": "("}}},
        {"type": "object", "required": ["a"], "properties": {"a": {"type": "number", "multipleOf": 5e-324}}},
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"type": "integer", "minimum": 10**4000, "maximum": 1}},
        },
        {"type": "object", "$schema": []},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "string"},
        [],
        "text",
    ],
    ids=[
        "exponential",
        "itself",
        "a part of itself",
        "elsewhere",
        "long text",
        "long list",
        "slow pattern",
        "slow pattern for a choice",
        "slow pattern for a name",
        "no pattern",
        "tiny step",
        "huge bound",
        "no name of a meta-schema",
        "nothing fits",
        "no object",
        "a list",
        "a text",
    ],
)
def test_a_hostile_schema_gives_no_input(schema: object) -> None:
    start = time.monotonic()
    with pytest.raises(NoInput):
        Generator(Random(0)).input(schema)
    assert time.monotonic() - start < 20


def test_references_are_bounded_where_a_value_is_checked() -> None:
    with pytest.raises(SchemaTooCostly):
        Schema(laughs(60)).fits({})
    assert Schema(laughs(3)).fits({})


class Leaf(BaseModel):
    kind: str = Field(min_length=3, max_length=5)
    size: int = Field(ge=3, lt=7)


class Tree(BaseModel):
    name: str
    leaves: list[Leaf] = Field(min_length=1, max_length=2)
    below: Tree | None = None
    weight: float | None = Field(default=None, gt=0, le=2)
    choice: dict[str, int] = Field(default_factory=dict[str, int])
    either: Leaf | int = 0
    flag: bool


@pytest.mark.parametrize("smallest", [False, True])
def test_generated_input_fits_the_model(smallest: bool) -> None:
    generator = Generator(Random(1))
    made = [generator.input(Tree.model_json_schema(), smallest=smallest) for _ in range(25)]
    for value in made:
        Tree.model_validate(value)
    assert made == [Generator(Random(1)).input(Tree.model_json_schema(), smallest=smallest), *made[1:]]
    assert len({json.dumps(value) for value in made}) > 10
