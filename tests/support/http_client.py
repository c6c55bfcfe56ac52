"""A plain HTTP client for the protocol's tests."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import httpx

from tests.support.events import Event, EventParser, Reply, parse_events
from tests.support.waiting import PATIENCE


class AsgiApplication(Protocol):
    """Any ASGI application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Client:
    """Plain HTTP client of an application in this process, or of a server at an address."""

    def __init__(self, app: AsgiApplication | None = None, *, url: str = "http://server", agent: str = "test") -> None:
        transport = None if app is None else _BoundedTransport(app=app)
        self.app = app
        self.http = httpx.AsyncClient(
            transport=transport, base_url=url, headers={"User-Agent": agent}, timeout=PATIENCE * 3, trust_env=False
        )
        self._sessions = 0

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def get(self, path: str, sid: str | None = None, **headers: str) -> httpx.Response:
        """Send a GET. Underscores in the names of further headers stand for hyphens."""
        return await self.http.get(path, headers=_headers(sid, headers))

    async def post(self, path: str, body: object = None, sid: str | None = None, **headers: str) -> httpx.Response:
        """Send a POST with a JSON body, or without a body."""
        return await self.http.post(path, json=body, headers=_headers(sid, headers))

    async def create(self, sid: str, body: Mapping[str, object] | None = None, **headers: str) -> httpx.Response:
        """Send ``/create``, by default for the first task of ``train``."""
        return await self.post("/create", body if body is not None else {"split": "train", "index": 0}, sid, **headers)

    async def open(self, body: Mapping[str, object] | None = None, *, sid: str | None = None, **headers: str) -> str:
        """Open a session and return its id."""
        self._sessions += 1
        sid = sid or f"session-{self._sessions}"
        response = await self.create(sid, body, **headers)
        assert response.status_code == 200, response.text
        assert response.json() == {"sid": sid}
        return sid

    async def call(
        self, sid: str, name: str, input: Mapping[str, object] | None = None, *, path: str = "/call", **keys: str
    ) -> Reply:
        """Call a tool. ``key`` is the Idempotency-Key; ``task_id`` resumes a call."""
        response = await self.call_response(sid, name, input, path=path, **keys)
        assert response.status_code == 200, response.text
        return Reply(parse_events(response.content))

    async def call_response(
        self,
        sid: str,
        name: str,
        input: Mapping[str, object] | None = None,
        *,
        path: str = "/call",
        key: str | None = None,
        task_id: str | None = None,
    ) -> httpx.Response:
        """Return the response to a call, whatever its status."""
        body: dict[str, object] = {"name": name, "input": dict(input or {})}
        if task_id is not None:
            body["task_id"] = task_id
        return await self.post(path, body, sid, **({} if key is None else {"Idempotency_Key": key}))

    @asynccontextmanager
    async def stream(self, path: str, body: object, sid: str, *, stuck: bool = False) -> AsyncGenerator["OpenStream"]:
        """Send a POST and read its events as they come; leaving the block disconnects.

        A ``stuck`` client accepts no byte before its ``unstick``.
        """
        assert self.app is not None, "only in this process"
        opened = OpenStream(self.app, path, json.dumps(body).encode(), sid)
        if not stuck:
            opened.unstick()
        try:
            yield opened
        finally:
            await opened.hang_up()


class _BoundedTransport(httpx.ASGITransport):
    """Transport that fails the test when an application does not answer, instead of blocking all tests."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(PATIENCE * 2):
            return await super().handle_async_request(request)


def _headers(sid: str | None, more: Mapping[str, str]) -> dict[str, str]:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    if sid is not None:
        headers["X-Session-ID"] = sid
    return headers


class OpenStream:
    """One request straight to an ASGI application, and the response so far."""

    def __init__(self, app: AsgiApplication, path: str, body: bytes, sid: str) -> None:
        self.parser = EventParser()
        self.headers: dict[str, str] = {}
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._events: list[Event] = []
        self._gone = asyncio.Event()
        self._taking = asyncio.Event()
        self._body: bytes | None = body
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"server"), (b"x-session-id", sid.encode()), (b"user-agent", b"test")],
            "client": ("127.0.0.1", 1),
            "server": ("server", 80),
        }
        self._task = asyncio.create_task(app(scope, self._receive, self._send))

    async def event(self) -> Event:
        """Return the next event."""
        async with asyncio.timeout(PATIENCE):
            while not self._events:
                message = await self._sent.get()
                if message["type"] == "http.response.start":
                    assert message["status"] == 200, message
                    self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                else:
                    self._events.extend(self.parser.feed(message["body"]))
        return self._events.pop(0)

    async def reply(self) -> Reply:
        """Return the remaining events."""
        events = [await self.event()]
        while events[-1].name not in ("end", "error"):
            events.append(await self.event())
        return Reply(events)

    def unstick(self) -> None:
        """Accept what is sent from now on."""
        self._taking.set()

    async def hang_up(self) -> None:
        """Disconnect, and return when the application has noticed."""
        self._taking.set()
        self._gone.set()
        await asyncio.wait_for(self._task, PATIENCE)

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._taking.wait()
        await self._sent.put(message)


def secrets_header(secrets: object) -> str:
    """Return the value of ``X-Secrets``."""
    return base64.b64encode(json.dumps(secrets).encode()).decode()
