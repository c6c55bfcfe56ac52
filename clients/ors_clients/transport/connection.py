"""Address, credentials and retry policy of one server.

Every request goes through here. There are three kinds of failure. A server that says "not yet" (429, or 503 with
``X-Backend-State``) has done nothing: the client waits for it until the request's deadline, and counts no failure.
A lost connection or another 502 to 504 is tried again a few times, with growing pauses, where that cannot do anything
twice: a gateway may say so of a request that it had passed on. Every other response becomes an error
(``error_responses``).
"""

from __future__ import annotations

import json
import os
import random
import time
from asyncio import sleep
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from ors_clients.api_keys import server_key
from ors_clients.errors import ClientError, ConfigurationError, DeadlineExceeded, ServerUnavailable
from ors_clients.models import unexpected_response
from ors_clients.transport.base import ConnectionLost, Headers, Request, Response, Transport
from ors_clients.transport.error_responses import FINAL, detail_of, refusal, retry_after
from ors_clients.transport.json_codec import read_json
from ors_clients.transport.trace_context import trace_headers
from ors_server import __version__

__all__ = ["Connection", "RetryPolicy", "dumps", "is_retryable_refusal"]

#: Seconds to leave a busy server alone for that does not say how long.
_PAUSE = 2.0
#: Seconds to leave it alone for at least, whatever it says: at first, and doubled each time up to ``_PAUSE``.
_SHORTEST_PAUSE = 0.1
#: Seconds before the first and before the later tries after a failure.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 10.0
#: A lost request that is sent again is sent over a connection that cannot be stale.
_FRESH = -1.0
#: What a gateway answers, who may have passed the request on, and a server for a while.
_GATEWAY_ERRORS = (502, 503, 504)
#: Redirects followed for one request; reference servers send bare paths to their first environment.
_REDIRECTS = 4


class Connection:
    """To one server. Used by every session of a client, from any event loop.

    ``timeout`` is in seconds. Raises ``ConfigurationError`` for an address, a key or a number that cannot be used.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
        retries: int,
        transport: Transport | Literal["httpx"] | None,
    ) -> None:
        base_url = base_url or os.environ.get("ORS_URL") or os.environ.get("OPENREWARD_SESSION_URL")
        self.url = (base_url or "http://127.0.0.1:8080").rstrip("/")
        if api_key is None:
            api_key = server_key(self.url)
        if not timeout > 0 or retries < 0:
            raise ConfigurationError(f"timeout={timeout:g}, retries={retries}", "Both have to be positive.")
        #: Seconds that anything but a tool call may take, with all its retries.
        self.timeout = timeout
        self.retries = retries
        self.secrets: Collection[str] = (api_key,) if api_key else ()
        try:
            address = urlsplit(self.url)
            host, port = address.hostname, address.port
        except ValueError:
            host, port, address = None, None, urlsplit("")
        if address.scheme not in ("http", "https") or not host:
            raise ConfigurationError(
                f"{self.url!r} is not a server's address" if "@" not in self.url else "The server's address is none",
                "Write it as http://host:port.",
            )
        if address.username is not None or address.query or address.fragment:
            raise ConfigurationError(
                "The server's address holds a user, a query or a fragment",
                "Write it as http://host:port, and give a key as api_key.",
            )
        self._prefix = address.path
        #: Where paths have moved to.
        self._moved: dict[str, str] = {}
        if transport is None:
            from ors_clients.transport.sockets import SocketTransport

            secure = address.scheme == "https"
            transport = SocketTransport(host, port or (443 if secure else 80), secure=secure)
        elif isinstance(transport, str):
            from ors_clients.transport.httpx_transport import HttpxTransport

            if transport != "httpx":
                raise ConfigurationError(f"transport={transport!r}", "Give 'httpx', or a Transport.")
            transport = HttpxTransport(f"{address.scheme}://{address.netloc}")
        self.transport: Transport = transport
        lines = [
            ("User-Agent", f"ors-clients/{__version__}"),
            ("Accept", "text/event-stream, application/json"),
            ("Accept-Encoding", "identity"),  # events are read as they come
        ]
        if api_key:
            lines.append(("X-API-Key", api_key))
        self._get_headers = Headers(lines)
        self._post_headers = Headers([*lines, ("Content-Type", "application/json")])

    def __repr__(self) -> str:
        return f"<Connection to {self.url}>"

    # --- requests ----------------------------------------------------------------------------

    def retry_policy(self) -> RetryPolicy:
        """Return the retry policy of one request that is not a tool call."""
        return RetryPolicy(self, time.monotonic() + self.timeout)

    async def once(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: bytes = b"",
        headers: Sequence[Headers] = (),
        *,
        deadline: float | None = None,
        longest_idle: float = 60.0,
        first_byte: float | None = None,
        on_data: Callable[[bytes], None] | None = None,
    ) -> Response:
        """Send one request, and follow it where the server points. Raises ``ConnectionLost``, ``DeadlineExceeded``."""
        own = self._get_headers if method == "GET" else self._post_headers
        target = self._moved.get(path)
        request = Request(
            method,
            target or self._prefix + path,
            (own, *headers, *trace_headers()),
            body,
            deadline,
            longest_idle,
            first_byte,
        )
        response = await self.transport.exchange(request, on_data)
        if response.status in (307, 308):
            lasting = True
            for _ in range(_REDIRECTS):
                location = response.headers.get("location", "")
                if response.status not in (307, 308) or not location.startswith("/") or location.startswith("//"):
                    break  # another server is never followed to: it would get the key and the secrets
                lasting = lasting and response.status == 308
                if lasting:
                    self._moved[path] = location
                request.target = location
                response = await self.transport.exchange(request, on_data)
        return response

    async def json(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: Any = None,
        headers: Sequence[Headers] = (),
        *,
        session: bool = False,
        secrets: Collection[str] = (),
        policy: RetryPolicy | None = None,
        lost_is_final: bool = False,
    ) -> Any:
        """Send a request that may be sent again, and read the answer.

        With ``session``, a 404 or 410 means that the session is gone. With ``lost_is_final``, a request that may have
        arrived is not repeated: ``ConnectionLost`` is raised. Raises every error but those of tool calls.
        """
        content = b"" if body is None else dumps(body)
        policy = policy or self.retry_policy()
        longest_idle = 60.0
        while True:
            try:
                response = await self.once(
                    method, path, content, headers, deadline=policy.deadline, longest_idle=longest_idle
                )
            except ConnectionLost as lost:
                longest_idle = _FRESH
                if lost.sent and lost_is_final:
                    raise
                await policy.after_loss(lost)
                continue
            if response.status == 200:
                try:
                    return read_json(response.body)
                except ValueError:
                    raise unexpected_response("JSON") from None
            await policy.after_refusal(response, session=session, secrets=secrets)

    def error(self, response: Response, *, session: bool, secrets: Collection[str] = ()) -> ClientError:
        """Return the caller's error for a response that is not a success."""
        return refusal(response, self.url, session=session, secrets=(*self.secrets, *secrets))

    def unreachable(self, lost: ConnectionLost, tries: int) -> ServerUnavailable:
        """Return the error after the last try."""
        return ServerUnavailable(
            f"No answer from {self.url} ({lost}; tried {tries} times)",
            "Is the server running, and is this its address?",
        )


class RetryPolicy:
    """The failures of one request so far, and whether it is tried again.

    Failures are bounded by the client's ``retries``, waiting by the deadline. A tool call has none: what it waits for
    a server that will not take it is bounded by the client's ``timeout``.
    """

    def __init__(self, connection: Connection, deadline: float | None = None) -> None:
        self._connection = connection
        self.deadline = deadline
        #: Failures since the last progress.
        self._failures = 0
        #: Refusals since the last progress, and when the first of them came.
        self._refusals = 0
        self._refused_since: float | None = None

    def progressed(self) -> None:
        """Forget earlier failures: the request was under way for a while."""
        self._failures = self._refusals = 0
        self._refused_since = None

    async def after_loss(self, lost: ConnectionLost) -> None:
        """Wait before the next try. Raises ``ServerUnavailable`` after the last."""
        if lost.stale:
            return  # the server had closed an idle connection: not a failure, and the next connection is new
        await self._failed(self._connection.unreachable(lost, self._failures + 1))

    async def after_refusal(self, response: Response, *, session: bool, secrets: Collection[str] = ()) -> None:
        """Wait before the next try, where the response leaves hope; else raise its error.

        For what may be sent twice, and for what certainly did nothing (``is_retryable_refusal``).
        """
        error = self._connection.error(response, session=session, secrets=secrets)
        if is_retryable_refusal(response):
            pause = retry_after(response)
            floor = min(_PAUSE, _SHORTEST_PAUSE * 2 ** min(self._refusals, 10))
            self._refusals += 1
            await self._pause(_PAUSE if pause is None else max(pause, floor), error)
            return
        if response.status not in _GATEWAY_ERRORS or detail_of(response).startswith(FINAL):
            raise error
        await self._failed(error, retry_after(response))

    async def _failed(self, error: ClientError, pause: float | None = None) -> None:
        self._failures += 1
        if self._failures > self._connection.retries:
            raise error from None
        growing = min(_LAST_PAUSE, _FIRST_PAUSE * 2 ** (self._failures - 1))
        # Not all sessions of a trainer at the same moment.
        await self._pause(growing * random.uniform(0.5, 1.0) if pause is None else pause, error)  # noqa: S311

    async def _pause(self, seconds: float, error: ClientError) -> None:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        end = self._refused_since + self._connection.timeout if self.deadline is None else self.deadline
        if now + seconds > end:
            raise DeadlineExceeded(
                f"No success in time; last: {error.cause}", "Raise the client's timeout, or look at the server."
            ) from error
        await sleep(seconds)


def is_retryable_refusal(response: Response) -> bool:
    """Return whether a refusal says that the request was not begun, and may be later."""
    return response.status == 429 or response.headers.get("x-backend-state", "").lower() == "starting"


def dumps(value: Any) -> bytes:
    """JSON for a request. Raises ``ConfigurationError`` for what is none."""
    try:
        return json.dumps(value, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"This cannot be sent as JSON: {error}") from None
