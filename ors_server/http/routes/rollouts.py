"""Routes of uploaded rollouts: the upload, and the listings that openreward's ``orwd`` command requests.

An upload is on the hot path, like a call: it passes the bytes to the writer, whose thread does the rest. Listings read
the database on threads, each over a connection of its own.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from ors_server.errors import OrsError
from ors_server.http.exchange import Exchange
from ors_server.http.routes.table import routes_of
from ors_server.keys.authentication import key_of
from ors_server.rollouts.errors import UnknownRun
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.wire.encoding import encode

__all__ = ["Limit", "Offset", "RolloutRoutes", "owner_of", "platform_error", "runs_router"]


def platform_error(error: OrsError) -> bytes:
    """Encode an error under ``/v1``, where ``orwd`` reads ``message`` and other clients read ``detail``."""
    return encode({"detail": error.detail, "message": error.text})


class RolloutRoutes:
    """Handler of the upload."""

    def __init__(self, writer: RolloutWriter, max_body: int) -> None:
        self._writer = writer
        self._max_body = max_body
        self.table = routes_of(self, "rollouts")

    async def rollouts(self, exchange: Exchange) -> None:
        """Store events of rollouts, in any order, and answer when they are on the disk.

        Events with known ids change nothing. Events that do not fit are named in a 422, and the other events of the
        upload are stored.
        """
        try:
            stored = await self._writer.store(await exchange.body(self._max_body), exchange.key.name or None)
        except OrsError as error:
            await exchange.json(platform_error(error), error.status, error.headers)
        else:
            await exchange.json(b'{"stored":%d}' % stored)


Limit = Annotated[int, Query(ge=0, le=1000)]
Offset = Annotated[int, Query(ge=0, le=2**31)]


def owner_of(request: Request) -> str | None:
    """Return the key of a request, which sees its own rollouts only; None on a server without keys."""
    return key_of(request.scope).name or None


def runs_router(store: RolloutStore) -> APIRouter:
    """Make the router of ``/v1/runs`` with its subpaths."""
    unusable: dict[int | str, dict[str, Any]] = {503: {"description": "The rollouts cannot be read now"}}
    unknown: dict[int | str, dict[str, Any]] = {404: {"description": "Unknown run"}, **unusable}
    router = APIRouter(prefix="/v1/runs", tags=["rollouts"])

    # Not async: FastAPI runs them on threads. They import SQLAlchemy themselves: a server without such requests does
    # not load it.
    @router.get("", responses=unusable)
    def runs(request: Request, search: str = "", limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List the runs of the rollouts, the newest first."""
        from ors_server.rollouts.queries.runs import count_runs, list_runs

        with store.reading() as connection:
            if connection is None:
                return {"runs": [], "total": 0}
            wanted: dict[str, Any] = {"search": search, "owner": owner_of(request)}
            page = list_runs(connection, **wanted, limit=limit, offset=offset)
            return {"runs": [run.as_json() for run in page.rows], "total": count_runs(connection, **wanted)}

    # A run may be given by its name, and names may have slashes in them.
    @router.get("/{run:path}/rollouts", responses=unknown)
    def rollouts(request: Request, run: str, limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List the rollouts of a run, the newest first."""
        from ors_server.rollouts.queries.listed import RolloutFilter, count_rollouts, list_rollouts

        with store.reading() as connection:
            if connection is None:
                raise UnknownRun(run)
            wanted = RolloutFilter(run=run, owner=owner_of(request))
            page = list_rollouts(connection, wanted, limit=limit, offset=offset)
            rows = [{**rollout.as_json(), "rolloutName": rollout.name} for rollout in page.rows]
            return {"rollouts": rows, "total": count_rollouts(connection, wanted)}

    @router.get("/{run:path}", responses=unknown)
    def run(request: Request, run: str) -> dict[str, Any]:
        """Return one run, by its id or its name."""
        from ors_server.rollouts.queries.runs import find_run

        with store.reading() as connection:
            if connection is None:
                raise UnknownRun(run)
            return find_run(connection, run, owner=owner_of(request)).as_json()

    return router
