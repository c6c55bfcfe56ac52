"""uvicorn's HTTP protocol with two additions.

A limit on the size of a request's head, which httptools does not have: 431 above it. And the connection's state in the
request's scope, so that a handler can tell at no cost whether its client is still there (protocol 0.1, the rule of
attaching to a lost call).
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ors_server.exchange import CONNECTION

__all__ = ["http_protocol"]


def http_protocol(max_headers: int) -> type[HttpToolsProtocol]:
    """The protocol class for ``uvicorn.Config(http=…)``; ``max_headers`` in bytes."""

    class OrsHttpProtocol(HttpToolsProtocol):
        _head_size = 0

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._head_size = 0

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value) + 4)
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            scope: Any = self.scope
            scope[CONNECTION] = self.cycle

        def send_400_response(self, msg: str) -> None:
            # The parser reports an exception out of a callback as any other parse error; this tells them apart.
            if self._head_size <= max_headers:
                super().send_400_response(msg)
                return
            detail = (
                b'{"detail":"The request head is larger than %d bytes. Send fewer or smaller headers, or raise '
                b'ORS_MAX_HEADERS on the server"}' % max_headers
            )
            self.transport.write(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(detail), detail)
            )
            self.transport.close()

        def _count(self, size: int) -> None:
            self._head_size += size
            if self._head_size > max_headers:
                raise ValueError("request head over the limit")

    return OrsHttpProtocol
