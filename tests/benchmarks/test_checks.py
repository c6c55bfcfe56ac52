"""Checks of responses: right ones count, and wrong ones do not, whatever is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ors_benchmarks.harness.checks import WrongAnswer, check_call, read_events, read_json, read_session_id

from ors_server.wire.sse import result_frames, task_frame


def stream(*events: tuple[str, str]) -> bytes:
    return "".join(f"event: {name}\r\ndata: {data}\r\n\r\n" for name, data in events).encode()


def output(text: str = "noop:1", reward: float | None = 0.0, finished: bool = False, **more: Any) -> str:
    block = {"text": text, "detail": None, "type": "text"}
    return json.dumps(
        {"ok": True, "output": {"blocks": [block], "metadata": None, "reward": reward, "finished": finished}} | more
    )


def test_events_of_any_form() -> None:
    body = b": ping\r\n\r\nevent: task_id\ndata: 1\n\nevent: end\r\ndata: a\r\ndata:  b\r\ndata\r\n\r\n"
    assert read_events(body) == [("task_id", b"1"), ("end", b"a\n b")]


def test_a_right_call() -> None:
    check_call(stream(("task_id", "1"), ("end", output())), "noop:1")
    check_call(stream(("task_id", "1"), ("end", output("hello", 1.0, True))), "hello", 1.0, True)


def test_a_right_call_in_pieces() -> None:
    text = output("x" * 10_000)
    pieces = [text[start : start + 4096] for start in range(0, len(text), 4096)]
    events = [("task_id", "1"), *(("chunk", piece) for piece in pieces[:-1]), ("end", pieces[-1])]
    check_call(b": ping\r\n\r\n" + stream(*events), "x" * 10_000)


def test_what_this_server_frames() -> None:
    for text in ("noop:1", "y " * 50_000):
        check_call(task_frame("1") + result_frames(output(text).encode()), text)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        stream(("end", output())),
        stream(("task_id", ""), ("end", output())),
        stream(("task_id", "1")),
        stream(("task_id", "1"), ("error", "ValueError: no")),
        stream(("task_id", "1"), ("end", output()), ("end", output())),
        stream(("task_id", "1"), ("surprise", output()), ("end", "")),
        stream(("task_id", "1"), ("end", output()[:-1])),
        stream(("task_id", "1"), ("end", "[]")),
        stream(("task_id", "1"), ("end", '{"ok":false,"error":"no"}')),
        stream(("task_id", "1"), ("end", output(ok=False))),
        stream(("task_id", "1"), ("end", output("noop:2"))),
        stream(("task_id", "1"), ("end", output(reward=None))),
        stream(("task_id", "1"), ("end", output(reward=1.0))),
        stream(("task_id", "1"), ("end", output(finished=True))),
        stream(("task_id", "1"), ("end", '{"ok":true,"output":{"blocks":[],"reward":0.0,"finished":false}}')),
    ],
)
def test_a_wrong_call(body: bytes) -> None:
    with pytest.raises(WrongAnswer):
        check_call(body, "noop:1")


def test_session_ids() -> None:
    assert read_session_id(b"event: task_id\r\ndata: abc\r\n\r\nevent: end\r\ndata: \r\n\r\n") == "abc"
    for wrong in (b"", b'{"sid":"abc"}', stream(("task_id", ""), ("end", "")), stream(("end", ""))):
        with pytest.raises(WrongAnswer):
            read_session_id(wrong)


def test_json() -> None:
    assert read_json(b'{"a":[1]}') == {"a": [1]}
    with pytest.raises(WrongAnswer):
        read_json(b"<html>")
