"""Requests beside processes that are killed: responses that never come, and streams that are open at the kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from tests.support.events import Reply, parse_events
from tests.support.waiting import PATIENCE

__all__ = ["CUT", "answered", "streamed"]

#: What a client gets where the process that read its request has died. A refused connection is another error.
CUT = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


def answered(send: Callable[[], httpx.Response]) -> httpx.Response:
    """Return the first response; send the request again where the connection was cut.

    A gateway never repeats a request: one that was on its way to a worker that died ends without a response.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return send()
        except CUT:
            assert time.monotonic() < end, "every connection was cut"
            time.sleep(0.02)


def streamed(
    client: httpx.Client, path: str, body: Any, headers: Mapping[str, str], begun: Callable[[], object]
) -> Reply:
    """Return the events of a response; call ``begun`` once with the first of them, when the work is under way.

    Raises ``httpx.TransportError`` where the stream is cut.
    """
    content = b""
    with client.stream("POST", path, json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        for part in response.iter_bytes():
            if not content:
                begun()
            content += part
    return Reply(parse_events(content))
