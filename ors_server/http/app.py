"""The ASGI application: FastAPI, with the hot path in front of it.

A request of a protocol route is answered without entering FastAPI (``routes.table``). The same routes are registered
in FastAPI too, for the OpenAPI document and for applications to which a user has added middleware: then every request
goes through the middleware, at FastAPI's price.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from ors_server._version import VERSION
from ors_server.encoding import encode
from ors_server.errors import BodyTooLarge, OrsError
from ors_server.http.exchange import ClientDisconnected, Exchange
from ors_server.http.routes.discovery import DiscoveryRoutes
from ors_server.http.routes.episodes import EpisodeRoutes
from ors_server.http.routes.platform import platform_router
from ors_server.http.routes.rollouts import RolloutRoutes, Stored, platform_error, runs_router
from ors_server.http.routes.sandbox_service import sandbox_service_router
from ors_server.http.routes.table import Route, answer
from ors_server.protocol import (
    Blocks,
    CreateSession,
    GetTask,
    GetTaskRange,
    ListTasks,
    ListToolsOutput,
    Message,
    NumTasks,
    ScoreGroup,
    Split,
    ToolCall,
)
from ors_server.rollouts.events import Upload
from ors_server.rollouts.file import data_directory
from ors_server.rollouts.writer import RolloutWriter
from ors_server.sandboxes import hold_sandbox_service
from ors_server.sessions.registry import Sessions
from ors_server.settings import ReturnErrors

__all__ = ["OrsApp"]

logger = logging.getLogger("ors_server.http.app")

_DESCRIPTION = """Environments for reinforcement learning over the Open Reward Standard.

A session is one episode: `POST /create_session` gives its id, `POST /create` binds it to a task, `GET /prompt` is what
the model reads, `POST /call` runs a tool and gives its output and reward, `POST /delete` ends it. The session's id goes
into the header `X-Session-ID`. Every per-environment path also exists without the name."""

Deployment = Annotated[
    str | None, Header(alias="X-Deployment", description="The environment, for a path that names none.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", description="Makes a retry safe: the same key of a session never runs twice."),
]
SessionID = Annotated[str, Header(alias="X-Session-ID", description="The session's id.")]


class OrsApp(FastAPI):
    """The application of one server. Works with and without a lifespan."""

    def __init__(self, sessions: Sessions) -> None:
        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
            # Not when they are found: a server is built before its logging is set up.
            for hosted in sessions.catalogue.environments:
                for problem in hosted.tools.dropped:
                    logger.warning("tool left out", extra={"environment": hosted.name, "reason": problem})
            for name, reason in sessions.catalogue.reasons.items():
                logger.warning("environment unavailable", extra={"environment": name, "reason": reason})
            hold_sandbox_service(sessions, sessions.settings)
            yield
            await sessions.close()
            await self.rollouts.close()

        super().__init__(
            title="ors-server", version=VERSION, description=_DESCRIPTION, lifespan=lifespan, redirect_slashes=False
        )
        self.sessions = sessions
        catalogue = sessions.catalogue
        settings = sessions.settings
        data_dir = data_directory(settings.data_dir)
        #: Where uploaded rollouts go.
        self.rollouts = RolloutWriter(data_dir)
        #: The hot path's routes by their path's last segment.
        self.routes_by_name: dict[str, Route] = {
            **EpisodeRoutes(sessions).table,
            **DiscoveryRoutes(catalogue, settings).table,
            **RolloutRoutes(self.rollouts, settings.max_body).table,
        }
        self._max_body = settings.max_body
        self._return_errors: ReturnErrors = settings.return_errors
        self.add_exception_handler(OrsError, _on_error)
        self.add_exception_handler(RequestValidationError, _on_invalid)
        self.include_router(platform_router(catalogue, data_dir))
        self.include_router(runs_router(data_dir))
        self.include_router(sandbox_service_router())
        self.include_router(_documented_router(self.routes_by_name))

    async def answer(self, route: Route, exchange: Exchange) -> None:
        """Answer a request of the hot path."""
        await answer(route, exchange, self._return_errors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        path: str = scope["path"]
        root_path: str = scope.get("root_path", "")
        if root_path and path.startswith(root_path):
            path = path[len(root_path) :]
        if path[-1:] == "/" or path[:2] == "//":  # a base URL that ends in a slash, as clients join it
            path = "/" + path.strip("/")
            scope = {**scope, "path": root_path + path, "raw_path": (root_path + path).encode()}
        if not self.user_middleware:
            last = path.rfind("/")
            route = self.routes_by_name.get(path[last + 1 :])
            if route is not None and route.method == scope["method"]:
                if path[:last] == route.prefix:
                    await self.answer(route, Exchange(scope, receive, send, None))
                    return
                if route.per_environment and path.find("/", 1) == last:
                    await self.answer(route, Exchange(scope, receive, send, path[1:last]))
                    return
        if scope["method"] not in ("GET", "HEAD"):
            exchange = Exchange(scope, receive, send, None)
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
    return Response(platform_error(error), error.status, dict(error.headers), media_type="application/json")


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # Without the input, as on the hot path: it may hold answers or secrets.
    problems = [{key: value for key, value in problem.items() if key != "input"} for problem in error.errors()]
    message = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in problems)
    return Response(encode({"detail": problems, "message": message}), 422, media_type="application/json")


# --- the hot path's routes, as FastAPI knows them ------------------------------------------------


class _Answered(Response):
    """Stands for the response that a route's handler writes itself."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]) -> None:
        super().__init__()
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class _HotRoute(APIRoute):
    """A route whose endpoint documents it, and whose requests the handler of its last path segment answers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        name = self.path.rpartition("/")[2]

        async def handle(request: Request) -> Response:
            app: OrsApp = request.scope["app"]
            environment = request.path_params.get("env_name")

            async def run(scope: Scope, receive: Receive, send: Send) -> None:
                await app.answer(app.routes_by_name[name], Exchange(scope, request.receive, send, environment))

            return _Answered(run)

        return handle


_EVENTS = {
    "description": "Events: task_id, then chunk … end (JSON in pieces), or error",
    "content": {"text/event-stream": dict[str, Any]()},
}
_SESSION: dict[int | str, dict[str, Any]] = {400: {"description": "No X-Session-ID, or a header that cannot be read"}}
_GONE: dict[int | str, dict[str, Any]] = {
    **_SESSION,
    404: {"description": "Unknown session or environment"},
    409: {"description": "The session belongs to another environment"},
    410: {"description": "The session has ended"},
    503: {"description": "Still starting; retry"},
}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {
    400: {"description": "Invalid split, index, task, header or session id"},
    404: {"description": "Unknown environment"},
}


def _documented_router(routes: Mapping[str, Route]) -> APIRouter:
    router = APIRouter(route_class=_HotRoute)

    def add(
        name: str,
        endpoint: Callable[..., Any],
        answer: Any,
        tag: str,
        errors: dict[int | str, dict[str, Any]] | None = None,
    ) -> None:
        route = routes[name]
        success = _EVENTS if answer is None else {"model": answer}
        bare = f"{route.prefix}/{name}"
        for path in (bare, f"/{{env_name}}/{name}") if route.per_environment else (bare,):
            router.add_api_route(
                path,
                endpoint,
                name=name,
                methods=[route.method],
                tags=[tag],
                responses={200: success, **(errors or {})},
                response_model=None,
            )

    async def health() -> None:
        """Whether the server answers."""

    async def version() -> None:
        """The server's version."""

    async def list_environments() -> None:
        """The names of the hosted environments, the default first."""

    add("health", health, dict[str, str], "server")
    add("version", version, dict[str, str | None], "server")
    add("list_environments", list_environments, list[str], "server")

    async def tools(deployment: Deployment = None) -> None:
        """The tools every session of the environment has."""

    async def splits(deployment: Deployment = None) -> None:
        """The environment's splits."""

    async def tasks(body: ListTasks, deployment: Deployment = None) -> None:
        """All tasks of a split."""

    async def num_tasks(body: NumTasks, deployment: Deployment = None) -> None:
        """The number of tasks of a split."""

    async def task(body: GetTask, deployment: Deployment = None) -> None:
        """One task of a split."""

    async def task_range(body: GetTaskRange, deployment: Deployment = None) -> None:
        """The tasks of a slice of a split."""

    add("tools", tools, ListToolsOutput, "environments", _NOT_FOUND)
    add("splits", splits, list[Split], "environments", _NOT_FOUND)
    add("tasks", tasks, dict[str, Any], "environments", _NOT_FOUND)
    add("num_tasks", num_tasks, dict[str, int], "environments", _NOT_FOUND)
    for name in ("task", "get_task"):
        add(name, task, dict[str, Any], "environments", _NOT_FOUND)
    for name in ("task_range", "get_task_range"):
        add(name, task_range, dict[str, Any], "environments", _NOT_FOUND)

    async def create_session() -> None:
        """Allocate a session id: as events where the client accepts them, else as `{"sid": …}`."""

    async def create(session_id: SessionID, body: CreateSession) -> None:
        """Bind the session to a task: given whole, or by split and index."""

    async def delete(session_id: SessionID) -> None:
        """End the session; unknown ids are ignored."""

    async def delete_session(session_id: SessionID) -> None:
        """Acknowledge the end of a session."""

    async def ping(session_id: SessionID) -> None:
        """Keep the session alive."""

    add("create_session", create_session, None, "sessions")
    add("create", create, dict[str, str], "sessions", {**_NOT_FOUND, 503: _GONE[503]})
    add("delete", delete, dict[str, str], "sessions", _SESSION)
    add("delete_session", delete_session, dict[str, str], "sessions", _SESSION)
    add("ping", ping, dict[str, str], "sessions", {**_SESSION, 404: _GONE[404], 410: _GONE[410]})

    async def prompt(session_id: SessionID) -> None:
        """The task as blocks, once the session is set up."""

    async def messages(session_id: SessionID) -> None:
        """The task as a conversation, once the session is set up."""

    async def task_tools(session_id: SessionID) -> None:
        """The session's tools."""

    async def call(session_id: SessionID, body: ToolCall, key: IdempotencyKey = None) -> None:
        """Run a tool. With `task_id`: the result of that call again."""

    async def score_group(session_id: SessionID, body: ScoreGroup) -> None:
        """Score the rollouts of a group against each other."""

    add("prompt", prompt, Blocks, "episodes", _GONE)
    add("messages", messages, list[Message], "episodes", _GONE)
    add("task_tools", task_tools, ListToolsOutput, "episodes", _GONE)
    add("call", call, None, "episodes", _GONE)
    add("score_group", score_group, None, "episodes", _GONE)

    async def rollouts(body: Upload) -> None:
        """Store events of rollouts, in any order; those with ids that are known change nothing. Answered when they are
        on the disk. Events that do not fit are named in a 422; the others of the upload are stored all the same."""

    unstored: dict[int | str, dict[str, Any]] = {
        413: {"description": "The upload is too large"},
        503: {"description": "Cannot be stored now; send it again"},
    }
    add("rollouts", rollouts, Stored, "rollouts", unstored)
    return router
