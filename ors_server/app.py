"""The ASGI application: FastAPI, with the hot path in front of it.

A request of a direct route is answered without entering FastAPI (``routes.direct``). The same routes are registered
in FastAPI too, for the OpenAPI document and for applications to which a user has added middleware: then every request
goes through the middleware, at FastAPI's price.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from ors_server._version import VERSION
from ors_server.encoding import encode
from ors_server.errors import BodyTooLarge, OrsError
from ors_server.exchange import ClientDisconnected, Exchange
from ors_server.hosting import Catalogue
from ors_server.protocol import (
    Blocks,
    CreateSession,
    ListToolsOutput,
    Message,
    ScoreGroup,
    ToolCall,
)
from ors_server.routes.direct import DirectRoutes
from ors_server.routes.discovery import discovery_router
from ors_server.routes.platform import platform_router
from ors_server.sessions import Sessions

__all__ = ["OrsApp"]

_DESCRIPTION = """Environments for reinforcement learning over the Open Reward Standard.

A session is one episode: `POST /create_session` gives its id, `POST /create` binds it to a task, `GET /prompt` is what
the model reads, `POST /call` runs a tool and gives its output and reward, `POST /delete` ends it. The session's id goes
into the header `X-Session-ID`. Every per-environment path also exists without the name."""

SessionID = Annotated[str, Header(alias="X-Session-ID", description="The session's id.")]


class OrsApp(FastAPI):
    """The application of one server. Works with and without a lifespan."""

    def __init__(self, sessions: Sessions) -> None:
        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
            yield
            await sessions.close()

        super().__init__(title="ors-server", version=VERSION, description=_DESCRIPTION, lifespan=lifespan)
        self.sessions = sessions
        self.direct = DirectRoutes(sessions)
        self._max_body = sessions.settings.max_body
        self.add_exception_handler(OrsError, _on_error)
        self.add_exception_handler(RequestValidationError, _on_invalid)
        catalogue: Catalogue = sessions.catalogue
        self.include_router(_episode_router())
        self.include_router(platform_router(catalogue))
        self.include_router(discovery_router(catalogue, sessions.settings.return_errors))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if not self.user_middleware:
            path: str = scope["path"]
            root_path: str = scope.get("root_path", "")
            if root_path and path.startswith(root_path):
                path = path[len(root_path) :]
            last = path.rfind("/")
            route = self.direct.table.get(path[last + 1 :])
            if route is not None and route.method == scope["method"]:
                if last == 0:
                    await self.direct.answer(route, Exchange(scope, receive, send, None))
                    return
                if route.per_environment and path.find("/", 1) == last:
                    await self.direct.answer(route, Exchange(scope, receive, send, path[1:last]))
                    return
        if scope["method"] not in ("GET", "HEAD"):
            exchange = Exchange(scope, receive, send, None)
            try:
                body = await exchange.body(self._max_body)
            except ClientDisconnected:
                return
            except BodyTooLarge as error:
                await exchange.error(error)
                return
            receive = _replay(body, receive)
        await super().__call__(scope, receive, send)


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
    return Response(encode({"detail": error.detail}), error.status, dict(error.headers), media_type="application/json")


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Without the input, as on the hot path: it may hold answers or secrets.
    problems = [{key: value for key, value in problem.items() if key != "input"} for problem in error.errors()]
    return Response(encode({"detail": problems}), 422, media_type="application/json")


# --- the direct routes, as FastAPI knows them ----------------------------------------------------


class _Direct(Response):
    """Stands for the response that a direct route's handler writes itself."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class _DirectRoute(APIRoute):
    """A route whose endpoint documents it and whose request the handler of its last path segment answers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        name = self.path.rpartition("/")[2]

        async def handle(request: Request) -> Response:
            app: OrsApp = request.scope["app"]
            environment = request.path_params.get("env_name")

            async def run(scope: Scope, receive: Receive, send: Send) -> None:
                exchange = Exchange(scope, request.receive, send, environment)
                await app.direct.answer(app.direct.table[name], exchange)

            return _Direct(run)

        return handle


def _episode_router() -> APIRouter:
    router = APIRouter(route_class=_DirectRoute, tags=["episodes"])
    events: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "Events: task_id, then chunk … end (JSON in pieces), or error",
            "content": {"text/event-stream": {}},
        },
        404: {"description": "Unknown session or environment"},
        409: {"description": "The session belongs to another environment"},
        410: {"description": "The session has ended"},
        503: {"description": "Still starting; retry"},
    }
    answers: dict[int | str, dict[str, Any]] = {code: text for code, text in events.items() if code != 200}

    @router.post("/create_session", responses={200: events[200]})
    async def create_session() -> None:  # pyright: ignore[reportUnusedFunction]
        """Allocate a session id: as events where the client accepts them, else as `{"sid": …}`."""

    @router.post("/create", responses={400: {"description": "The id is in use, or the task does not exist"}})
    async def create(session_id: SessionID, body: CreateSession) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        """Bind the session to a task: given whole, or by split and index."""
        return {}

    @router.post("/delete")
    async def delete(session_id: SessionID) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        """End the session; unknown ids are ignored."""
        return {}

    @router.post("/delete_session")
    async def delete_session(session_id: SessionID) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        """Acknowledge the end of a session."""
        return {}

    @router.post("/ping", responses=answers)
    async def ping(session_id: SessionID) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        """Keep the session alive."""
        return {}

    @router.get("/health", tags=["server"])
    async def health() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        """Whether the server answers."""
        return {}

    async def call(session_id: SessionID, body: ToolCall) -> None:
        """Run a tool. With `task_id` the result of that call again; `Idempotency-Key` makes a retry safe."""

    async def score_group(session_id: SessionID, body: ScoreGroup) -> None:
        """Score the rollouts of a group against each other."""

    async def prompt(session_id: SessionID) -> None:
        """The task as blocks, once the session is set up."""

    async def messages(session_id: SessionID) -> None:
        """The task as a conversation, once the session is set up."""

    async def task_tools(session_id: SessionID) -> None:
        """The session's tools."""

    for name, endpoint, method, model in (
        ("call", call, "POST", None),
        ("score_group", score_group, "POST", None),
        ("prompt", prompt, "GET", Blocks),
        ("messages", messages, "GET", list[Message]),
        ("task_tools", task_tools, "GET", ListToolsOutput),
    ):
        responses = {**answers, 200: {"model": model}} if model is not None else events
        for path in (f"/{{env_name}}/{name}", f"/{name}"):
            router.add_api_route(path, endpoint, methods=[method], responses=responses, response_model=None)
    return router
