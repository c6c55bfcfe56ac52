"""The routes of the hot path as FastAPI knows them: for the OpenAPI document and for applications with middleware.

An operation becomes an endpoint that is never called: its signature and the docstring of its handler document it. The
handler answers its requests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Header, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from ors_server.http.exchange import Exchange
from ors_server.http.routes.operations import OPERATIONS, Operation
from ors_server.http.routes.table import Handler, Route
from ors_server.keys.authentication import OPEN_PATHS

__all__ = ["add_documented_routes", "add_keys"]

#: The two ways to send a key; none is needed where a server has no keys.
_SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
_SECURITY: list[dict[str, list[str]]] = [{}, {"key": []}, {"bearer": []}]
#: The answers that a key, or the lack of one, adds to those of an operation.
_KEY_ERRORS = {
    "401": "The server wants a key that it knows",
    "429": "Too many wrong keys came from this address",
    "503": "The key is above its limits; try again after `Retry-After`",
}

_HEADERS: dict[str, tuple[Any, Any]] = {
    "session_id": (
        Annotated[str, Header(alias="X-Session-ID", description="The session's id.")],
        inspect.Parameter.empty,
    ),
    "deployment": (
        Annotated[str | None, Header(alias="X-Deployment", description="The environment, for a path that names none.")],
        None,
    ),
    "key": (
        Annotated[
            str | None,
            Header(
                alias="Idempotency-Key",
                description="Makes a retry safe: the same key of a session never runs twice.",
            ),
        ],
        None,
    ),
}

_EVENTS = {
    "description": "Events: task_id, then chunk … end (JSON in pieces), or error",
    "content": {"text/event-stream": dict[str, Any]()},
}


class Application(Protocol):
    """The part of the application that its routes use."""

    routes_by_name: dict[str, Route]

    async def answer(self, route: Route, exchange: Exchange) -> None:
        """Answer a request of the hot path."""
        ...


class _HandledResponse(Response):
    """A response that a handler writes itself."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class _HotRoute(APIRoute):
    """A FastAPI route whose requests go to the handler of its last path segment."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        name = self.path.rpartition("/")[2]

        async def handle(request: Request) -> Response:
            app: Application = request.scope["app"]
            environment = request.path_params.get("env_name")

            async def run(scope: Scope, receive: Receive, send: Send) -> None:
                await app.answer(app.routes_by_name[name], Exchange(scope, request.receive, send, environment))

            return _HandledResponse(run)

        return handle


def add_documented_routes(router: APIRouter, routes: Mapping[str, Route]) -> None:
    """Add all operations to an application's router, in the order of ``routes``."""
    for name, route in routes.items():
        operation = OPERATIONS[name]
        endpoint = _endpoint(operation, route.handler)
        responses: dict[int | str, dict[str, Any]] = {200: _answer_of(operation)}
        responses |= {status: {"description": text} for status, text in operation.errors.items()}
        bare = f"{operation.prefix}/{name}"
        for path in (bare, f"/{{env_name}}/{name}") if operation.per_environment else (bare,):
            router.add_api_route(
                path,
                endpoint,
                name=name,
                methods=[operation.method],
                tags=[operation.tag],
                responses=responses,
                response_model=None,
                route_class_override=_HotRoute,
            )


def add_keys(document: dict[str, Any]) -> None:
    """Document in an OpenAPI document how keys are sent, and how a request without a valid one is answered."""
    document.setdefault("components", {})["securitySchemes"] = _SCHEMES
    for path, operations in document["paths"].items():
        if path in OPEN_PATHS:
            continue
        for operation in operations.values():
            operation["security"] = _SECURITY
            for status, text in _KEY_ERRORS.items():
                operation["responses"].setdefault(status, {"description": text})


def _answer_of(operation: Operation) -> dict[str, Any]:
    if operation.content_type:
        return {"description": "Text", "content": {operation.content_type: {"schema": {"type": "string"}}}}
    return _EVENTS if operation.returns is None else {"model": operation.returns}


def _endpoint(operation: Operation, handler: Handler) -> Callable[..., Any]:
    async def endpoint() -> None: ...

    parameters: list[inspect.Parameter] = []
    for header in operation.headers:
        annotation, default = _HEADERS[header]
        parameters.append(
            inspect.Parameter(header, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        )
    for parameter, annotation in operation.query.items():
        parameters.append(
            inspect.Parameter(
                parameter,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotation if parameter == "path" else annotation | None,
                **({} if parameter == "path" else {"default": None}),
            )
        )
    if operation.body is not None:
        parameters.append(inspect.Parameter("body", inspect.Parameter.KEYWORD_ONLY, annotation=operation.body))
    endpoint.__doc__ = handler.__doc__
    endpoint.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess] - FastAPI reads it
    return endpoint
