"""Whole HTTP responses that a gateway gives itself."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from ors_server.errors import OrsError
from ors_server.wire.encoding import encode

__all__ = ["error_response", "events_response", "own_response", "platform_response", "text_response"]


def own_response(
    status: int, content: Any, headers: Sequence[tuple[str, str]] = (), *, close: bool = False, head: bool = False
) -> bytes:
    """Encode a JSON response; with ``head`` as the answer to HEAD, without its body."""
    body = encode(content)
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"date: {formatdate(usegmt=True)}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{name.lower()}: {value}" for name, value in headers),
        *(["connection: close"] if close else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if head else body)


def text_response(text: bytes, content_type: str) -> bytes:
    """Encode a response of text."""
    head = (
        f"HTTP/1.1 200 OK\r\ndate: {formatdate(usegmt=True)}\r\ncontent-type: {content_type}\r\n"
        f"cache-control: no-store\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def error_response(error: OrsError) -> bytes:
    """Encode an error as a worker would."""
    return own_response(error.status, {"detail": error.detail}, error.headers)


def platform_response(error: OrsError) -> bytes:
    """Encode an error under ``/v1``, where ``orwd`` reads ``message`` and other clients read ``detail``."""
    return own_response(error.status, {"detail": error.detail, "message": error.text}, error.headers)


def events_response(frames: bytes) -> bytes:
    """Encode a complete event stream."""
    head = (
        f"HTTP/1.1 200 OK\r\ndate: {formatdate(usegmt=True)}\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        f"cache-control: no-cache\r\nx-accel-buffering: no\r\nconnection: keep-alive\r\n"
        f"content-length: {len(frames)}\r\n\r\n"
    )
    return head.encode() + frames
