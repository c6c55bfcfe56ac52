"""The page of sandboxes, which the worker that has the sandboxes of a server shows as well."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.pages.context import PagesContext, ServerContext, ViewRoute, visitor_of
from ors_server.pages.responses import Responses
from ors_server.sandboxes import running_sandbox_service

__all__ = ["SandboxViews"]


class SandboxViews:
    """The page of sandboxes."""

    def __init__(self, context: PagesContext, responses: Responses) -> None:
        self._context = context
        self._responses = responses
        self.routes: list[ViewRoute] = [("GET", "/ui/sandboxes", self.sandboxes)]

    async def sandboxes(self, request: Request) -> Response:
        """Show the sandboxes: the pool, the queue, the machine and its limits."""
        service = running_sandbox_service()
        settings = self._context.settings
        shown: dict[str, Any] = {
            "runtime": settings.sandbox_runtime,
            "started": service is not None,
            "settings": {
                "ORS_SANDBOX_WARM": settings.sandbox_warm,
                "ORS_SANDBOX_WARM_TOTAL": settings.sandbox_warm_total,
                "ORS_SANDBOX_QUEUE": settings.sandbox_queue,
                "ORS_SANDBOX_QUEUE_TIMEOUT": settings.sandbox_queue_timeout,
                "ORS_SANDBOX_MEMORY": settings.sandbox_memory,
                "ORS_SANDBOX_NETWORK": settings.sandbox_network,
                "ORS_MAX_SANDBOXES": settings.max_sandboxes,
            },
            "waiting": {each.name: each.waiting_for_room for each in self._environments() if each.waiting_for_room},
        }
        if service is not None:
            pool = service.pool
            shown |= {
                "warm": pool.warm,
                "counts": asdict(pool.counts),
                "queue": pool.admission.waiting,
                "starting": pool.admission.starting,
                "capacity": pool.admission.capacity(),
                "description": service.runtime.describe(),
            }
        if self._context.sandboxes is not None:
            now = time.monotonic()
            shown["sandboxes"] = [
                {
                    "sid": sandbox.sid,
                    "image": sandbox.image,
                    "age": now - sandbox.opened,
                    "idle": now - sandbox.last_seen,
                    "busy": sandbox.busy,
                    "ending": bool(sandbox.end_reason),
                }
                for sandbox in self._context.sandboxes
                if sandbox.owner == visitor_of(request).name
            ]
        return await self._responses.render(request, "sandboxes.html", shown)

    def _environments(self) -> Sequence[HostedEnvironment]:
        return self._context.catalogue.environments if isinstance(self._context, ServerContext) else ()
