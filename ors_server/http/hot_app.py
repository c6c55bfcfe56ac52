"""FastAPI with the hot path before it.

A request of a protocol route is answered without entering FastAPI (``routes.table``). The same routes are registered in
FastAPI for the OpenAPI document and for applications to which a user has added middleware: then every request goes
through the middleware and FastAPI, and takes as long as that takes.

FastAPI gets its routes at the first request that it answers: making them takes longer than all else that an application
needs, and most processes are never asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.routing import BaseRoute
from starlette.routing import Route as PathRoute
from starlette.types import Message, Receive, Scope, Send

from ors_server.errors import OrsError
from ors_server.http.errors import BodyTooLarge
from ors_server.http.exchange import ClientDisconnected, Exchange
from ors_server.http.openapi import add_documented_routes, add_keys
from ors_server.http.refusal import refuse
from ors_server.http.routes.metrics import MetricsRoutes
from ors_server.http.routes.pages import LazyPages
from ors_server.http.routes.rollouts import platform_error
from ors_server.http.routes.table import Route, answer
from ors_server.keys.authentication import FILES, KEY, Authenticator
from ors_server.pages.context import PagesContext
from ors_server.settings import ReturnErrors, Settings
from ors_server.telemetry.counts import RouteCounts
from ors_server.wire.encoding import encode
from ors_server.wire.request_ids import REQUEST_ID, RequestIds, request_ids
from ors_server.wire.version import VERSION

__all__ = ["HotApp"]

#: Route of the gateways.
_STATE = "/_ors/state"


class HotApp(FastAPI):
    """An application whose ``routes`` of the hot path are found by the last segment of their path.

    ``authenticator`` checks the key of each request. ``metrics`` is None where there are no metrics; else it answers
    ``/metrics``, and all requests are counted.
    """

    def __init__(
        self,
        settings: Settings,
        routes: dict[str, Route],
        authenticator: Authenticator,
        metrics: MetricsRoutes | None,
        **options: Any,
    ) -> None:
        super().__init__(version=VERSION, redirect_slashes=False, **options)
        self.routes_by_name = routes if metrics is None else metrics.counted({**routes, **metrics.table})
        self.authenticator = authenticator
        authenticator.operations = {name for name, route in self.routes_by_name.items() if route.per_environment}
        self.metrics = metrics
        #: The requests that FastAPI answers.
        self._others = None if metrics is None else metrics.others
        #: Makes what ``routes`` still lacks; None where it lacks nothing.
        self._register: Callable[[], None] | None = None
        self._max_body = settings.max_body
        self._return_errors: ReturnErrors = settings.return_errors
        self.add_exception_handler(OrsError, _on_error)
        self.add_exception_handler(RequestValidationError, _on_invalid)

    def document(self, *routers: Callable[[], APIRouter]) -> None:
        """Register the routes of these routers, and after them those of the hot path, in FastAPI.

        They are made when they are first needed, and stand before the routes that are added after this call.
        """
        names, before = dict(self.routes_by_name), len(self.router.routes)

        def register() -> None:
            added_later = self.router.routes[before:]
            del self.router.routes[before:]
            for make in routers:
                self.include_router(make())
            add_documented_routes(self.router, names)
            self.router.routes.extend(added_later)

        self._register = register

    @property
    def routes(self) -> list[BaseRoute]:
        """All routes."""
        self._complete()
        return super().routes

    def _complete(self) -> None:
        register, self._register = self._register, None
        if register is not None:
            register()

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, which is made once."""
        if self.openapi_schema is None:
            add_keys(super().openapi())
        assert self.openapi_schema is not None
        return self.openapi_schema

    def serve_pages(self, context: PagesContext) -> None:
        """Serve the pages, below ``/ui``."""
        pages = LazyPages(context)
        for path in ("/ui", "/ui/{path:path}"):
            self.router.routes.append(PathRoute(path, pages, include_in_schema=False))

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Read the file of keys again when it changes, and measure the event loop's lag, meanwhile."""
        keys = asyncio.create_task(self.authenticator.keys.watch())
        if self.metrics is not None:
            self.metrics.lag.start()
        try:
            yield
        finally:
            if self.metrics is not None:
                self.metrics.lag.stop()
            keys.cancel()

    async def answer(self, route: Route, exchange: Exchange) -> None:
        """Answer a request of the hot path."""
        await answer(route, exchange, self._return_errors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        path: str = scope["path"]
        root_path: str = scope.get("root_path", "")
        if root_path and path.startswith(root_path):
            path = path[len(root_path) :]
        if path[-1:] == "/" or path[:2] == "//":  # a base URL that ends in a slash, as clients join it
            path = "/" + path.strip("/")
            scope = {**scope, "path": root_path + path, "raw_path": (root_path + path).encode()}
        # It alone holds the headers by name: it frees them when its answer is a stream that stays open for long.
        exchange = Exchange(scope, receive, send, None)
        try:
            scope[KEY] = self.authenticator.authenticate(scope, path, exchange.headers)
        except OrsError as error:
            if path != _STATE or "state" not in self.routes_by_name:  # gateways ask for it without a key
                await refuse(error, exchange, path)
                if self._others is not None:
                    self._others.add(error.status)
                return
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if not self.user_middleware:
            last = path.rfind("/")
            route = self.routes_by_name.get(path[last + 1 :])
            if route is not None and route.method == scope["method"]:
                if path[:last] == route.prefix:
                    await answer(route, exchange, self._return_errors)
                    return
                if route.per_environment and path.find("/", 1) == last:
                    exchange.environment = path[1:last]
                    await answer(route, exchange, self._return_errors)
                    return
        if scope["method"] not in ("GET", "HEAD") and not path.startswith(FILES):
            try:
                body = await exchange.body(self._max_body)
            except ClientDisconnected:
                return
            except BodyTooLarge as error:
                if path.startswith("/v1/"):
                    await exchange.json(platform_error(error), error.status)
                else:
                    await exchange.error(error)
                return
            receive = _replay(body, receive)
        counted = bool(self.user_middleware) and path.rpartition("/")[2] in self.routes_by_name
        await self._by_framework(scope, receive, send, None if counted else self._others)

    async def _by_framework(self, scope: Scope, receive: Receive, send: Send, counts: RouteCounts | None) -> None:
        """Answer a request by FastAPI; count it where no route does."""
        if self.user_middleware or not f"{scope['path']}/".startswith("/ui/"):  # pages need no other route
            self._complete()
        headers = dict(scope["headers"])
        ids = RequestIds(headers.get(REQUEST_ID), headers.get(b"x-session-id"))
        request_ids.set(ids)
        code = 499

        async def answer(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
                request = ids.for_response
                if request is not None and not any(name.lower() == REQUEST_ID for name, _ in message["headers"]):
                    message["headers"] = [*message["headers"], (REQUEST_ID, request.encode())]
            await send(message)

        begun = time.perf_counter()
        if counts is not None:
            counts.active += 1
        try:
            await super().__call__(scope, receive, answer)
        finally:
            if counts is not None:
                counts.end(code, time.perf_counter() - begun)


def _replay(body: bytes, receive: Receive) -> Receive:
    first = True

    async def replay() -> Any:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OrsError)
    return Response(platform_error(error), error.status, dict(error.headers), media_type="application/json")


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Without the input, as on the hot path: it may hold secrets or answers to tasks.
    problems = [{key: value for key, value in problem.items() if key != "input"} for problem in error.errors()]
    message = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in problems)
    return Response(encode({"detail": problems, "message": message}), 422, media_type="application/json")
