"""The floor: bare uvicorn with one constant answer, and the client that knows that answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ors_benchmarks.harness.candidates import Candidate
from ors_benchmarks.harness.client import Client
from ors_benchmarks.server.script_floor_server import ANSWER

__all__ = ["FLOOR", "FloorClient"]

FLOOR = Candidate("floor", "bare uvicorn", None, script=Path(__file__).resolve().with_name("script_floor_server.py"))


class FloorClient(Client):
    """Send the requests that a server would get, and check for the floor's one answer."""

    async def health(self) -> None:
        """Send ``/health``."""
        await self._floor("health", "/health", "GET")

    async def open(self, index: int, environment: str | None = None) -> str:
        """Send the two requests that create a session."""
        await self._floor("create_session", "/create_session")
        await self._floor("create", "/create")
        return "floor"

    async def prompt(self, sid: str, index: int, environment: str | None = None) -> None:
        """Get the prompt."""
        await self._floor("prompt", f"/{self.environment}/prompt", "GET")

    async def call(
        self, sid: str, tool: str, value: dict[str, Any], text: str, reward: float = 0.0, finished: bool = False
    ) -> None:
        """Send a call, the same request as to a server."""
        await self._floor(
            "call", f"/{self.environment}/call", value=b'{"name":"%b","input":{"text":"1"}}' % tool.encode()
        )

    async def ping(self, sid: str) -> None:
        """Send a ping."""
        await self._floor("ping", "/ping")

    async def close(self, sid: str) -> None:
        """Send the two requests that end a session."""
        await self._floor("delete", "/delete")
        await self._floor("delete_session", "/delete_session")

    async def _floor(self, kind: str, path: str, method: str = "POST", value: bytes = b"") -> None:
        body = await self._request(kind, method, path, "floor", value, accept="text/event-stream")
        if body != ANSWER:
            raise self._wrong(kind, "other bytes than the floor's")
