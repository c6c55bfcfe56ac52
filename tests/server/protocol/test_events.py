"""Section 2: framing of results, from which the parsers of both SDKs restore the exact bytes."""

import asyncio
import sys
from typing import Any

import pytest
from pydantic import BaseModel

from ors_server import TextBlock, ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.support.environments import Bare, Echo, said
from tests.support.events import LONGEST_LINE, parse_events
from tests.support.waiting import PATIENCE

#: Every character of str.isspace(); a parser that strips white space may strip any of them.
SPACES = [chr(number) for number in range(0x3001) if chr(number).isspace()]


class Amount(BaseModel):
    text: str
    times: int = 1


def patient(proceed: asyncio.Event) -> type[Bare]:
    """Return an environment whose tool waits for ``proceed``."""

    class Patient(Bare):
        @tool
        async def wait(self) -> ToolOutput:
            await proceed.wait()
            return said("done")

    return Patient


class Loud(Echo):
    """Outputs of any size, at once or after a delay."""

    @tool
    async def repeat(self, params: Amount) -> ToolOutput:
        return said(params.text * params.times)

    @tool
    async def late(self, params: Amount) -> ToolOutput:
        await asyncio.sleep(0.12)
        return said(params.text * params.times)

    @tool
    async def fail(self, params: Amount) -> ToolOutput:
        raise ValueError(params.text * params.times)


async def test_a_small_result_is_task_id_then_end(serve: Serve) -> None:
    client = serve(Loud)
    sid = await client.open()
    response = await client.call_response(sid, "echo", {"text": "x"})
    assert [event.name for event in parse_events(response.content)] == ["task_id", "end"]
    task_id = parse_events(response.content)[0].data
    assert len(task_id) == 32
    assert response.content.startswith(f"event: task_id\r\ndata: {task_id}\r\n\r\nevent: end\r\ndata: {{".encode())
    assert response.content.endswith(b"}\r\n\r\n")
    assert response.headers["content-length"] == str(len(response.content))


@pytest.mark.parametrize("name", ["repeat", "late"])
async def test_the_headers_of_an_event_stream(serve: Serve, name: str) -> None:
    client = serve(Loud)
    sid = await client.open()
    async with client.stream("/call", {"name": name, "input": {"text": "x"}}, sid) as stream:
        assert (await stream.reply()).text == "x"
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-cache"
        assert stream.headers["connection"] == "keep-alive"
        assert stream.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("name", ["repeat", "late"])
async def test_a_long_result_comes_in_chunks(serve: Serve, name: str) -> None:
    """6.4 pitfall 7: no line over 64 KiB; chunk … chunk, end, and nothing lost."""
    client = serve(Loud)
    sid = await client.open()
    for times in (4096, 32_000, 33_000, 100_000, 1_000_000):
        response = await client.call_response(sid, name, {"text": "y", "times": times})
        events = parse_events(response.content)
        assert [event.name for event in events] == ["task_id", *["chunk"] * (len(events) - 2), "end"]
        assert (len(events) > 2) is (times > 32_500), times
        assert max(len(line) for line in response.content.split(b"\n")) < LONGEST_LINE
        reply = await client.call(sid, name, task_id=events[0].data)
        assert reply.text == "y" * times


@pytest.mark.parametrize("name", ["repeat", "late"])
async def test_every_line_ends_with_crlf_and_no_data_starts_with_white_space(serve: Serve, name: str) -> None:
    client = serve(Loud)
    sid = await client.open()
    response = await client.call_response(sid, name, {"text": "a \u00a0\u3000\n\t", "times": 30_000})
    # Byte by byte and not by ``parse_events``, which strips the white space in question.
    lines = response.content.split(b"\n")
    assert all(line.endswith(b"\r") for line in lines[:-1])
    assert lines[-1] == b""
    data = [line[6:].decode() for line in lines if line.startswith(b"data: ")]
    assert len(data) > 4
    assert not any(line[0].isspace() for line in data)
    assert all(b":" in line for line in lines if line.strip())


async def test_white_space_at_the_cuts_is_not_lost(serve: Serve) -> None:
    """6.4 pitfall 7, "data corruption bug in the wild": both clients strip leading white space of a line."""
    client = serve(Loud)
    sid = await client.open()
    for unit in (" ", "    def f(x):\n", "\u00a0", "\u3000", "é ", "𝄞 ", "\\ ", '" ', "\u2028\u0085"):
        for offset in range(4):
            text = "x" * offset + unit * (100_000 // len(unit))
            assert (await client.call(sid, "echo", {"text": text})).text == text, (unit, offset)


async def test_each_kind_of_space_survives_around_a_cut(serve: Serve) -> None:
    client = serve(Loud)
    sid = await client.open()
    for space in SPACES:
        text = space * 40_000
        assert (await client.call(sid, "echo", {"text": text})).text == text, ascii(space)


async def test_no_line_separator_appears_raw(serve: Serve) -> None:
    """Parsers based on str.splitlines() would split the line there."""
    client = serve(Loud)
    sid = await client.open()
    response = await client.call_response(sid, "echo", {"text": "a\u2028b\u2029c\u0085d\x1ce\x0bf\x0cg"})
    assert len(response.content.decode().splitlines()) == response.content.count(b"\r\n")
    assert parse_events(response.content)[-1].name == "end"


async def test_a_slow_call_opens_its_stream_at_once(serve: Serve) -> None:
    """Protocol 0.1 and 6.4 pitfall 8: head and task_id go out after about 50 ms, long before the result."""
    proceed = asyncio.Event()

    client = serve(patient(proceed))
    sid = await client.open()
    started = asyncio.get_running_loop().time()
    async with client.stream("/call", {"name": "wait", "input": {}}, sid) as stream:
        first = await stream.event()
        assert first.name == "task_id"
        assert asyncio.get_running_loop().time() - started < 1.0
        proceed.set()
        assert (await stream.reply()).text == "done"


async def test_a_call_with_a_key_is_answered_at_once_where_it_ends_soon(serve: Serve) -> None:
    """Its client finds it by the key, so it need not know its id; without one it has to, as early as can be."""
    proceed = asyncio.Event()
    client = serve(patient(proceed), stream_after=0.05, heartbeat=60)
    sid = await client.open()
    calls = [
        asyncio.create_task(client.post("/call", {"name": "wait", "input": {}}, sid, **headers))
        for headers in ({"idempotency_key": "one"}, {})
    ]
    await asyncio.sleep(0.2)
    proceed.set()
    keyed, other = await asyncio.gather(*calls)
    assert (keyed.status_code, other.status_code) == (200, 200)
    assert ("content-length" in keyed.headers, "content-length" in other.headers) == (True, False)


async def test_a_call_that_ends_while_its_task_id_is_sent(serve: Serve) -> None:
    """A client that reads slowly may leave any time between the stream's first event and the wait for the result."""
    proceed = asyncio.Event()

    client = serve(patient(proceed), stream_after=0.01)
    sid = await client.open()
    async with client.stream("/call", {"name": "wait", "input": {}}, sid, stuck=True) as stream:
        await asyncio.sleep(0.1)
        proceed.set()
        await asyncio.sleep(0.05)
        stream.unstick()
        reply = await stream.reply()
        assert reply.names == ["task_id", "end"]
        assert reply.text == "done"


async def test_an_open_stream_holds_no_headers(serve: Serve) -> None:
    """They would take more memory than the stream, and have the client's key."""
    proceed, opened = asyncio.Event(), asyncio.Event()

    client = serve(patient(proceed), stream_after=0.01)
    sid = await client.open()
    key = b"a key of %d bytes" % 17
    headers = [(b"x-session-id", sid.encode()), (b"x-api-key", key)]
    messages = [{"type": "http.request", "body": b'{"name":"wait","input":{}}', "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message.get("body"):
            opened.set()

    scope = {"type": "http", "method": "POST", "path": "/patient/call", "query_string": b"", "headers": headers}
    before = sys.getrefcount(key)
    app: Any = client.app
    request = asyncio.create_task(app(scope, receive, send))
    async with asyncio.timeout(PATIENCE):
        await opened.wait()
        assert sys.getrefcount(key) == before
        proceed.set()
        await request


async def test_calls_that_end_just_when_their_streams_open(serve: Serve) -> None:
    """Whichever comes first, every client gets its result."""

    class Timed(Bare):
        @tool(concurrent=True)
        async def last(self, params: Amount) -> ToolOutput:
            await asyncio.sleep(params.times / 1000)
            return said(params.text)

    client = serve(Timed, stream_after=0.03)
    sid = await client.open()
    async with asyncio.timeout(PATIENCE):
        calls = [client.call(sid, "last", {"text": str(number), "times": number % 60}) for number in range(200)]
        replies = await asyncio.gather(*calls)
    assert [reply.text for reply in replies] == [str(number) for number in range(200)]


async def test_an_open_stream_is_kept_alive_by_comments(serve: Serve) -> None:
    """6.4 pitfall 8: a byte at least every 30 s; the interval is a setting, 10 s by default."""
    proceed = asyncio.Event()

    client = serve(patient(proceed), heartbeat=0.05)
    sid = await client.open()
    async with client.stream("/call", {"name": "wait", "input": {}}, sid) as stream:
        assert (await stream.event()).name == "task_id"
        await asyncio.sleep(0.4)
        proceed.set()
        assert (await stream.reply()).text == "done"
        assert stream.parser.comments >= 3


async def test_a_tool_error_is_an_error_event_after_task_id(serve: Serve) -> None:
    """Section 2: HTTP 200, the text in as many data lines as it has lines."""
    client = serve(Loud)
    sid = await client.open()
    reply = await client.call(sid, "fail", {"text": "first line\nsecond line\n\nfourth"})
    assert reply.names == ["task_id", "error"]
    assert reply.error == "ValueError: first line\nsecond line\n\nfourth"
    # ors clients continue after it.
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


@pytest.mark.parametrize("text", ["", "x" * 300_000, "𝄞" * 100_000, "a\rb\r\nc", "\ud800 lone"])
async def test_any_error_text_stays_within_what_clients_read(serve: Serve, text: str) -> None:
    """6.4 pitfall 7 holds for error events, too: at a line over 64 KiB the client fails without the error's text."""
    message = text

    class Failing(Bare):
        @tool
        async def fail(self) -> ToolOutput:
            raise ValueError(message)

    client = serve(Failing)
    sid = await client.open()
    reply = await client.call(sid, "fail")
    assert reply.error.startswith("ValueError")
    assert len(reply.error) > min(len(text), 1000)


async def test_the_result_is_compact_json_in_utf_8(serve: Serve) -> None:
    client = serve(Loud)
    sid = await client.open()
    response = await client.call_response(sid, "echo", {"text": "é✓"})
    assert '"text":"é✓"'.encode() in response.content


async def test_an_image_block_passes_unchanged(serve: Serve) -> None:
    from ors_server import ImageBlock

    class Camera(Bare):
        @tool
        async def look(self) -> ToolOutput:
            picture = ImageBlock(data="aGk=" * 50_000, mimeType="image/png", detail={"n": 1})
            return ToolOutput(blocks=[TextBlock(text="here", detail={"k": [1, None]}), picture])

    client = serve(Camera)
    sid = await client.open()
    assert (await client.call(sid, "look")).output["blocks"] == [
        {"text": "here", "detail": {"k": [1, None]}, "type": "text"},
        {"data": "aGk=" * 50_000, "mimeType": "image/png", "detail": {"n": 1}, "type": "image"},
    ]
