"""Heads that are recognised by comparing bytes: what fits one is what the parser would have read."""

from __future__ import annotations

import random

import pytest

from ors_server.cluster.gateway.proxy.framing import BadRequest, Head, read_head, read_response_head
from ors_server.cluster.gateway.proxy.templates import RequestTemplate, Templates

SID = b"0000094c-da97-8294-ab73-cbba9374649e"
#: Heads with places for the id and the length, and one for a key or a trace.
ORDERS = {
    "id first": b"POST /env/call HTTP/1.1\r\nHost: a\r\nX-Session-ID: %b\r\nAccept: */*\r\nContent-Length: %b\r\n\r\n",
    "length first": b"POST /env/call HTTP/1.1\r\ncontent-length:%b\r\nHost: a\r\nx-session-id: %b\r\nA: b\r\n\r\n",
    "with a key": b"POST /call HTTP/1.1\r\nIdempotency-Key: k-1\r\nX-Session-ID: %b\r\ncontent-length: %b\r\n\r\n",
    "traced": b"POST /call HTTP/1.1\r\nX-Session-ID: %b\r\ntraceparent: 00-a-b-01\r\nContent-Length: %b\r\n\r\n",
}


def head_of(order: str, sid: bytes, length: bytes) -> bytes:
    return ORDERS[order] % ((length, sid) if order == "length first" else (sid, length))


def template_of(head: bytes, credential: bytes = b"") -> RequestTemplate | None:
    return Templates().make(read_head(head), credential)


@pytest.fixture(params=list(ORDERS))
def order(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_requests_of_other_sessions_with_other_bodies_fit(order: str) -> None:
    template = template_of(head_of(order, SID, b"2"))
    assert template is not None
    for sid in (SID, SID[::-1], b"short", b""):
        for body in (b"", b"{}", b"\r\n\r\n" * 300):
            data = head_of(order, sid, b"%d" % len(body)) + body
            assert template.session_of(data) == sid
            assert template.session_of(data[:-1]) is None
            assert template.session_of(data + b"P") is None


def test_calls_with_other_keys_and_traces_fit() -> None:
    template = template_of(head_of("with a key", SID, b"2"))
    assert template is not None
    data = head_of("with a key", SID, b"2") + b"{}"
    assert template.session_of(data.replace(b"k-1", b"another key-25")) == SID
    for wrong in (b"", b"k\x00", b"k\n", b"k\nA: b", b"k\x7f", b"k\r", b"k\r\nTransfer-Encoding: chunked"):
        assert template.session_of(data.replace(b"k-1", wrong)) == (None if wrong else SID)


@pytest.mark.parametrize("length", [b"", b"-2", b"+2", b"2 ", b"0x2", b"2_", b"\xb2", b"2, 2", b"0" * 5000 + b"2"])
def test_what_is_not_a_length_does_not_fit(order: str, length: bytes) -> None:
    template = template_of(head_of(order, SID, b"2"))
    assert template is not None
    assert template.session_of(head_of(order, SID, length) + b"{}") is None


@pytest.mark.parametrize(
    "lines",
    [
        b"POST /call HTTP/1.1\r\nX-Session-ID: %b",
        b"POST /call HTTP/1.0\r\nConnection: keep-alive\r\nX-Session-ID: %b\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nConnection: close\r\nX-Session-ID: %b\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nExpect: 100-continue\r\nX-Session-ID: %b\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nUpgrade: h2c\r\nX-Session-ID: %b\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nX-ORS-Gateway:\r\nX-Session-ID: %b\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nX-Session-ID: %b\r\nTransfer-Encoding: chunked",
        b"POST /call HTTP/1.1\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nX-Session-ID: a\r\nX-Session-ID: %b\r\nContent-Length: 2",
        b"POST /call HTTP/1.1\r\nA: " + b"x" * 3000 + b"\r\nX-Session-ID: %b\r\nContent-Length: 2",
    ],
)
def test_requests_that_are_passed_on_in_another_way_make_no_template(lines: bytes) -> None:
    assert template_of(lines.replace(b"%b", SID) + b"\r\n\r\n") is None


def test_whatever_fits_is_read_alike(order: str) -> None:
    """Cut, doubled, and changed bytes: a request that fits is one whole request of this head, by the parser too."""
    draw = random.Random(order)
    base = head_of(order, SID, b"2")
    template = template_of(base)
    assert template is not None
    others = {name: values for name, values in read_head(base).headers.items() if name not in _VARIABLE}
    fitted = 0
    for _ in range(3000):
        data = bytearray(base + b"{}")
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(data))
            piece = draw.choice(
                [b"", b"0", b"\r", b"\n", b"\r\n", b" ", b":", b"\r\n\r\n", bytes([draw.randrange(256)])]
            )
            data[at : at + draw.randrange(2)] = piece
        sid = template.session_of(bytes(data))
        if sid is None:
            continue
        fitted += 1
        end = data.index(b"\r\n\r\n") + 4
        try:
            head: Head = read_head(bytes(data[:end]))
        except BadRequest:
            # Bytes that no value may have; ids that name a worker have none of them.
            assert set(sid) - set(range(0x20, 0x7F)), bytes(data)
            continue
        assert [value.strip() for value in head.values(b"x-session-id")] == [sid.strip()]
        assert head.body.take(bytes(data[end:])) == len(data) - end
        assert head.body.complete
        assert {name: values for name, values in head.headers.items() if name not in _VARIABLE} == others
    assert fitted > 30


_VARIABLE = (b"x-session-id", b"content-length", b"idempotency-key", b"traceparent")


def test_a_key_stays_with_its_connection() -> None:
    """The time that a comparison takes could tell how far two keys agree."""
    templates = Templates()
    head = read_head(head_of("id first", SID, b"2"))
    assert templates.make(head, b"key") is not None
    assert templates.find(head.data) is None
    assert templates.make(head, b"") is templates.find(head.data) is not None


def test_targets_that_clients_choose_fill_no_memory() -> None:
    templates = Templates()
    for number in range(5000):
        templates.make(read_head(head_of("id first", SID, b"2").replace(b"/env/", b"/%d/" % number)), b"")
    assert len(templates._by_line) <= 1024  # pyright: ignore[reportPrivateUsage] - what a hostile client could fill


RESPONSE = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: %d\r\ncontent-type: a\r\n\r\n%b"


def test_responses_of_other_lengths_fit() -> None:
    template = template_of(head_of("id first", SID, b"2"))
    assert template is not None
    template.learn(RESPONSE % (2, b""))
    assert template.response is not None
    for body in (b"", b"ok", b"\r\n\r\n" * 300):
        data = RESPONSE % (len(body), body)
        assert template.response.fits(data)
        assert read_response_head(data[: len(data) - len(body)], b"POST").status == 200
        for other in (data[:-1], data + b"H", data.replace(b"200", b"401"), data.replace(b"today", b"later")):
            assert not template.response.fits(other)
    assert not template.response.fits(RESPONSE.replace(b"%d", b"0" * 5000) % b"")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_responses_without_a_length_make_no_template(head: bytes) -> None:
    template = template_of(head_of("id first", SID, b"2"))
    assert template is not None
    template.learn(head)
    assert template.response is None
