"""Both SDKs' own parsers of event streams, behind types: the originals of ``tests.support.events``."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

__all__ = ["PARSERS", "read_by"]

#: The longest line in bytes that aiohttp reads, in releases that clients may have.
_LIMIT = 2**16

#: The modules whose `_parse_sse_events` the clients use.
PARSERS = {"openreward": "openreward.api._session.http", "ors-sdk": "ors.client._http"}


async def _lines(pieces: Sequence[bytes]) -> AsyncGenerator[bytes]:
    """Yield lines as aiohttp passes them to the parsers: each up to its newline, within aiohttp's limit."""
    pending = b""
    for piece in pieces:
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if len(line) >= _LIMIT:
                raise ValueError("line too long")
            yield line + b"\n"
    if pending:
        yield pending


async def _events(sdk: str, pieces: Sequence[bytes]) -> list[tuple[str, str]]:
    parse: Any = getattr(importlib.import_module(PARSERS[sdk]), "_parse_sse_events")  # noqa: B009 - a private name
    events: AsyncIterator[tuple[str, str]] = parse(SimpleNamespace(content=_lines(pieces)))
    return [event async for event in events]


def read_by(sdk: str, *pieces: bytes) -> list[tuple[str, str]]:
    """Return the events that a client of this SDK gets from the pieces of a response's body. Raises its errors."""
    return asyncio.run(_events(sdk, pieces))
