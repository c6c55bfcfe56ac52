"""Objects that must not accumulate while a server runs, and objects that must not outlive its event loop."""

from __future__ import annotations

import asyncio
import gc

from ors_server import Server, Settings
from tests.server.robustness.asgi import request
from tests.server.robustness.counting_server import Counting
from tests.support.events import Reply, parse_events

CREATION = {"split": "train", "index": 0}


def call(milliseconds: int) -> dict[str, object]:
    return {"name": "count", "input": {"text": "x", "milliseconds": milliseconds}}


def test_one_server_on_successive_event_loops() -> None:
    """A release of sse-starlette that openreward pins ties every stream of a process to its first event loop."""

    async def play(server: Server, sid: str) -> None:
        assert (await request(server.app, "POST", "/create", sid, CREATION)).status == 200
        for _ in range(2):
            answer = await request(server.app, "POST", "/call", sid, call(30))
            assert Reply(parse_events(answer.body)).names == ["task_id", "end"]

    server = Server([Counting], settings=Settings(stream_after=0.005))
    for number in range(3):
        asyncio.run(play(server, f"on loop {number}"))
        asyncio.run(play(Server([Counting], settings=Settings(stream_after=0.005)), f"another on loop {number}"))


async def test_a_long_call_leaves_nothing_behind_at_each_comment() -> None:
    """Servers of openreward and ors-sdk leave a task at each poll of a running call, every 10 s."""
    server = Server([Counting], settings=Settings(stream_after=0.005, heartbeat=0.005))
    assert (await request(server.app, "POST", "/create", "sid", CREATION)).status == 200
    calling = asyncio.create_task(request(server.app, "POST", "/call", "sid", call(1000)))
    await asyncio.sleep(0.1)
    early = len(asyncio.all_tasks())
    await asyncio.sleep(0.6)
    assert len(asyncio.all_tasks()) <= early + 1
    answer = await calling
    assert answer.body.count(b": ping") > 20
    await server.sessions.close()


async def test_requests_for_unknown_sessions_leave_nothing() -> None:
    """The references store the time of each such request, and later end a session that never began."""
    server = Server([Counting])

    async def ask(count: int) -> None:
        for number in range(count):
            for method, path, body in (
                ("GET", "/prompt", None),
                ("POST", "/call", call(0)),
                ("POST", "/ping", None),
                ("POST", "/delete", None),
            ):
                status = (await request(server.app, method, path, f"never {number}", body)).status
                assert status == (200 if path == "/delete" else 404)

    await ask(50)
    gc.collect()
    before = len(gc.get_objects())
    await ask(500)
    gc.collect()
    assert len(server.sessions) == 0
    assert len(gc.get_objects()) < before + 500
    await server.sessions.close()


async def test_ended_sessions_leave_their_reason_and_no_more() -> None:
    server = Server([Counting], settings=Settings(tombstones=100))

    async def episodes(count: int) -> None:
        for number in range(count):
            sid = f"episode {number}"
            assert (await request(server.app, "POST", "/create", sid, CREATION)).status == 200
            assert (await request(server.app, "POST", "/call", sid, call(0))).status == 200
            assert (await request(server.app, "POST", "/delete", sid)).status == 200

    await episodes(250)
    gc.collect()
    before = len(gc.get_objects())
    await episodes(500)
    gc.collect()
    assert len(gc.get_objects()) < before + 200
    assert server.sessions.results.bytes_in_memory == 0
    await server.sessions.close()
