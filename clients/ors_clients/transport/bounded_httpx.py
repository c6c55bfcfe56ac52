"""Clients of httpx whose responses have a limit.

httpx itself reads a response of any size into memory. All other code of this project makes its clients here (ruff's
``banned-api`` in ``pyproject.toml``). Invariant: no request without ``stream=True`` takes more than
``ORS_RESPONSE_LIMIT`` bytes, decompressed. Code that streams a response counts its bytes itself, as ``read_body`` does.

Clients share the certificates that they trust: httpx reads them for each client, which takes 20 ms and more, also for
one that sends a single request without TLS.
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any

import httpx

from ors_clients.errors import ResponseTooLarge
from ors_clients.transport.base import response_limit

__all__ = ["BoundedAsyncClient", "BoundedClient", "read_body"]

#: Headers about the body as it was sent, which is not the body that was read.
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


class BoundedAsyncClient(httpx.AsyncClient):
    """``httpx.AsyncClient`` that raises ``ResponseTooLarge``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_with_certificates(options))

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request; read its response within the limit, unless ``stream`` leaves that to the caller."""
        response = await super().send(request, stream=True, **options)
        if stream:
            return response
        try:
            return _whole(response, await read_body(response, response_limit()))
        finally:
            await response.aclose()


class BoundedClient(httpx.Client):
    """``httpx.Client`` that raises ``ResponseTooLarge``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**_with_certificates(options))

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        """Send a request; read its response within the limit, unless ``stream`` leaves that to the caller."""
        response = super().send(request, stream=True, **options)
        if stream:
            return response
        try:
            body = _Body(response_limit())
            for part in response.iter_bytes():
                body.add(part)
            return _whole(response, body.joined())
        finally:
            response.close()


def _with_certificates(options: dict[str, Any]) -> dict[str, Any]:
    """Return a client's options with the shared certificates, unless it has a word of its own about TLS."""
    if not options.get("trust_env", True) or options.keys() & {"verify", "cert"}:
        return options
    places = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    return options | {"verify": _certificates(*places, http2=bool(options.get("http2")))}


@cache
def _certificates(*places: str | None, http2: bool) -> ssl.SSLContext:
    """Return httpx's own context. It reads the ``places`` from the environment; httpx sets the protocols of each."""
    return httpx.create_ssl_context()


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """Return the body of a response that is being streamed. Raises ``ResponseTooLarge`` after ``limit`` bytes."""
    body = _Body(limit)
    async for part in response.aiter_bytes():  # decompressed: a small body may be a large one
        body.add(part)
    return body.joined()


class _Body:
    """The parts of a body."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise ResponseTooLarge(self._limit)
        self._parts.append(part)

    def joined(self) -> bytes:
        return b"".join(self._parts)


def _whole(response: httpx.Response, body: bytes) -> httpx.Response:
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _OF_THE_WIRE]
    return httpx.Response(response.status_code, headers=headers, content=body, request=response.request)
