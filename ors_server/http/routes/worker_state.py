"""The state of a worker, for the gateways and the supervisor: a line of JSON every second.

It exists only on a private listener. The stream lasts as long as the process.
"""

from __future__ import annotations

import asyncio
import contextlib

from ors_server._version import VERSION
from ors_server.encoding import encode
from ors_server.http.exchange import Exchange
from ors_server.http.routes.table import Route
from ors_server.sessions.registry import Sessions
from ors_server.worker import Identity

__all__ = ["worker_state_route"]

_INTERVAL = 1.0


def worker_state_route(sessions: Sessions, worker: Identity) -> Route:
    """Make the route ``GET /_ors/state``."""

    async def state(exchange: Exchange) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        while not exchange.disconnected and not sessions.closing.is_set():
            report = {
                "slot": worker.slot,
                "incarnation": worker.incarnation,
                "sessions": len(sessions),
                "max_sessions": sessions.settings.max_sessions,
                "calls": sessions.call_slots.taken,
                "environments": sessions.catalogue.names,
                "task_lists": {hosted.name: hosted.tasks.digests for hosted in sessions.catalogue.environments},
                "version": VERSION,
            }
            await exchange.send({"type": "http.response.body", "body": encode(report) + b"\n", "more_body": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sessions.closing.wait(), _INTERVAL)
        await exchange.send({"type": "http.response.body", "body": b""})

    return Route("GET", per_environment=False, handler=state, prefix="/_ors")
