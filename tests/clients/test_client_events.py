"""The event parser: its output equals the sent bytes, however they were split."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ors_clients.errors import ServerUnavailable
from ors_clients.transport.sse import CallEvents, Event, EventParser
from sse_starlette import ServerSentEvent

from ors_server.wire.encoding import encode
from ors_server.wire.sse import error_frame, result_frames, task_frame

#: Text of a stream's line: line ends, and characters that parsers mistake for line ends.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["  indented", "\t", " ", "\u3000x", "a\u2028b", "\x85", "\x00", ": no comment", "data: x", "é" * 7]
)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def parse(pieces: Sequence[bytes]) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(
    st.lists(st.tuples(st.sampled_from(["chunk", "end", "error", "task_id"]), TEXT), max_size=6),
    st.sampled_from(["\r\n", "\n", "\r"]),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_any_stream_in_any_pieces(events: list[tuple[str, str]], end: str, places: list[int]) -> None:
    lines: list[str] = [": ping - now", ""]
    expected: list[Event] = []
    for name, text in events:
        parts = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        lines += [f"event: {name}", *(f"data: {part}" for part in parts), "id: 7", ": between", ""]
        expected.append(Event(name, "\n".join(parts).encode()))
    stream = end.join([*lines, ""]).encode()
    assert parse([stream]) == expected
    assert parse(cut(stream, places)) == expected
    assert parse([stream[at : at + 1] for at in range(len(stream))]) == expected


@given(TEXT, st.integers(1, 3))
def test_only_the_formats_own_space_is_taken_away(text: str, spaces: int) -> None:
    line = text.replace("\r", "").replace("\n", "")
    stream = f"event: end\ndata:{' ' * spaces}{line}\n\n".encode()
    assert parse([stream]) == [Event("end", (" " * (spaces - 1) + line).encode())]


@pytest.mark.parametrize("stream", [b"event: end\ndata:\n\n", b"event: end\ndata\n\n", b"event: end\n\n"])
def test_an_event_without_data_counts(stream: bytes) -> None:
    """`/create_session` ends with such an event."""
    assert parse([stream]) == [Event("end", b"")]


def test_a_long_line_is_joined_once() -> None:
    """The pieces are not joined at each of them, of which 16 MiB have hundreds."""
    parser, pieces = EventParser(), [b"event: end\ndata: ", *[b"x" * 100] * 50]
    assert [parser.feed(piece) for piece in pieces] == [[]] * 51
    assert parser._pending == [b"data: ", *pieces[1:]]  # pyright: ignore[reportPrivateUsage]
    assert parser.feed(b"y\n\n") == [Event("end", b"x" * 5000 + b"y")]


def test_an_event_that_has_not_ended_does_not_count() -> None:
    assert parse([b"event: end\r\ndata: {}\r\n"]) == []


JSON: st.SearchStrategy[Any] = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@given(JSON, st.integers(0, 60_000), st.lists(st.integers(0, 100_000), max_size=4))
def test_the_framing_of_our_server(value: Any, padding: int, places: list[int]) -> None:
    answer = {"long": " \u3000" * padding, "value": value}
    stream = task_frame("t7") + result_frames(encode(answer))
    events = CallEvents()
    for piece in cut(stream, places):
        assert not events.complete or piece in (b"", b"\n")  # a lone CR ends a line, too
        events.feed(piece)
    assert (events.task_id, events.complete, events.json()) == ("t7", True, answer)


@given(TEXT, TEXT)
def test_errors_of_our_server(first: str, second: str) -> None:
    message = f"ValueError: {first}\n  {second}"
    events = CallEvents()
    events.feed(error_frame(message))
    # Lines in a wider sense than the format's, as the server splits them.
    assert events.error == "\n".join(message.splitlines())


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 20_000])
def test_the_framing_of_the_reference_servers(size: int) -> None:
    """Both split every 4,096 characters and frame with sse-starlette; white space follows many of the cuts."""
    text = json.dumps({"ok": True, "text": "".join(f"        line {number}\n" for number in range(size // 8))})
    pieces = [text[at : at + 4096] for at in range(0, len(text), 4096)]
    frames = [ServerSentEvent(data="abc", event="task_id").encode()]
    frames += [ServerSentEvent(data=piece, event="chunk").encode() for piece in pieces[:-1]]
    frames.append(ServerSentEvent(data=pieces[-1], event="end").encode())
    assert any(piece[0].isspace() for piece in pieces) or size < 8000
    events = CallEvents()
    for frame in frames:
        events.feed(frame)
    assert events.data.decode() == text


def test_invalid_json_is_the_servers_fault() -> None:
    events = CallEvents()
    events.feed(b"event: end\ndata: <html>\n\n")
    with pytest.raises(ServerUnavailable, match="not JSON"):
        events.json()


def test_nothing_counts_after_the_end() -> None:
    events = CallEvents()
    events.feed(b"event: end\ndata: 1\n\nevent: end\ndata: 2\n\nevent: error\ndata: no\n\n")
    assert (events.data, events.error) == (b"1", None)
