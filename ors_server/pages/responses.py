"""Responses of the pages, and the forms that they get."""

from __future__ import annotations

import urllib.parse
from typing import Any, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ors_server.pages.access import CSRF_COOKIE, CSRF_FIELD, check_form, csrf_token
from ors_server.pages.context import PagesContext, visitor_of
from ors_server.pages.rendering import Renderer
from ors_server.wire.version import VERSION

__all__ = ["Rendering", "Responses"]

#: Largest form, in bytes; and fields of one.
_LONGEST_FORM, _MOST_FIELDS = 4 * 2**20, 1000


class Rendering(Protocol):
    """Rendering of a page from its template and what the template shows."""

    async def render(self, request: Request, template: str, context: dict[str, Any], status: int = 200) -> Response:
        """Render a page."""
        ...


class Responses:
    """The responses of one server's pages."""

    def __init__(self, context: PagesContext) -> None:
        self._context = context
        self._keys = context.authenticator.keys
        self._renderer = Renderer()

    async def render(self, request: Request, template: str, context: dict[str, Any], status: int = 200) -> Response:
        """Render a page for a visitor."""
        token = csrf_token(request, self._keys)
        response = await self._renderer.page(template, {**self._common(request), **context, "token": token}, status)
        if not visitor_of(request).name and request.cookies.get(CSRF_COOKIE) != token:
            response.set_cookie(
                CSRF_COOKIE, token, path=self.base(request), httponly=True, samesite="strict",
                secure=request.url.scheme == "https",
            )  # fmt: skip
        return response

    async def fragment(self, request: Request, template: str, context: dict[str, Any]) -> str:
        """Render a part of a page."""
        return await self._renderer.text(
            template, {**self._common(request), **context, "token": csrf_token(request, self._keys)}
        )

    def redirect(self, request: Request, path: str) -> Response:
        """Send the visitor to another page."""
        return RedirectResponse(self.base(request) + path, 303)

    async def form(self, request: Request) -> dict[str, str]:
        """Read a form that was sent from one of these pages. Raises ``ForeignRequest``."""
        body = await request.body()
        if len(body) > _LONGEST_FORM:
            raise HTTPException(413, "The form is larger than 4 MiB.")
        try:
            pairs = urllib.parse.parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
        except ValueError:
            raise HTTPException(400, "This is not a form.") from None
        form = dict(pairs)
        check_form(request, form.pop(CSRF_FIELD, ""), self._keys)
        return form

    def base(self, request: Request) -> str:
        """Return the path of the pages, with what a proxy has put before it."""
        return str(request.scope.get("root_path", "")) + "/ui"

    def _common(self, request: Request) -> dict[str, Any]:
        return {
            "bare": False,
            "bundled": False,
            "base": self.base(request),
            "path": request.scope["path"].removeprefix(str(request.scope.get("root_path", ""))),
            "version": VERSION,
            "visitor": visitor_of(request).name,
            "worker": self._context.worker_slot,
            "workers": self._other_workers(request),
        }

    def _other_workers(self, request: Request) -> list[int]:
        """Return the slots of all workers, as the gateway says; none for a server of one process."""
        if self._context.worker_slot is None:
            return []
        return [int(slot) for slot in request.headers.get("x-ors-workers", "").split() if slot.isdecimal()][:256]
