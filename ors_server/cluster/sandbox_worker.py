"""The worker of a server that has its sandboxes and its data folders, and no environments.

The supervisor starts ``python -m ors_server.cluster.sandbox_worker`` as it starts every worker (``worker``). Its
sandboxes have placed ids, by which gateways find them. Where the server has no sandbox service the worker serves data
folders only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from ors_server.cluster.gateway.members.placed_ids import KEY_VARIABLE, Place, PlacedIds
from ors_server.hosting.executors import ThreadPool
from ors_server.http.hot_app import HotApp
from ors_server.http.routes.files import files_router
from ors_server.http.routes.metrics import MetricsRoutes
from ors_server.http.routes.sandbox_service import SandboxRoutes
from ors_server.http.routes.worker_state import figures_route, worker_state_route
from ors_server.http.serving import serve_application
from ors_server.keys.authentication import Authenticator
from ors_server.keys.file import keys_file
from ors_server.keys.keys import Keys
from ors_server.keys.usage import Usage
from ors_server.pages.context import PagesContext
from ors_server.rollouts.location import data_directory
from ors_server.sandbox_service.data_folders import FindFolder, folders_below, listed_folders
from ors_server.sandbox_service.registry import SandboxSessions
from ors_server.sandboxes import hide_announced_code
from ors_server.sessions.calls.result_store import ResultStore
from ors_server.settings import Settings
from ors_server.worker import Identity, identity

__all__ = ["main"]


class _Sandboxes:
    """The sandboxes of this worker, with what they need."""

    def __init__(self, settings: Settings, folders: FindFolder, worker: Identity, key: bytes) -> None:
        self._settings = settings
        self._worker = worker
        self._ids = PlacedIds(key)
        self._pool = ThreadPool("ors-lifecycle", settings.lifecycle_threads)
        self._results = ResultStore(settings, self._pool)
        self.closing = asyncio.Event()
        self.sessions: SandboxSessions | None = None
        if settings.sandbox_service:
            self.sessions = SandboxSessions(settings, self._results, folders, self._new_id)

    def _new_id(self) -> str:
        """Return the id of a sandbox that is about to start."""
        hide_announced_code(self._worker)
        return self._ids.make(Place(self._worker.slot, self._worker.incarnation))

    def __len__(self) -> int:
        return 0 if self.sessions is None else len(self.sessions)

    def state(self) -> dict[str, Any]:
        """Return the state for gateways and the supervisor."""
        most = self._settings.max_sandboxes
        return {"sessions": len(self), "max_sessions": most, "calls": 0, "environments": [], "task_lists": {}}

    def take_no_more(self) -> None:
        """Refuse new sandboxes from now on."""
        if self.sessions is not None:
            self.sessions.take_no_more()

    async def close(self) -> None:
        """End all sandboxes, and wait for them up to their limits."""
        self.closing.set()
        if self.sessions is not None:
            await self.sessions.close()
        self.abandon()

    def abandon(self) -> None:
        """Release the disk and the threads without waiting for any sandbox."""
        self._results.close()
        self._pool.abandoned = True
        self._pool.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM, or until the supervisor has ended."""
    parser = argparse.ArgumentParser(description="Started by `ors-server serve --workers` and `ors-server host`.")
    parser.add_argument("--folders", type=Path, help="JSON file of data folders by names of environments")
    given = parser.parse_args(arguments)
    settings = Settings()
    worker = identity()
    assert worker is not None, "started by a supervisor"
    files = data_directory(settings.data_dir) / "files"
    folders = folders_below(files) if given.folders is None else listed_folders(given.folders)
    key = bytes.fromhex(os.environ.pop(KEY_VARIABLE))
    sandboxes = _Sandboxes(settings, folders, worker, key)
    routes = SandboxRoutes(settings, sandboxes.sessions)
    authenticator = Authenticator(Keys(keys_file(settings)), Usage(worker.folder, worker.slot), behind_gateway=True)
    if sandboxes.sessions is not None:
        authenticator.keys.on_change.append(sandboxes.sessions.end_of)

    metrics = MetricsRoutes(settings, None, sandboxes.sessions) if settings.metrics else None

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with app.watching():
            yield

    table = {**routes.table, **routes.shared}
    app = HotApp(settings, table, authenticator, metrics, title="ors-server: sandboxes", lifespan=lifespan)
    app.document(partial(files_router, folders, authenticator.keys))
    app.routes_by_name["state"] = worker_state_route(worker, sandboxes.closing, sandboxes.state)
    if metrics is not None:
        app.routes_by_name["figures"] = figures_route(metrics)
    if settings.pages:
        app.serve_pages(PagesContext(settings, sandboxes.sessions, worker.slot, authenticator))
    serve_application(app, settings, sandboxes, [], {}, lambda _: None)


if __name__ == "__main__":
    main()
    sys.exit(0)
