"""The ASGI application of a server of environments."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from ors_server.http.hot_app import HotApp
from ors_server.http.routes.discovery import DiscoveryRoutes
from ors_server.http.routes.episodes import EpisodeRoutes
from ors_server.http.routes.files import files_router
from ors_server.http.routes.metrics import MetricsRoutes
from ors_server.http.routes.platform import platform_router
from ors_server.http.routes.rollouts import RolloutRoutes, runs_router
from ors_server.http.routes.sandbox_service import SandboxRoutes
from ors_server.http.routes.table import Route
from ors_server.http.routes.worker_state import (
    figures_route,
    session_route,
    state_of_sessions,
    worker_state_route,
)
from ors_server.keys.authentication import Authenticator
from ors_server.keys.file import keys_file
from ors_server.keys.keys import Keys
from ors_server.pages.context import ServerContext
from ors_server.rollouts.location import location_of
from ors_server.rollouts.recorder import Recorder
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.sandbox_service.data_folders import folders_below
from ors_server.sandbox_service.registry import SandboxSessions
from ors_server.sandboxes import hold_sandbox_service
from ors_server.sessions.registry import Sessions
from ors_server.telemetry.counts import Sample
from ors_server.telemetry.definitions import ROLLOUT_FAILING, ROLLOUT_QUEUE, ROLLOUTS_DROPPED
from ors_server.worker import identity

__all__ = ["OrsApp"]

logger = logging.getLogger("ors_server.http.app")

_DESCRIPTION = """Environments for reinforcement learning over the Open Reward Standard.

A session is one episode: `POST /create_session` gives its id, `POST /create` binds it to a task, `GET /prompt` is what
the model reads, `POST /call` runs a tool and gives its output and reward, `POST /delete` ends it. The session's id goes
into the header `X-Session-ID`. Every per-environment path also exists without the name."""


class OrsApp(HotApp):
    """The ASGI application of one server. It works with and without a lifespan."""

    def __init__(self, sessions: Sessions) -> None:
        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
            # Logged here and not when they are found: a server is built before its logging is set up.
            for hosted in sessions.catalogue.environments:
                for problem in hosted.tools.dropped:
                    logger.warning("tool left out", extra={"environment": hosted.name, "reason": problem})
            for name, reason in sessions.catalogue.reasons.items():
                logger.warning("environment unavailable", extra={"environment": name, "reason": reason})
            hold_sandbox_service(sessions, sessions.settings)
            self.rollouts.resume()
            if self.recorder is not None:
                self.recorder.start()
            async with self.watching():
                yield
            await sessions.close()
            if self.recorder is not None:
                self.recorder.close()
            await self.rollouts.close()
            self.store.close()

        self.sessions = sessions
        catalogue = sessions.catalogue
        settings = sessions.settings
        worker = identity()
        authenticator = Authenticator(
            Keys(keys_file(settings)),
            sessions.usage,
            behind_proxy=settings.listen is not None,
            behind_gateway=worker is not None,
        )
        authenticator.keys.on_change.append(sessions.end_of)
        location = location_of(settings)
        #: Stores rollouts.
        self.rollouts = RolloutWriter(location)
        #: Records the sessions; None where they are not recorded.
        self.recorder: Recorder | None = None
        if settings.record:
            self.recorder = sessions.recorder = Recorder(self.rollouts)
        #: The stored rollouts, for reading.
        self.store = RolloutStore(location)
        sandboxes: SandboxSessions | None = None
        folders = folders_below(location.folder / "files")
        if settings.sandbox_service and worker is None:  # else a worker of their own has them
            sandboxes = SandboxSessions(settings, sessions.results, folders)
            sessions.closers.append(sandboxes.close)
            authenticator.keys.on_change.append(sandboxes.end_of)
        routes: dict[str, Route] = {
            **DiscoveryRoutes(catalogue, settings, sessions.check_open).table,
            **EpisodeRoutes(sessions, sandboxes).table,
            **SandboxRoutes(settings, sandboxes).table,
            **RolloutRoutes(self.rollouts, settings.max_body).table,
        }
        metrics = MetricsRoutes(settings, sessions, sandboxes) if settings.metrics else None
        if metrics is not None:
            metrics.sources.append(self._rollout_samples)
        super().__init__(
            settings, routes, authenticator, metrics, title="ors-server", description=_DESCRIPTION, lifespan=lifespan
        )
        self.document(
            partial(platform_router, catalogue, self.store),
            partial(runs_router, self.store),
            *(() if sandboxes is None else (partial(files_router, folders, authenticator.keys),)),
        )
        if settings.pages:
            slot = None if worker is None else worker.slot
            self.serve_pages(ServerContext(settings, sandboxes, slot, authenticator, sessions, self.store))
        if worker is not None:
            state = partial(state_of_sessions, sessions)
            self.routes_by_name["state"] = worker_state_route(worker, sessions.closing, state)
            self.routes_by_name["session"] = session_route(sessions)
            if metrics is not None:
                self.routes_by_name["figures"] = figures_route(metrics)

    def _rollout_samples(self) -> list[Sample]:
        recorder = self.recorder
        unsent = 0 if recorder is None else recorder.waiting - self.rollouts.records_waiting
        waiting = self.rollouts.waiting + unsent
        found = [Sample(ROLLOUT_QUEUE, (), waiting), Sample(ROLLOUT_FAILING, (), int(self.rollouts.failing))]
        if recorder is not None:
            found.append(Sample(ROLLOUTS_DROPPED, ("event",), recorder.dropped))
            found.append(Sample(ROLLOUTS_DROPPED, ("session",), recorder.dropped_sessions))
        return found
