"""Routes of OpenReward's sandbox service, which this server does not have: each answers with 501.

Environments of ``openreward`` request sandboxes from the host of their sessions, so their requests arrive here. A 404
would look like a wrong address.
"""

from __future__ import annotations

from typing import NoReturn

from fastapi import APIRouter

from ors_server.errors import NoSandboxService

__all__ = ["sandbox_service_router"]

_PATHS = ("/create_sandbox", "/run", "/stat_file", "/read_file", "/write_file", "/set_network")


def sandbox_service_router() -> APIRouter:
    """Make the router of ``/create_sandbox`` and the requests of a sandbox, all answered with 501."""
    router = APIRouter(include_in_schema=False)

    async def refuse() -> NoReturn:
        raise NoSandboxService

    for path in _PATHS:
        router.add_api_route(path, refuse, methods=["POST"], name=path[1:], response_model=None)
    return router
