"""One POST to an inference engine: kept-alive connections, retries, and every failure as ``SamplerFailed``.

A generation may be asked for again: nothing but computing time is lost. So a request is repeated when its connection
breaks, whenever that happens, and when the engine is busy or restarting. Engines close idle connections early (vLLM
after 5 seconds), while an environment's tool may run for minutes: connections that were idle for nearly that long are
not used again. There is no limit on how long a generation takes, except the rollout's own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from ors_clients.errors import ConfigurationError, SamplerFailed
from ors_clients.transport.base import ConnectionLost, Headers, Request, Response
from ors_clients.transport.error_responses import redact
from ors_clients.transport.json_codec import read_json
from ors_clients.transport.sockets import SocketTransport

__all__ = ["ROUTING_HEADER", "EngineRequests"]

#: By it SGLang's router keeps a rollout on the engine that has its prefix cached; engines ignore it.
ROUTING_HEADER = "X-SMG-Routing-Key"
_LONGEST_IDLE = 4.0
#: Any time is too long: only a new connection will do.
_NEW = -1.0
_BUSY = (408, 425, 429, 500, 502, 503, 504)


class EngineRequests:
    """The connections to one engine or router, from any event loop.

    ``headers`` go with each request. Raises ``ConfigurationError`` for an invalid address.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, attempts: int = 6) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigurationError(f"{url!r} is not an address of an engine", "Write it as http://host:port.")
        secure = address.scheme == "https"
        self._transport = SocketTransport(address.hostname, address.port or (443 if secure else 80), secure=secure)
        self._prefix = address.path.rstrip("/")
        self._headers = Headers([("Content-Type", "application/json"), *(headers or {}).items()])
        self._attempts = attempts
        authorization = next((value for name, value in (headers or {}).items() if name.lower() == "authorization"), "")
        #: A key that an engine repeats in its error.
        self._secrets = {authorization.removeprefix("Bearer ")} - {""}
        #: Seconds before the second attempt; each further pause is twice as long.
        self.first_pause = 0.25

    async def post(self, path: str, payload: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON object that the engine answers. Raises ``SamplerFailed`` after the last attempt."""
        body = json.dumps(payload, separators=(",", ":")).encode()
        sent = (self._headers, Headers(headers.items()))
        longest_idle, pause, problem = _LONGEST_IDLE, self.first_pause, ""
        for attempt in range(1, self._attempts + 1):
            request = Request("POST", self._prefix + path, sent, body, longest_idle=longest_idle)
            try:
                response = await self._transport.exchange(request)
            except ConnectionLost as lost:
                longest_idle, problem = _NEW, str(lost)
                if lost.stale:
                    continue  # the engine had closed it; nothing is wrong
            else:
                if response.status == 200:
                    return _object(response)
                problem = f"status {response.status}: {self._redacted(response)}"
                if response.status not in _BUSY:
                    raise SamplerFailed(f"The engine refused the request: {problem}", answered=response.status)
            if attempt < self._attempts:
                await asyncio.sleep(pause)
                pause *= 2
        raise SamplerFailed(
            f"The engine failed {self._attempts} times, at last with: {problem}", "Look at the engine's own log."
        )

    async def connect(self) -> str | None:
        """Return None if the engine answers, with whatever status; else the reason why there is no connection."""
        request = Request("GET", self._prefix + "/health", (self._headers,), longest_idle=_NEW, first_byte=10.0)
        try:
            await self._transport.exchange(request)
        except ConnectionLost as lost:
            return None if lost.sent else str(lost)
        return None

    def _redacted(self, response: Response) -> str:
        # Cut afterwards: half a key is not found.
        return redact(response.body[:10_000].decode("utf-8", "replace"), self._secrets)[:500].strip()

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._transport.close()


def _text(response: Response) -> str:
    return response.body[:500].decode("utf-8", "replace").strip()


def _object(response: Response) -> dict[str, Any]:
    try:
        answer = read_json(response.body)
    except ValueError:
        raise SamplerFailed(f"The engine answered no JSON: {_text(response)!r}") from None
    if not isinstance(answer, dict):
        raise SamplerFailed(f"The engine answered no JSON object: {_text(response)!r}")
    return cast("dict[str, Any]", answer)
