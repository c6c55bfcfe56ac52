"""The seam between the client and what carries its requests.

A ``Transport`` sends one request and returns its response, or raises. It neither retries nor knows
sessions: whether a lost request may be sent again is decided by the callers
(``connection``, ``sessions``). For that ``ConnectionLost`` says whether any of the request can have reached the
server (``sent``), and whether it was lost on a kept connection that the server had closed
(``stale``), as servers close idle ones.

``SocketTransport`` (``sockets``) is the default. ``HttpxTransport`` (``httpx_transport``) has the features of
httpx: proxies, HTTP/2, other authentication. ``ApplicationTransport`` (``asgi``) calls an ASGI application
in this process, which is the local mode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ors_clients.errors import ConfigurationError, DeadlineExceeded

__all__ = ["ConnectionLost", "Headers", "OutOfTime", "Request", "Response", "Transport", "response_limit"]

#: Bytes of a response, of an event stream in all, that a client takes; ORS_RESPONSE_LIMIT.
_LIMIT = 256 * 2**20


class ConnectionLost(Exception):
    """No complete response came. Internal: callers of the client see a ``ClientError``."""

    def __init__(self, reason: str, *, sent: bool, stale: bool = False) -> None:
        super().__init__(reason)
        #: Whether any byte of the request can have reached the server.
        self.sent = sent
        #: Whether the connection had been kept from an earlier request and gave no byte for this one.
        self.stale = stale


class OutOfTime(DeadlineExceeded):
    """The request's deadline came first."""

    def __init__(self) -> None:
        super().__init__("The server did not answer in time", "Raise the client's timeout, or look at the server.")


class Headers:
    """Some header lines, encoded once and used for many requests. Their ``repr`` shows no value.

    Raises ``ConfigurationError`` for a value with control characters.
    """

    __slots__ = ("encoded", "items")

    def __init__(self, items: Iterable[tuple[str, str]]) -> None:
        self.items = tuple(items)
        for name, value in self.items:
            if not value.isprintable() and not value.replace("\t", "").isprintable():
                raise ConfigurationError(f"The value for the header {name} holds control characters", "Remove them.")
        self.encoded = "".join([f"{name}: {value}\r\n" for name, value in self.items]).encode()

    def __repr__(self) -> str:
        return f"<Headers {', '.join(name for name, _ in self.items)}>"


def response_limit() -> int:
    """Return the most bytes of a response. Raises ``ConfigurationError`` for a setting that is not a number."""
    text = os.environ.get("ORS_RESPONSE_LIMIT")
    if not text:
        return _LIMIT
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(f"ORS_RESPONSE_LIMIT={text!r} is not a number of bytes", "Write it as 268435456.")
    return int(text)


@dataclass(slots=True)
class Request:
    """One request; ``target`` is the path as it goes on the wire."""

    method: Literal["GET", "POST"]
    target: str
    headers: Sequence[Headers]
    body: bytes = b""
    #: When to give up, by ``time.monotonic``.
    deadline: float | None = None
    #: How long, in seconds, a kept connection may have been idle to be used for this.
    longest_idle: float = 60.0
    #: Seconds within which the response has to begin, or the connection counts as lost; None: it may take its time.
    first_byte: float | None = None
    #: Bytes after which the response is cut (``ResponseTooLarge``).
    limit: int = field(default_factory=response_limit)

    def __repr__(self) -> str:
        return f"<{self.method} {self.target}>"


@dataclass(slots=True)
class Response:
    """A whole response. Names of headers are in lower case. ``body`` is empty where it went to ``on_data``."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Transport(Protocol):
    """Carries requests; used from any event loop, also from several."""

    #: Whether other threads may use it: sessions are then kept alive from one of their own.
    threads: bool

    async def exchange(self, request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        """Send a request and wait for its response.

        With ``on_data``, the body of a 200 that is an event stream goes there as it comes, and may pause for at most a
        minute. Raises ``ConnectionLost``, ``OutOfTime`` and ``ResponseTooLarge``.
        """
        ...

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        ...
