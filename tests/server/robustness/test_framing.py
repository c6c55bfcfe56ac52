"""Any result reaches both SDKs' clients unaltered: their own parsers read the server's output.

The references' framing loses white space in the same parsers, so these tests can detect a loss.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ors_server.wire.sse import LINE_LIMIT, error_frame, result_frames, task_frame
from tests.server.robustness.parsers import PARSERS, read_by

#: Everything that Python counts as white space, which includes every line end of `str.splitlines`.
SPACES = (
    "".join(chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()) + "\v\f\x1c\x1d\x1e\x85\u2028\u2029"
)
#: One character of each length in UTF-8, characters that JSON escapes, and the characters of escapes.
OTHERS = 'a0é€😀\\"/\x00\x1f\x7f\u200b\ufeff\ud7ff\ue000{}[]:,u'
ALPHABET = st.sampled_from(SPACES + OTHERS)
EVERY_SDK = pytest.mark.parametrize("sdk", list(PARSERS))
quick = settings(max_examples=60, deadline=None)


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def result_of(events: list[tuple[str, str]]) -> Any:
    """Return the result that a client reads from a call's events."""
    first, *between, last = [name for name, _ in events]
    assert (first, last) == ("task_id", "end")
    assert set(between) <= {"chunk"}
    return json.loads("".join(data for _, data in events[1:]))


def as_the_references(data: bytes) -> bytes:
    """Frame as the references do: chunks of 4,096 characters, cut anywhere. Source: decision 14."""
    text = data.decode()
    pieces = [text[start : start + 4096] for start in range(0, len(text), 4096)]
    names = ["chunk"] * (len(pieces) - 1) + ["end"]
    return b"".join(
        f"event: {name}\r\ndata: {piece}\r\n\r\n".encode() for name, piece in zip(names, pieces, strict=True)
    )


@st.composite
def around_the_cuts(draw: st.DrawFn) -> str:
    """Draw a text with unusual characters where a long result may be cut; JSON's own bytes come before it."""
    parts: list[str] = []
    size = 0
    for border in range(1, draw(st.integers(1, 3)) + 1):
        odd = draw(st.text(ALPHABET, min_size=1, max_size=12))
        plain = max(0, border * LINE_LIMIT - size - draw(st.integers(0, 60)))
        parts += ["x" * plain, odd]
        size += plain + len(odd.encode())
    return "".join(parts) + draw(st.text(ALPHABET, max_size=5))


@EVERY_SDK
@quick
@given(text=st.one_of(st.text(ALPHABET, max_size=50), st.text(max_size=50), around_the_cuts()))
@example(text=SPACES * 3000)
@example(text=" " * (3 * LINE_LIMIT))
@example(text="\N{IDEOGRAPHIC SPACE}" * LINE_LIMIT)
@example(text="😀" * LINE_LIMIT)
@example(text="")
def test_every_text_is_read_unaltered(sdk: str, text: str) -> None:
    value = {"ok": True, "output": {"blocks": [{"text": text}]}}
    assert result_of(read_by(sdk, task_frame("id") + result_frames(compact(value)))) == value


@EVERY_SDK
@quick
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(ALPHABET, max_size=8), inner, max_size=5),
        max_leaves=30,
    ),
    times=st.integers(0, 3000),
)
def test_every_value_is_read_unaltered(sdk: str, value: Any, times: int) -> None:
    assert result_of(read_by(sdk, task_frame("id") + result_frames(compact([value] * times)))) == [value] * times


@EVERY_SDK
@quick
@given(text=around_the_cuts(), sizes=st.lists(st.integers(100, 9000), min_size=1, max_size=20))
def test_it_does_not_matter_how_the_network_cuts(sdk: str, text: str, sizes: list[int]) -> None:
    body, pieces, start = task_frame("id") + result_frames(compact(text)), list[bytes](), 0
    while start < len(body):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(body[start : start + size])
        start += size
    assert result_of(read_by(sdk, *pieces)) == text


@pytest.mark.combinations
@EVERY_SDK
@pytest.mark.parametrize("character", SPACES, ids=lambda character: f"U+{ord(character):04X}")
def test_white_space_of_each_kind_at_every_place_around_a_cut(sdk: str, character: str) -> None:
    """One event stream after another, to one parser: three spaces at each distance from the cut."""
    wanted = ["x" * (LINE_LIMIT - distance) + character * 3 + "y" for distance in range(14)]
    body = b"".join(task_frame("id") + result_frames(compact(text)) for text in wanted)
    events, got = read_by(sdk, body), list[str]()
    for name, data in events:
        if name == "task_id":
            got.append("")
        else:
            got[-1] += data
    assert [json.loads(text) for text in got] == wanted


@EVERY_SDK
@quick
@given(
    message=st.text(st.one_of(ALPHABET, st.characters(codec="utf-8")), max_size=300),
    times=st.sampled_from([1, 1, 1000]),
)
def test_an_error_is_one_event_that_every_client_reads(sdk: str, message: str, times: int) -> None:
    (event,) = read_by(sdk, error_frame(message * times))
    assert event[0] == "error"
    if times == 1:
        # These parsers strip leading white space of lines, and treat every line end as a newline.
        assert event[1] == "\n".join(line.lstrip() for line in message.splitlines())


@EVERY_SDK
def test_the_references_framing_loses_white_space(sdk: str) -> None:
    """A text like an indented program: the clients read other characters, or invalid JSON."""
    value = {"text": "".join(f"    line {number}\n" for number in range(2000))}
    lost = 0
    for offset in range(14):
        read = result_of(read_by(sdk, task_frame("id") + as_the_references(compact({"offset": "x" * offset, **value}))))
        lost += read != {**value, "offset": "x" * offset}
    assert lost > 5


def test_the_list_of_spaces_is_python_s() -> None:
    assert {unicodedata.category(character) for character in SPACES} == {"Zs", "Zl", "Zp", "Cc"}
    assert all(character in SPACES for character in "\N{NO-BREAK SPACE}\u2028\u2029\u3000\x85\u1680\u205f")
