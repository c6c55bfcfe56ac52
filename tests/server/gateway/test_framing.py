import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ors_server.cluster.gateway.proxy.framing import (
    BadRequest,
    ChunkedBody,
    FixedBody,
    read_head,
    read_response_head,
    unchunked,
    with_close,
)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at some positions."""
    positions = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[start:stop] for start, stop in itertools.pairwise(positions)]


def chunked(chunks: list[bytes], trailer: bytes) -> bytes:
    return (
        b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
        + b"0\r\n"
        + trailer
        + b"\r\n"
    )


def taken(body: FixedBody | ChunkedBody, parts: list[bytes]) -> int:
    """Feed parts until the body is complete; return how many bytes belong to it."""
    size = 0
    for part in parts:
        count = body.take(part)
        size += count
        if body.complete:
            return size
        assert count == len(part)
    return size


@given(
    st.lists(st.binary(max_size=300), max_size=5), st.sampled_from([b"", b"a: b\r\n"]), st.lists(st.integers(0, 2000))
)
def test_a_chunked_body_ends_at_its_last_byte_wherever_it_is_cut(
    chunks: list[bytes], trailer: bytes, cuts: list[int]
) -> None:
    data = chunked(chunks, trailer)
    body = ChunkedBody()
    assert taken(body, cut(data + b"GET / HTTP/1.1\r\n", cuts)) == len(data)
    assert body.complete


@given(st.binary(max_size=50), st.lists(st.integers(0, 80)))
def test_a_body_of_known_length_leaves_what_follows(data: bytes, cuts: list[int]) -> None:
    body = FixedBody(len(data))
    assert body.complete is (not data)
    if data:
        assert taken(body, cut(data + b"POST", cuts)) == len(data)


@pytest.mark.parametrize(
    "data", [b"x\r\n", b"-1\r\n", b"0x5\r\n", b"\r\n", b"5\n", b"2\r\nabc\r\n", b"f" * 2000, b" 5\r\n", b"1\r\na\n\n"]
)
def test_what_is_not_chunks_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        ChunkedBody().take(data)


@pytest.mark.parametrize(
    "lines",
    [
        "GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked",
        "GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2",
        "GET / HTTP/1.1\r\ncontent-length: +1",
        "GET / HTTP/1.1\r\ntransfer-encoding: gzip, chunked",
        "GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "GET / HTTP/1.1\r\ncontent-length : 1",
        "GET / HTTP/1.1\r\n x: folded",
        "GET / HTTP/9.9",
        "GET /",
        "\x16\x03\x01",
    ],
)
def test_a_head_whose_end_is_doubtful_is_refused(lines: str) -> None:
    with pytest.raises(BadRequest):
        read_head(lines.encode() + b"\r\n\r\n")


def test_a_head_is_read_and_loses_only_named_headers() -> None:
    data = b"POST /call?x=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Session-ID: s\r\nContent-Length: 7\r\n\r\n"
    head = read_head(data)
    assert (head.method, head.target, head.version, head.keep_alive) == (b"POST", b"/call?x=1", "1.1", False)
    assert head.values(b"x-session-id") == [b"s"]
    assert head.persistent() == data.replace(b"Connection: close\r\n", b"")
    assert head.body.take(b"12345678") == 7


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_client_says_whether_its_connection_stays(head: bytes, keep_alive: bool) -> None:
    assert read_head(head).keep_alive is keep_alive


def test_a_response_announces_the_end_of_its_connection() -> None:
    plain, kept = (
        b"HTTP/1.1 200 OK\r\na: b\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\na: b\r\n\r\nbody",
    )
    assert with_close(plain) == with_close(kept) == b"HTTP/1.1 200 OK\r\nconnection: close\r\na: b\r\n\r\nbody"


@pytest.mark.parametrize(
    ("head", "method", "complete", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"GET", True, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\n", b"GET", False, False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", b"HEAD", True, True),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"GET", False, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", True, True),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"GET", None, False),
    ],
)
def test_the_head_of_a_response(head: bytes, method: bytes, complete: bool | None, keep_alive: bool) -> None:
    read = read_response_head(head, method)
    assert (None if read.body is None else read.body.complete) is complete
    assert read.keep_alive is keep_alive


def test_a_body_of_many_small_chunks_takes_no_longer_than_its_length() -> None:
    """Copying the rest for each chunk took 5 s for a body of a megabyte, and 20 minutes for the largest."""
    chunks = 160_000
    begun = time.process_time()
    assert unchunked(b"1\r\nx\r\n" * chunks + b"0\r\n\r\n") == b"x" * chunks
    assert time.process_time() - begun < 2
