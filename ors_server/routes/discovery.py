"""What environments there are, and their tools, splits and tasks.

Each per-environment route also exists as a bare path, which means the environment of ``X-Deployment`` or the default.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Response

from ors_server._version import VERSION
from ors_server.encoding import encode
from ors_server.errors import EnvironmentFailed, InfrastructureError, RequestError
from ors_server.hosting import Catalogue, HostedEnvironment
from ors_server.protocol import GetTask, GetTaskRange, ListTasks, ListToolsOutput, NumTasks, Split
from ors_server.session import describe_error
from ors_server.settings import ReturnErrors

__all__ = ["discovery_router"]

logger = logging.getLogger("ors_server.routes")

Deployment = Annotated[
    str | None, Header(alias="X-Deployment", description="The environment's name, as openreward clients send it.")
]
Result = TypeVar("Result")


def discovery_router(catalogue: Catalogue, return_errors: ReturnErrors) -> APIRouter:
    """The routes over one catalogue."""
    router = APIRouter(tags=["environments"])

    def hosted(env_name: str | None, deployment: str | None) -> HostedEnvironment:
        if env_name is not None:
            return catalogue.by_path(env_name)
        return catalogue.by_deployment(deployment) or catalogue.default

    async def guarded(environment: HostedEnvironment, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except (RequestError, InfrastructureError):
            raise
        except Exception as error:  # the author's task methods may raise anything
            logger.error("environment failed", exc_info=error, extra={"environment": environment.name, "in": "tasks"})
            raise EnvironmentFailed(describe_error(error, return_errors)) from error

    def both(path: str, method: str, model: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register ``/{env_name}/path`` and the bare ``/path``."""

        def register(endpoint: Callable[..., Any]) -> Callable[..., Any]:
            responses: dict[int | str, dict[str, Any]] = {
                400: {"description": "Invalid split or index"},
                404: {"description": "Unknown environment"},
            }
            for full in (f"/{{env_name}}/{path}", f"/{path}"):
                router.add_api_route(
                    full,
                    endpoint,
                    methods=[method],
                    response_class=Response,
                    responses={200: {"model": model} if model else {}, **responses},
                    operation_id=None,
                )
            return endpoint

        return register

    @router.get("/list_environments")
    async def list_environments() -> list[str]:
        """The names of the hosted environments, the default first."""
        return catalogue.names

    @router.get("/version")
    async def version() -> dict[str, str | None]:
        """The server's version, and the build it is of where one was named."""
        return {"version": VERSION, "build_sha": os.environ.get("OPENREWARD_BUILD_SHA")}

    @both("tools", "GET", ListToolsOutput)
    async def tools(env_name: str | None = None, deployment: Deployment = None) -> Response:
        """The tools every session of the environment has."""
        return _json(hosted(env_name, deployment).tools_json)

    @both("splits", "GET", list[Split])
    async def splits(env_name: str | None = None, deployment: Deployment = None) -> Response:
        """The environment's splits."""
        return _json(hosted(env_name, deployment).splits_json)

    @both("tasks", "POST")
    async def list_tasks(body: ListTasks, env_name: str | None = None, deployment: Deployment = None) -> Response:
        """All tasks of a split."""
        environment = hosted(env_name, deployment)
        listed = await guarded(environment, environment.tasks.list_public(body.split))
        return _json(encode({"tasks": listed, "env_name": env_name or environment.name}))

    @both("num_tasks", "POST")
    async def num_tasks(body: NumTasks, env_name: str | None = None, deployment: Deployment = None) -> Response:
        """The number of tasks of a split."""
        environment = hosted(env_name, deployment)
        return _json(encode({"num_tasks": await guarded(environment, environment.tasks.count(body.split))}))

    @both("task", "POST")
    @both("get_task", "POST")
    async def get_task(body: GetTask, env_name: str | None = None, deployment: Deployment = None) -> Response:
        """One task of a split."""
        environment = hosted(env_name, deployment)
        task = await guarded(environment, environment.tasks.get_public(body.split, body.index))
        return _json(encode({"task": task, "env_name": env_name or environment.name}))

    @both("task_range", "POST")
    @both("get_task_range", "POST")
    async def get_task_range(
        body: GetTaskRange, env_name: str | None = None, deployment: Deployment = None
    ) -> Response:
        """The tasks of a slice of a split."""
        environment = hosted(env_name, deployment)
        work = environment.tasks.range_public(body.split, body.start, body.stop)
        return _json(encode({"tasks": await guarded(environment, work), "env_name": env_name or environment.name}))

    return router


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")
