"""``GET /metrics``: the figures of this server, for Prometheus.

A scrape reads numbers that exist already; it counts the sessions, in pieces. Scrapes at the same time get the same
response.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ors_server.http.exchange import Exchange
from ors_server.http.routes.table import Route, routes_of
from ors_server.sandbox_service.registry import SandboxSessions
from ors_server.sandboxes import running_sandbox_service
from ors_server.sessions.registry import Sessions
from ors_server.settings import Settings
from ors_server.telemetry import definitions
from ors_server.telemetry.counts import RouteCounts, Sample
from ors_server.telemetry.exposition import CONTENT_TYPE, expose
from ors_server.telemetry.loop_lag import LoopLag
from ors_server.wire.version import VERSION
from ors_server.worker import identity

__all__ = ["MetricsRoutes", "sandbox_samples"]

Source = Callable[[], Iterable[Sample]]


class MetricsRoutes:
    """Handler over one server's counts; ``sessions`` is None for a server of sandboxes only. ``sources`` have more."""

    def __init__(self, settings: Settings, sessions: Sessions | None, sandboxes: SandboxSessions | None) -> None:
        self._settings = settings
        self._sessions = sessions
        self._sandboxes = sandboxes
        self.lag = LoopLag()
        self.sources: list[Source] = [self._server, sandbox_samples]
        #: The requests that FastAPI answers.
        self.others = RouteCounts()
        self._routes: Mapping[str, Route] = {}
        self._writing: asyncio.Task[bytes] | None = None
        self.table = routes_of(self, "metrics")

    def counted(self, routes: Mapping[str, Route]) -> dict[str, Route]:
        """Return the server's routes, whose requests are counted from now on."""
        self._routes = {name: replace(route, counts=RouteCounts()) for name, route in routes.items()}
        return dict(self._routes)

    async def metrics(self, exchange: Exchange) -> None:
        """Return the server's figures in the text format of Prometheus."""
        await exchange.text(await self.read(), CONTENT_TYPE)

    async def read(self) -> bytes:
        """Return the figures as text. On a worker of a server with several each series has its slot."""
        self.lag.start()  # an application without a lifespan begins here
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await asyncio.shield(self._writing)  # others wait for it as well

    async def _write(self) -> bytes:
        tally = {} if self._sessions is None else await self._sessions.tally()
        samples = [Sample(definitions.SESSIONS, labels, count) for labels, count in tally.items()]
        for source in self.sources:
            samples += source()
        worker = identity()
        return await expose(samples, {} if worker is None else {"worker": str(worker.slot)})

    def _server(self) -> Iterable[Sample]:
        sessions, settings = self._sessions, self._settings
        build = (VERSION, platform.python_version(), os.environ.get("OPENREWARD_BUILD_SHA", ""))
        yield Sample(definitions.BUILD, build, 1)
        yield Sample(definitions.LIMIT, ("calls",), settings.max_calls)
        yield Sample(definitions.LIMIT, ("sandbox_queue",), settings.sandbox_queue)
        if self._sandboxes is not None:
            yield Sample(definitions.LIMIT, ("sandboxes",), settings.max_sandboxes)
            yield Sample(definitions.SERVICE_SANDBOXES, (), len(self._sandboxes))
        active = self.others.active
        for name, route in self._routes.items():
            if route.counts is not None:
                active += route.counts.active
                yield from route.counts.samples(name)
        yield from self.others.samples(definitions.OTHER)
        yield Sample(definitions.REQUESTS_IN_FLIGHT, (), active)
        yield Sample(definitions.LOOP_LAG, (), self.lag.seconds)
        if sessions is None:
            return
        yield Sample(definitions.LIMIT, ("sessions",), settings.max_sessions)
        yield Sample(definitions.CALLS_IN_FLIGHT, (), sessions.call_slots.taken)
        for hosted in sessions.catalogue.environments:
            if hosted.counts is not None:
                yield from hosted.counts.samples()


def sandbox_samples() -> Iterable[Sample]:
    """Return the series of the sandboxes of the running event loop."""
    service = running_sandbox_service()
    if service is None:
        return
    yield from service.counts.samples()
    pool = service.pool
    yield Sample(definitions.SANDBOX_QUEUE, (), pool.admission.waiting)
    yield Sample(definitions.SANDBOXES_WARM, (), pool.warm)
    counts = pool.counts
    for event, count in zip(
        ("warm", "cold", "dead", "unused"), (counts.warm, counts.cold, counts.dead, counts.unused), strict=True
    ):
        yield Sample(definitions.SANDBOX_POOL, (event,), count)
