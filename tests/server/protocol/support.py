"""What the protocol's tests share: small environments, a client that speaks plain HTTP, and the clients' event parser.

The parser follows the rules of both SDKs' own parsers (protocol, section 2), faults included, so that what passes here
reaches real clients unaltered.
"""

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

import httpx
from pydantic import BaseModel

from ors_server import Blocks, Environment, JSONObject, Split, TextBlock, ToolOutput, tool

#: The longest line the older clients read.
LONGEST_LINE = 64 * 1024
#: How long anything in these tests may take before it counts as hung, in seconds.
PATIENCE = 10.0


# --- events --------------------------------------------------------------------------------------


class Event(NamedTuple):
    """One server-sent event as both SDKs hand it on."""

    name: str
    data: str


class EventParser:
    """Both SDKs' parser: splits on newlines only, strips all leading white space of a value, wants named events."""

    def __init__(self) -> None:
        self.comments = 0
        self._pending = b""
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """The events this chunk completes. Raises ``ValueError`` where a real client would fail."""
        events: list[Event] = []
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if len(self._pending) > LONGEST_LINE:
            raise ValueError("line too long")
        for raw in lines:
            if len(raw) > LONGEST_LINE:
                raise ValueError("line too long")
            line = raw.decode("utf-8", "ignore").rstrip("\r\n")
            if not line:
                if self._name:
                    events.append(Event(self._name, "\n".join(self._data)))
                self._name, self._data = "", []
            elif line.startswith(":"):
                self.comments += 1
            else:
                field, value = line.split(":", 1)
                if field == "event":
                    self._name = value.lstrip()
                elif field == "data":
                    self._data.append(value.lstrip())
        return events


def parse_events(body: bytes) -> list[Event]:
    """The events of a whole response."""
    return EventParser().feed(body)


class Reply:
    """The events that answered a ``/call`` or ``/score_group``."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = list(events)

    @property
    def names(self) -> list[str]:
        """The events' names, in order."""
        return [event.name for event in self.events]

    @property
    def task_id(self) -> str:
        """The call's id, which must come first."""
        assert self.events[0].name == "task_id", self.events
        return self.events[0].data

    @property
    def result(self) -> dict[str, Any]:
        """The JSON that ``chunk`` and ``end`` carry together."""
        assert self.names[-1] == "end", self.events
        return json.loads("".join(event.data for event in self.events if event.name in ("chunk", "end")))

    @property
    def output(self) -> dict[str, Any]:
        """The tool's output; the call must have run."""
        result = self.result
        assert result["ok"] is True, result
        return result["output"]

    @property
    def text(self) -> str:
        """The text of the output's blocks."""
        return "".join(block["text"] for block in self.output["blocks"])

    @property
    def error(self) -> str:
        """The text of the ``error`` event, which must be the last."""
        assert self.names[-1] == "error", self.events
        return self.events[-1].data

    @property
    def reason(self) -> str:
        """Why the call ran no tool."""
        result = self.result
        assert result["ok"] is False, result
        return result["reason"]


# --- environments --------------------------------------------------------------------------------


class Text(BaseModel):
    """Input of the usual tool."""

    text: str


class Number(BaseModel):
    """Input of a tool that counts."""

    number: int


def said(text: str = "", reward: float | None = None, *, finished: bool = False) -> ToolOutput:
    """A tool's output of one text block."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Bare(Environment):
    """Four tasks in each of two splits, a prompt that names the task, and no tool."""

    @classmethod
    def list_splits(cls) -> Sequence[Split | str] | Awaitable[Sequence[Split | str]]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject] | Awaitable[Sequence[JSONObject]]:
        return [{"id": f"{split}-{number}"} for number in range(4)]

    def get_prompt(self) -> Blocks | Awaitable[Blocks]:
        return [TextBlock(text=f"prompt of {self.task_spec.get('id')}")]


class Echo(Bare):
    """``Bare`` with the usual tool, which also ends the episode when asked to."""

    @tool(concurrent=True)
    async def echo(self, params: Text) -> ToolOutput:
        """Repeat a text."""
        return said(params.text)

    @tool
    async def win(self) -> ToolOutput:
        """End the episode."""
        return said("won", 1.0, finished=True)


# --- the client ----------------------------------------------------------------------------------


class AsgiApplication(Protocol):
    """Any ASGI application."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Client:
    """Plain HTTP against an application in this process, or a server at an address."""

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
        """GET; underscores in the names of further headers stand for hyphens."""
        return await self.http.get(path, headers=_headers(sid, headers))

    async def post(self, path: str, body: object = None, sid: str | None = None, **headers: str) -> httpx.Response:
        """POST a JSON body, or none."""
        return await self.http.post(path, json=body, headers=_headers(sid, headers))

    async def create(self, sid: str, body: Mapping[str, object] | None = None, **headers: str) -> httpx.Response:
        """``/create``, by default the first task of ``train``."""
        return await self.post("/create", body if body is not None else {"split": "train", "index": 0}, sid, **headers)

    async def open(self, body: Mapping[str, object] | None = None, *, sid: str | None = None, **headers: str) -> str:
        """A new session's id."""
        self._sessions += 1
        sid = sid or f"session-{self._sessions}"
        response = await self.create(sid, body, **headers)
        assert response.status_code == 200, response.text
        assert response.json() == {"sid": sid}
        return sid

    async def call(
        self, sid: str, name: str, input: Mapping[str, object] | None = None, *, path: str = "/call", **keys: str
    ) -> Reply:
        """Call a tool. ``key`` is its Idempotency-Key, ``task_id`` resumes."""
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
        """The response to a call, whatever it is."""
        body: dict[str, object] = {"name": name, "input": dict(input or {})}
        if task_id is not None:
            body["task_id"] = task_id
        return await self.post(path, body, sid, **({} if key is None else {"Idempotency_Key": key}))

    @asynccontextmanager
    async def stream(self, path: str, body: object, sid: str, *, stuck: bool = False) -> AsyncGenerator["OpenStream"]:
        """A POST whose events are read as they come; on leaving, the client hangs up.

        A ``stuck`` client takes no byte before its ``unstick``.
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
    """An application that does not answer fails its test instead of stopping all of them."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with asyncio.timeout(PATIENCE * 2):
            return await super().handle_async_request(request)


def _headers(sid: str | None, more: Mapping[str, str]) -> dict[str, str]:
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    if sid is not None:
        headers["X-Session-ID"] = sid
    return headers


class OpenStream:
    """One request straight to an ASGI application, and what it has answered so far."""

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
        """The next event."""
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
        """The events that are still to come, to the last."""
        events = [await self.event()]
        while events[-1].name not in ("end", "error"):
            events.append(await self.event())
        return Reply(events)

    def unstick(self) -> None:
        """The client takes what is sent from now on."""
        self._taking.set()

    async def hang_up(self) -> None:
        """The client is gone; returns when the application has noticed."""
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


# --- small things --------------------------------------------------------------------------------


def secrets_header(secrets: object) -> str:
    """The value of ``X-Secrets``."""
    return base64.b64encode(json.dumps(secrets).encode()).decode()


async def until(condition: Callable[[], bool], what: str = "") -> None:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what or "waited too long"
        await asyncio.sleep(0.005)
