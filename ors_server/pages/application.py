"""The pages below ``/ui``: an ASGI application of its own, which a server makes at the first request for a page.

Invariants: every response forbids scripts, styles and requests of any other origin; everything that changes something
is a POST with the token of a form of these pages; a page shows what belongs to its visitor, and errors without a
traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ors_server.errors import OrsError
from ors_server.pages.access import check_host
from ors_server.pages.context import PagesContext, ServerContext, ViewRoute, visitor_of
from ors_server.pages.playground import Playground
from ors_server.pages.responses import Responses
from ors_server.pages.views.environment_views import EnvironmentViews
from ors_server.pages.views.live_views import LiveViews
from ors_server.pages.views.login_views import LoginViews
from ors_server.pages.views.playground_views import PlaygroundViews
from ors_server.pages.views.rollout_views import RolloutViews
from ors_server.pages.views.run_views import RunViews
from ors_server.pages.views.sandbox_views import SandboxViews

__all__ = ["Pages"]

logger = logging.getLogger("ors_server.pages")

_STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Pages:
    """The application of the pages of one server."""

    def __init__(self, context: PagesContext) -> None:
        self._context = context
        self._responses = Responses(context)
        views: list[ViewRoute] = SandboxViews(context, self._responses).routes
        if isinstance(context, ServerContext):
            playground = Playground(context.sessions)
            for kind in (PlaygroundViews, LiveViews):
                views += kind(context, self._responses, playground).routes
            for kind in (EnvironmentViews, RunViews, RolloutViews):
                views += kind(context, self._responses).routes
        log_in = LoginViews(context, self._responses)
        routes = [
            Route("/ui/static/{name}", self._static, methods=["GET"]),
            Route("/ui/help", self._guarded(self._help), methods=["GET"]),
        ]
        routes += [Route(path, handler, methods=[method]) for method, path, handler in log_in.routes]
        routes += [Route(path, self._guarded(handler), methods=[method]) for method, path, handler in views]
        self._router = Router(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in _HEADERS.items()),
                    *([] if b"cache-control" in present else [(b"cache-control", b"no-store")]),
                ]
            await send(message)

        # Without the handlers of the application around it, which answer JSON.
        scope = {name: value for name, value in scope.items() if name != "starlette.exception_handlers"}
        request = Request(scope, receive)
        try:
            await self._router(scope, receive, send_with_headers)
        except Exception as error:  # noqa: BLE001 - every fault becomes a page, and its traceback stays in the log
            response = await self._failed(request, error)
            await response(scope, receive, send_with_headers)

    # --- details -----------------------------------------------------------------------------

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if self._context.authenticator.keys.wanted:
                if not visitor_of(request).name:
                    return self._responses.redirect(request, "/login")
            elif not self._context.settings.insecure:
                check_host(request)
            return await handler(request)

        return guarded

    async def _failed(self, request: Request, error: Exception) -> Response:
        status, title, remedy = 500, "The page failed", "The server's log has the reason."
        if isinstance(error, OrsError):
            status, title, remedy = error.status, error.cause, error.remedy
        elif isinstance(error, HTTPException):
            detail = "There is no such page" if error.detail == "Not Found" else error.detail
            status, (title, _, remedy) = error.status_code, detail.partition(". ")
        else:
            logger.error("page failed", exc_info=error, extra={"path": request.scope["path"]})
        return await self._responses.render(
            request, "error.html", {"status": status, "title": title, "remedy": remedy}, status
        )

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        # Only names of files that are there: a request gives no path.
        found = {path.name: path for path in await asyncio.to_thread(lambda: list(_STATIC.iterdir()))}.get(name)
        if found is None or found.suffix not in _TYPES:
            raise HTTPException(404)
        return FileResponse(found, media_type=_TYPES[found.suffix], headers={"cache-control": "public, max-age=3600"})

    async def _help(self, request: Request) -> Response:
        return await self._responses.render(request, "help.html", {})
