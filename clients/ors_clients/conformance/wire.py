"""Requests of the check, and what came back: bounded in time and memory, whatever the server does.

No request takes longer than its time limit, counted over the whole response, and no more than ``LARGEST`` bytes of a
body are kept: an endless stream, slow bytes and a body of a gigabyte end as a response with a ``problem``. Redirects
are followed only where a rule says so, once, and never to another host. Bodies are not decompressed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

import httpx

from ors_clients.conformance.rule import Broken, plain
from ors_clients.conformance.stream import Event, EventStream
from ors_clients.conformance.values import is_object
from ors_clients.transport.bounded_httpx import BoundedAsyncClient
from ors_clients.transport.json_codec import read_json

__all__ = ["LARGEST", "Answer", "Wire"]

#: Most bytes of a response's body that are read.
LARGEST = 8 * 1024 * 1024
_EVENTS = {"Accept": "text/event-stream"}
_TRACEBACK = b"Traceback (most recent call last)"


@dataclass
class Answer:
    """A response, as far as it came."""

    request: str
    #: 0 where no response came.
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    #: Why there is no complete response; empty where there is one.
    problem: str = ""
    #: Seconds until the head of the response, and until its end.
    head_after: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.status:
            return f"{self.request}: {self.problem}"
        text = plain(self.body[:600].decode("utf-8", "replace"), 160)
        return f"{self.request}: {self.status} {text}{f' ({self.problem})' if self.problem else ''}"

    def expect(self, *statuses: int) -> Answer:
        """Return this answer. Raises ``Broken`` where it has another status or is not complete."""
        if self.status not in statuses or self.problem:
            raise Broken(str(self))
        return self

    def json(self) -> Any:
        """Return the body as a value. Raises ``Broken``."""
        if self.problem:
            raise Broken(str(self))
        try:
            return read_json(self.body)
        except ValueError:
            raise Broken(f"{self}, which is not JSON") from None

    def object(self) -> dict[str, Any]:
        """Return the body as an object. Raises ``Broken``."""
        value = self.json()
        if not is_object(value):
            raise Broken(f"{self}, which is not an object")
        return value

    def detail(self) -> str:
        """Return the ``detail`` of an error as text. Raises ``Broken`` where it has none."""
        detail: object = self.object().get("detail")
        if not isinstance(detail, str | list) or not detail:
            raise Broken(f"{self}, without a detail")
        return str(cast("object", detail))

    @property
    def stream(self) -> EventStream:
        """The body as events."""
        return EventStream(self.body)

    @property
    def events(self) -> list[Event]:
        """The events of the body."""
        return self.stream.events


class Wire:
    """Sends requests to one server. Its connections live as long as it is open."""

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        timeout: float = 10.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {"User-Agent": "ors-server-check", "Accept-Encoding": "identity"}
        if key:
            headers["X-API-Key"] = key
        #: Whether requests carry a key.
        self.keyed = bool(key)
        #: Seconds that a response may take.
        self.timeout = timeout
        #: Requests whose response had a traceback in it.
        self.tracebacks: list[str] = []
        #: Requests whose stream had a data line that begins with white space.
        self.stripped: list[str] = []
        #: Streams read, and those of them with more than one data line.
        self.streams = self.chunked = 0
        self._http = BoundedAsyncClient(
            base_url=url.rstrip("/"),
            headers=headers,
            transport=transport,
            timeout=httpx.Timeout(timeout),
            # nginx closes a kept connection soon after a response that came before the end of its request's body, and
            # the next rule's request would be lost on it.
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
        )

    def another(self, url: str) -> Wire:
        """Return a wire to another server, with the same time limit and without a key."""
        return Wire(url, timeout=self.timeout)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str, sid: str | None = None, **more: Any) -> Answer:
        """Send a GET."""
        return await self.request("GET", path, sid=sid, **more)

    async def post(self, path: str, body: object = None, sid: str | None = None, **more: Any) -> Answer:
        """Send a POST with a JSON body, or without a body."""
        return await self.request("POST", path, json=body, sid=sid, **more)

    async def events(self, path: str, body: object = None, sid: str | None = None, **more: Any) -> Answer:
        """Send a POST that accepts an event stream."""
        more["headers"] = {**_EVENTS, **(more.get("headers") or {})}
        answer = await self.request("POST", path, json=body, sid=sid, **more)
        stream = answer.stream
        self.streams += 1
        self.chunked += any(event.name == "chunk" for event in stream.events)
        if stream.stripped:
            self.stripped.append(f"{answer.request}: {plain(stream.stripped, 80)}")
        return answer

    async def request(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        sid: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stop: Callable[[bytearray], bool] | None = None,
        follow: bool = False,
    ) -> Answer:
        """Send a request and read its response, as far as it comes.

        ``stop`` gets the body so far, and ends the connection when it returns True. ``follow`` follows one redirect
        within the server.
        """
        answer = Answer(f"{method} {plain(path, 80)}")
        sent = dict(headers or {})
        if sid is not None:
            sent["X-Session-ID"] = sid
        body: dict[str, Any] = {} if json is None else {"json": json}
        if content is not None:
            body = {"content": content}
        start = time.monotonic()
        received = bytearray()
        limit = timeout or self.timeout
        try:
            async with (
                asyncio.timeout(limit),
                self._http.stream(method, path, headers=sent, timeout=httpx.Timeout(limit), **body) as response,
            ):
                answer.status = response.status_code
                answer.headers = {name.lower(): value for name, value in response.headers.items()}
                answer.head_after = time.monotonic() - start
                async for part in response.aiter_raw():
                    received += part[: LARGEST - len(received)]
                    if len(received) >= LARGEST:
                        answer.problem = f"over {LARGEST // 1024 // 1024} MiB, cut"
                        break
                    if stop is not None and stop(received):
                        break
        except TimeoutError:
            answer.problem = f"not complete within {limit:g} s"
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            answer.problem = plain(f"{type(error).__name__} {error}".strip(), 120)
        except (ValueError, UnicodeError) as error:  # an unreadable head, as httpx and h11 do not wrap every one
            answer.problem = plain(f"unreadable response: {error}", 120)
        answer.body = bytes(received)
        answer.seconds = time.monotonic() - start
        if _TRACEBACK in answer.body and answer.status >= 400:
            self.tracebacks.append(answer.request)
        if follow and answer.status in (307, 308):
            target = self._within(answer.headers.get("location", ""))
            if target is not None:
                return await self.request(
                    method, target, json=json, sid=sid, headers=headers, timeout=timeout, stop=stop, content=content
                )
        return answer

    def _within(self, location: str) -> str | None:
        try:
            parts = urlsplit(location)
        except ValueError:
            return None
        if parts.netloc and parts.netloc != self._http.base_url.netloc.decode():
            return None
        # The base's own path is added to every request.
        path = parts.path.removeprefix(self._http.base_url.path.rstrip("/"))
        return path + (f"?{parts.query}" if parts.query else "") if path.startswith("/") else None
