"""Log-in with a key, and log-out.

The key itself is kept nowhere: the cookie says for whom and until when, and is signed. It ends with the key.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ors_server.errors import OrsError
from ors_server.keys.authentication import COOKIE
from ors_server.keys.errors import NotAuthorized, TooManyGuesses
from ors_server.pages.context import PagesContext, ViewRoute
from ors_server.pages.responses import Responses

__all__ = ["LoginViews"]

#: Seconds of a log-in.
_DURATION = 12 * 3600.0


class LoginViews:
    """The pages of the log-in."""

    def __init__(self, context: PagesContext, responses: Responses) -> None:
        self._authenticator = context.authenticator
        self._responses = responses
        self.routes: list[ViewRoute] = [
            ("GET", "/ui/login", self.form),
            ("POST", "/ui/login", self.log_in),
            ("POST", "/ui/logout", self.log_out),
        ]

    async def form(self, request: Request) -> Response:
        """Ask for a key."""
        if not self._authenticator.keys.wanted:
            return self._responses.redirect(request, "")
        return await self._responses.render(request, "login.html", {"bare": True, "problem": ""})

    async def log_in(self, request: Request) -> Response:
        """Check the key that was typed, and remember its owner in a cookie."""
        form = await self._responses.form(request)
        try:
            key = self._authenticator.log_in(request.scope, form.get("key", ""))
        except (NotAuthorized, TooManyGuesses) as error:
            return await self._refused(request, error)
        response = self._responses.redirect(request, "")
        response.set_cookie(
            COOKIE,
            self._authenticator.keys.cookie(key, _DURATION),
            max_age=int(_DURATION),
            path=self._responses.base(request),
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def _refused(self, request: Request, error: OrsError) -> Response:
        # With its status: a gateway counts wrong keys by it.
        context = {"bare": True, "problem": error.text}
        response = await self._responses.render(request, "login.html", context, error.status)
        response.headers.update(dict(error.headers))
        return response

    async def log_out(self, request: Request) -> Response:
        """Forget the log-in."""
        await self._responses.form(request)
        response = self._responses.redirect(request, "/login")
        response.delete_cookie(COOKIE, path=self._responses.base(request), httponly=True, samesite="strict")
        return response
