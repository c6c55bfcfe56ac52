"""Routes of a worker for gateways and the supervisor, which exist on a private listener only.

``GET /_ors/state`` is a stream that lasts as long as the process: its state as a line of JSON every second.
``GET /_ors/session`` says whether the worker has a session. ``GET /_ors/figures`` is its part of ``/metrics``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from ors_server.http.exchange import Exchange
from ors_server.http.routes.metrics import MetricsRoutes
from ors_server.http.routes.table import Route
from ors_server.sessions.registry import Sessions
from ors_server.wire.encoding import encode
from ors_server.wire.version import HANDSHAKE, VERSION
from ors_server.worker import Identity

__all__ = ["figures_route", "session_route", "state_of_sessions", "worker_state_route"]

_INTERVAL = 1.0


def session_route(sessions: Sessions) -> Route:
    """Make the route ``GET /_ors/session``."""

    async def session(exchange: Exchange) -> None:
        sessions.peek(exchange.session_id(), exchange.key.name)
        await exchange.json(b"{}")

    return Route("GET", per_environment=False, handler=session, prefix="/_ors")


def figures_route(metrics: MetricsRoutes) -> Route:
    """Make the route ``GET /_ors/figures``."""
    return Route("GET", per_environment=False, handler=metrics.metrics, prefix="/_ors")


def worker_state_route(worker: Identity, closing: asyncio.Event, state_now: Callable[[], Mapping[str, Any]]) -> Route:
    """Make the route ``GET /_ors/state``, a stream until ``closing`` is set."""

    async def state(exchange: Exchange) -> None:
        headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
        await exchange.send({"type": "http.response.start", "status": 200, "headers": headers})
        while not exchange.disconnected and not closing.is_set():
            report = {
                "slot": worker.slot,
                "incarnation": worker.incarnation,
                **state_now(),
                "version": VERSION,
                "handshake": HANDSHAKE,
            }
            await exchange.send({"type": "http.response.body", "body": encode(report) + b"\n", "more_body": True})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), _INTERVAL)
        await exchange.send({"type": "http.response.body", "body": b""})

    return Route("GET", per_environment=False, handler=state, prefix="/_ors")


def state_of_sessions(sessions: Sessions) -> dict[str, Any]:
    """Return the state of a worker of environments."""
    return {
        "sessions": len(sessions),
        "max_sessions": sessions.settings.max_sessions,
        "calls": sessions.call_slots.taken,
        "environments": sessions.catalogue.names,
        "task_lists": {hosted.name: hosted.tasks.digests for hosted in sessions.catalogue.environments},
    }
