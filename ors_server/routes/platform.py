"""The routes of the hosted platform that clients also ask a self-hosted server for, under ``/v1``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ors_server.hosting import Catalogue, HostedEnvironment

__all__ = ["platform_router"]


def platform_router(catalogue: Catalogue) -> APIRouter:
    """``/v1/environments/{owner}/{name}`` and what is below it."""
    router = APIRouter(prefix="/v1/environments", tags=["platform"])

    def hosted(owner: str, name: str) -> HostedEnvironment:
        # As an alias first; the error, if neither is hosted, names it as the client did.
        whole = f"{owner}/{name}"
        return catalogue.find(whole) or catalogue.find(name) or catalogue.by_path(whole)

    unknown: dict[int | str, dict[str, Any]] = {404: {"description": "Unknown environment"}}

    @router.get("/{owner}/{name}", responses=unknown)
    async def environment(owner: str, name: str) -> dict[str, Any]:
        """An environment by the name a catalogue would have it under; its id is the name it is hosted under."""
        found = hosted(owner, name)
        return {
            "id": found.name,
            "namespace": owner,
            "name": name,
            "splits": [split.model_dump() for split in found.splits],
        }

    @router.get("/{owner}/{name}/variants", responses=unknown)
    async def variants(owner: str, name: str) -> list[dict[str, str]]:
        """What a client may ask for as ``variant``: each hosted environment, the named one first."""
        found = hosted(owner, name)
        names = [found.name, *(other for other in catalogue.names if other != found.name)]
        return [{"id": variant, "name": variant} for variant in names]

    return router
