"""A client that plays episodes over one connection and checks every answer."""

from __future__ import annotations

import json
from typing import Any

from ors_benchmarks.harness.checks import Refused, WrongAnswer, check_call, read_json, read_session_id
from ors_benchmarks.harness.http11 import Address, Connection, Failure
from ors_benchmarks.harness.reports.latencies import Meter

__all__ = ["LOAD", "TARGETS", "Client"]

#: The environment of ``script_server`` that calls go to.
LOAD = "loadenvironment"

#: The targets of its first two tasks.
TARGETS = ("hello", "world")


class Client:
    """Play episodes of one environment.

    Every method raises ``Failure`` for an answer that is missing, refused or wrong, and counts it in the meter first.
    """

    def __init__(self, address: Address, meter: Meter, environment: str = LOAD) -> None:
        self.meter = meter
        self.environment = environment
        self._address = address
        self._connection: Connection | None = None
        self._head = f" HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nContent-Type: application/json\r\n"

    async def connect(self) -> None:
        """Connect before the first request. Raises ``Failure``."""
        if self._connection is None or not self._connection.open:
            try:
                self._connection = await Connection.to(self._address)
            except Failure as failure:
                self.meter.failed("connect", failure)
                raise

    def close_connection(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()

    # --- the protocol ------------------------------------------------------------------------

    async def health(self) -> None:
        """Check ``/health``."""
        if await self._json("health", "GET", "/health") != {"status": "ok"}:
            raise self._wrong("health", "another status than ok")

    async def open(self, index: int, environment: str | None = None) -> str:
        """Create a session on a task, of another environment if one is named; returns its id."""
        body = await self._request("create_session", "POST", "/create_session", accept="text/event-stream")
        try:
            sid = read_session_id(body)
        except WrongAnswer as failure:
            self.meter.failed("create_session", failure)
            raise
        choice = {"env_name": environment or self.environment, "split": "train", "index": index}
        await self._acknowledged("create", sid, json.dumps(choice).encode())
        return sid

    async def prompt(self, sid: str, index: int, environment: str | None = None) -> None:
        """Get the prompt; the server answers when the session is set up."""
        blocks = await self._json("prompt", "GET", f"/{environment or self.environment}/prompt", sid)
        if not isinstance(blocks, list) or TARGETS[index] not in str(blocks):  # pyright: ignore[reportUnknownArgumentType]
            raise self._wrong("prompt", "another task's prompt")

    async def call(
        self, sid: str, tool: str, value: dict[str, Any], text: str, reward: float = 0.0, finished: bool = False
    ) -> None:
        """Call a tool that must answer with this text, reward and ``finished``."""
        request = b'{"name":"%b","input":%b}' % (tool.encode(), json.dumps(value).encode())
        body = await self._request(
            "call", "POST", f"/{self.environment}/call", sid, request, accept="text/event-stream"
        )
        try:
            check_call(body, text, reward, finished)
        except WrongAnswer as failure:
            self.meter.failed("call", failure)
            raise

    async def noop(self, sid: str, text: str) -> None:
        """Call the tool that does nothing."""
        await self.call(sid, "noop", {"text": text}, "noop:" + text)

    async def ping(self, sid: str) -> None:
        """Keep a session alive."""
        if await self._json("ping", "POST", "/ping", sid) != {"status": "ok"}:
            raise self._wrong("ping", "another status than ok")

    async def task(self, environment: str, index: int) -> None:
        """Get one task of an environment."""
        request = b'{"split":"train","index":%d}' % index
        answer = await self._json("task", "POST", f"/{environment}/task", None, request)
        if not isinstance(answer, dict) or answer["task"]["id"] != index:
            raise self._wrong("task", "another task")

    async def close(self, sid: str) -> None:
        """End a session."""
        await self._acknowledged("delete", sid)
        await self._acknowledged("delete_session", sid)

    # --- requests ----------------------------------------------------------------------------

    async def _acknowledged(self, kind: str, sid: str, body: bytes = b"") -> None:
        if await self._json(kind, "POST", f"/{kind}", sid, body) != {"sid": sid}:
            raise self._wrong(kind, "another session's id")

    async def _json(self, kind: str, method: str, path: str, sid: str | None = None, body: bytes = b"") -> Any:
        answer = await self._request(kind, method, path, sid, body)
        try:
            return read_json(answer)
        except WrongAnswer as failure:
            self.meter.failed(kind, failure)
            raise

    async def _request(
        self, kind: str, method: str, path: str, sid: str | None = None, body: bytes = b"", *, accept: str = "*/*"
    ) -> bytes:
        session = "" if sid is None else f"X-Session-ID: {sid}\r\n"
        head = f"{method} {path}{self._head}{session}Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
        await self.connect()
        assert self._connection is not None
        try:
            response = await self._connection.exchange(head.encode() + body)
            if response.status != 200:
                raise Refused(f"status {response.status}: {response.body[:80]!r}")
        except Failure as failure:
            self.meter.failed(kind, failure)
            raise
        self.meter.answered(kind, response)
        return response.body

    def _wrong(self, kind: str, problem: str) -> WrongAnswer:
        failure = WrongAnswer(problem)
        self.meter.failed(kind, failure)
        return failure
