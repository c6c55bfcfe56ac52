"""Reading of what routing needs beside the headers: the target, texts, and a field of the body."""

from __future__ import annotations

import json
import urllib.parse
from functools import lru_cache
from typing import Any

import httptools

from ors_server.cluster.gateway.proxy.framing import BadRequest

__all__ = ["path_of", "query_of", "text_in", "text_of"]

#: Targets of requests whose paths are remembered: sessions of one environment use a few.
_TARGETS = 1024
#: Longest targets that are remembered, in bytes: clients choose them.
_LONGEST = 256


def text_in(body: bytes, field: str) -> str | None:
    """Return a text of a JSON object; None where it has none."""
    try:
        text: Any = json.loads(body)[field]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # the worker refuses what is not a request
    return text if isinstance(text, str) else None


def query_of(target: bytes) -> dict[str, str]:
    """Return the parameters of a request's target."""
    raw: bytes = httptools.parse_url(target).query or b""
    return dict(urllib.parse.parse_qsl(raw.decode("latin-1"), keep_blank_values=True))


def text_of(value: bytes) -> str:
    """Return the text of a header's value."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def path_of(target: bytes) -> str:
    """Return the path of a request's target as the application of a worker looks at it. Raises ``BadRequest``."""
    return _read_path(target) if len(target) > _LONGEST else _remembered_path(target)


@lru_cache(_TARGETS)
def _remembered_path(target: bytes) -> str:
    return _read_path(target)


def _read_path(target: bytes) -> str:
    try:
        raw: bytes = httptools.parse_url(target).path or b"/"
        path = raw.decode("ascii")
    except (httptools.HttpParserError, UnicodeDecodeError):
        raise BadRequest("the target of the request is not a path") from None
    if "%" in path:
        path = urllib.parse.unquote(path)
    return "/" + path.strip("/")
