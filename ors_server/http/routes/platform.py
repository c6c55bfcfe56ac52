"""Routes of the hosted platform that clients also ask a self-hosted server for, under ``/v1``.

A self-hosted server has no accounts and no catalogue. It has one namespace, ``local``, with every environment that it
hosts; an environment with an alias ``owner/Name`` is found under that name too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request

from ors_server.hosting.catalogue import Catalogue, HostedEnvironment
from ors_server.http.errors import NoOrganisation
from ors_server.http.routes.rollouts import Limit, Offset, owner_of
from ors_server.rollouts.store import RolloutStore

__all__ = ["platform_router"]

NAMESPACE = "local"

Unsigned = Annotated[int | None, Query(ge=0, lt=2**63)]


def platform_router(catalogue: Catalogue, store: RolloutStore) -> APIRouter:
    """Make the router of ``/v1/environments`` with its subpaths, and of ``/v1/namespace/current``."""
    router = APIRouter(prefix="/v1", tags=["platform"])
    unknown: dict[int | str, dict[str, Any]] = {404: {"description": "Unknown environment"}}
    # Where many rollouts are stored it reads much of the database: one at a time, and not on the listings' threads.
    difficulty_threads: list[anyio.CapacityLimiter] = []

    def hosted(owner: str, name: str) -> HostedEnvironment:
        # As for `X-Deployment`: the session that this client opens has the same environment.
        return catalogue.by_deployment(f"{owner}/{name}" if owner else name) or catalogue.default

    @router.get("/namespace/current", responses={404: {"description": "There are no organisations"}})
    async def namespace(type: Literal["user", "org"] = "user") -> dict[str, str]:
        """Return the namespace of the client: without accounts, every client is the same user."""
        if type == "org":
            raise NoOrganisation(NAMESPACE)
        return {"id": NAMESPACE, "name": NAMESPACE, "type": "user"}

    @router.get("/environments")
    async def environments(owner: str = "", search: str = "", limit: Limit = 20, offset: Offset = 0) -> dict[str, Any]:
        """List the hosted environments, the default first: under their own names, or under an owner's aliases."""
        found = [
            _described(environment, *name)
            for environment in catalogue.environments
            if (name := _name_of(environment, owner.lower())) and _matches(environment, search.lower())
        ]
        return {"environments": found[offset : offset + limit], "total": len(found)}

    # The owner may be empty, as the client sends it for a bare name, and an alias may have more than one slash. The
    # paths below an environment come first, because an owner would match them.

    @router.get("/environments/{owner:path}/{name}/variants", responses=unknown)
    async def variants(owner: str, name: str) -> list[dict[str, str]]:
        """List the names that a client may send as ``variant``: all hosted environments, the named one first."""
        found = hosted(owner, name)
        names = [found.name, *(other for other in catalogue.names if other != found.name)]
        return [{"id": variant, "name": variant} for variant in names]

    @router.get("/environments/{owner:path}/{name}/required-secrets", responses=unknown)
    async def required_secrets(owner: str, name: str) -> dict[str, list[str]]:
        """List the secrets that sessions need, where the class names them in ``required_secrets``."""
        return {"secrets": hosted(owner, name).required_secrets}

    @router.get(
        "/environments/{owner:path}/{name}/task-difficulty",
        responses={**unknown, 503: {"description": "The rollouts cannot be read now"}},
    )
    async def difficulty(
        request: Request,
        owner: str,
        name: str,
        split: str | None = None,
        variant: str | None = None,
        model_name: str | None = None,
        min_model_params: Unsigned = None,
        max_model_params: Unsigned = None,
        training_stage: Literal["pretrained", "sft", "rl"] | None = None,
    ) -> dict[str, list[dict[str, Any]]]:
        """Summarize rewards and lengths of the rollouts, for each task that has rollouts."""
        found = hosted(owner, name)
        asked = f"{owner}/{name}".lower()

        def is_named(uploaded: str) -> bool:
            # Not as for `X-Deployment`, where one environment answers to every name: other servers may upload here.
            uploaded = uploaded.lower()
            return uploaded == asked or (catalogue.find(uploaded) or catalogue.find(_last(uploaded))) is found

        def read() -> list[dict[str, Any]]:
            # Imported by the thread that needs SQLAlchemy.
            from ors_server.rollouts.queries.difficulty import Selection, task_difficulty

            key = owner_of(request)
            selection = Selection(split, variant, model_name, min_model_params, max_model_params, training_stage, key)
            with store.reading() as connection:
                if connection is None:
                    return []
                return task_difficulty(connection, found.name, is_named, selection)

        if not difficulty_threads:
            difficulty_threads.append(anyio.CapacityLimiter(1))
        return {"tasks": await anyio.to_thread.run_sync(read, limiter=difficulty_threads[0])}

    @router.get("/environments/{owner:path}/{name}", responses=unknown)
    async def environment(owner: str, name: str) -> dict[str, Any]:
        """Return an environment by its name in a catalogue; its id is the name under which it is hosted."""
        return _described(hosted(owner, name), owner or NAMESPACE, name)

    return router


def _described(environment: HostedEnvironment, owner: str, name: str) -> dict[str, Any]:
    return {
        "id": environment.name,
        "owner": owner,
        "namespace": owner,
        "name": name,
        "aliases": environment.aliases,
        "splits": [split.model_dump() for split in environment.splits],
        "is_private": False,
        "has_github_connection": False,
    }


def _name_of(environment: HostedEnvironment, owner: str) -> tuple[str, str] | None:
    """Return the owner and the name that a listing shows; None where this owner has no such environment."""
    if owner in ("", NAMESPACE):
        return NAMESPACE, environment.name
    owned = (alias.rpartition("/") for alias in environment.aliases)
    return next(((before, last) for before, _, last in owned if before.lower() == owner), None)


def _matches(environment: HostedEnvironment, search: str) -> bool:
    return any(search in name.lower() for name in (f"{NAMESPACE}/{environment.name}", *environment.aliases))


def _last(name: str) -> str:
    return name.rpartition("/")[2]
