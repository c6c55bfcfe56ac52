"""Requests to an ASGI application in this process: no socket, no HTTP.

The application gets what a server would give it, and what it sends is taken as it comes. It is how the local mode and
tests reach an environment (``local``), with every rule of the server between them and none of its network.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from ors_clients.errors import ResponseTooLarge
from ors_clients.transport.base import ConnectionLost, OutOfTime, Request, Response

__all__ = ["ApplicationTransport"]

Application = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class ApplicationTransport:
    """Calls an ASGI application, whose lifespan is the caller's business. Sessions over it are not pinged.

    A cancelled or late request is a client that disconnects: the application is notified, and goes on. A response
    may begin whenever it likes (``Request.first_byte``): there is no connection here that could be lost.
    """

    threads = False

    def __init__(self, application: Application) -> None:
        self._application = application
        self._running: set[asyncio.Task[None]] = set()

    async def exchange(self, request: Request, on_data: Callable[[bytes], None] | None = None) -> Response:
        """Call the application and wait for its response (``Transport``)."""
        answer = _Answer(request, on_data)
        run = asyncio.create_task(self._run(answer, _scope(request)))
        self._running.add(run)
        run.add_done_callback(self._running.discard)
        limit = None if request.deadline is None else max(0.0, request.deadline - time.monotonic())
        try:
            async with asyncio.timeout(limit):
                return await answer.complete
        except TimeoutError:
            raise OutOfTime from None
        finally:
            answer.gone.set()

    async def _run(self, answer: _Answer, scope: dict[str, Any]) -> None:
        try:
            await self._application(scope, answer.receive, answer.send)
        except Exception as error:  # noqa: BLE001 - the application may raise anything: a server would end the connection
            answer.fail(f"the application failed ({type(error).__name__})")
        else:
            answer.fail("the application ended without a response")

    async def close(self) -> None:
        """Cancel the requests that still run."""
        for run in list(self._running):
            run.cancel()
        if self._running:
            await asyncio.wait(self._running)


class _Answer:
    """One response, as it is put together."""

    def __init__(self, request: Request, on_data: Callable[[bytes], None] | None) -> None:
        self._request = request
        self._on_data = on_data
        self._read = False
        self._received = 0
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.complete: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        #: Set when the client no longer waits for the response.
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Give the application the request, then the client's disconnection."""
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Take a part of the application's response."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.get("headers", ())
            }
            events = self._headers.get("content-type", "").lower().startswith("text/event-stream")
            if self._status != 200 or not events:
                self._on_data = None
            return
        if message["type"] != "http.response.body":
            return
        body = message.get("body", b"")
        self._received += len(body)
        if self._received > self._request.limit:
            self._body = []
            if not self.complete.done():
                self.complete.set_exception(ResponseTooLarge(self._request.limit))
            return
        if self._on_data is None:
            self._body.append(body)
        elif not self.complete.done():
            self._on_data(body)
        if not message.get("more_body", False) and not self.complete.done():
            self.complete.set_result(Response(self._status, self._headers, b"".join(self._body)))
            self.gone.set()

    def fail(self, reason: str) -> None:
        """There is no response, unless it came."""
        if not self.complete.done():
            self.complete.set_exception(ConnectionLost(reason, sent=True))


def _scope(request: Request) -> dict[str, Any]:
    path, _, query = request.target.partition("?")
    headers = [
        (name.lower().encode("latin-1"), value.encode()) for block in request.headers for name, value in block.items
    ]
    if request.method == "POST":
        headers.append((b"content-length", str(len(request.body)).encode()))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 80),
    }
