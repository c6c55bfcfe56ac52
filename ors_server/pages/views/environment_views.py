"""Pages of the environments: their README, tools and schemas, and their tasks without private fields."""

from __future__ import annotations

import json
import sys
import urllib.parse
import uuid
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ors_server.errors import OrsError
from ors_server.hosting.author_exceptions import as_request_error
from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.hosting.task_source import TASK_TOKEN
from ors_server.pages.context import ServerContext, ViewRoute
from ors_server.pages.forms import fields_of
from ors_server.pages.responses import Responses

__all__ = ["EnvironmentViews", "public_task"]

Result = TypeVar("Result")

#: Tasks of one page; fields of a task in the list, and characters of each.
_TASKS, _FIELDS, _CHARACTERS = 25, 4, 160
_LARGEST_README = 2**20


class EnvironmentViews:
    """The pages below ``/ui/environments``."""

    def __init__(self, context: ServerContext, responses: Responses) -> None:
        self._context = context
        self._responses = responses
        self.routes: list[ViewRoute] = [
            ("GET", "/ui", self.environments),
            ("GET", "/ui/environments", self.environments),
            ("GET", "/ui/environments/{environment}", self.environment),
            ("GET", "/ui/environments/{environment}/tasks", self.tasks),
            ("GET", "/ui/environments/{environment}/task", self.task),
        ]

    async def environments(self, request: Request) -> Response:
        """List the environments."""
        found = [await self._row(hosted) for hosted in self._context.catalogue.environments]
        unavailable = self._context.catalogue.reasons
        others: list[str] = []
        if self._context.worker_slot is not None:  # a worker of a pool has not all environments
            named = map(urllib.parse.unquote, request.headers.get("x-ors-environments", "").split())
            others = [name for name in named if self._context.catalogue.find(name) is None]
        return await self._responses.render(
            request, "environments.html", {"environments": found, "unavailable": unavailable, "others": others}
        )

    async def environment(self, request: Request) -> Response:
        """Show one environment."""
        hosted = self._hosted(request)
        readme = await anyio.to_thread.run_sync(_readme, hosted.cls)
        listing = hosted.session_tools
        return await self._responses.render(
            request,
            "environment.html",
            {
                **await self._row(hosted),
                "readme": readme,
                "tools": [{**tool.model_dump(), "fields": fields_of(tool.input_schema)} for tool in listing.tools],
                "terminal_tool": listing.terminal_tool,
                "secrets": hosted.required_secrets,
            },
        )

    async def tasks(self, request: Request) -> Response:
        """List a page of the tasks of a split."""
        hosted = self._hosted(request)
        split = request.query_params.get("split") or hosted.splits[0].name
        start = _natural(request.query_params.get("start", "0"))
        total = await self._guarded(hosted, hosted.tasks.count(split))
        stop = min(total, start + _TASKS)
        encoded = await self._guarded(hosted, hosted.tasks.range_json(split, start, stop)) if start < stop else b"[]"
        rows = [
            {"index": start + offset, "fields": _excerpt(public_task(task))}
            for offset, task in enumerate(json.loads(encoded))
        ]
        return await self._responses.render(
            request,
            "tasks.html",
            {
                "environment": hosted.name,
                "splits": [each.name for each in hosted.splits],
                "split": split,
                "tasks": rows,
                "start": start,
                "total": total,
                "previous": max(0, start - _TASKS) if start else None,
                "next": stop if stop < total else None,
            },
        )

    async def task(self, request: Request) -> Response:
        """Show one task, with the form that plays it."""
        hosted = self._hosted(request)
        split = request.query_params.get("split") or hosted.splits[0].name
        index = _natural(request.query_params.get("index", "0"))
        task = await self._guarded(hosted, hosted.tasks.get_public(split, index))
        try:
            total: int | None = await self._guarded(hosted, hosted.tasks.count(split))
        except OrsError:
            total = None
        return await self._responses.render(
            request,
            "task.html",
            {
                "environment": hosted.name,
                "split": split,
                "index": index,
                "total": total,
                "task": public_task(task),
                "secrets": hosted.required_secrets,
                # The id of the session that the form opens: sent twice, the form opens one session.
                "sid": request.headers.get("x-ors-new-session") or str(uuid.uuid4()),
            },
        )

    async def _row(self, hosted: HostedEnvironment) -> dict[str, Any]:
        counts: dict[str, int | None] = {}
        for split in hosted.splits:
            try:
                counts[split.name] = await self._guarded(hosted, hosted.tasks.count(split.name))
            except OrsError:
                counts[split.name] = None
        return {
            "environment": hosted.name,
            "aliases": hosted.aliases,
            "summary": _summary(hosted.cls),
            "tool_names": [tool.name for tool in hosted.session_tools.tools],
            "counts": counts,
        }

    def _hosted(self, request: Request) -> HostedEnvironment:
        return self._context.catalogue.by_path(request.path_params["environment"])

    async def _guarded(self, hosted: HostedEnvironment, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except Exception as error:  # the author's task methods may raise anything
            mode = self._context.settings.return_errors
            failure = as_request_error(error, mode, environment=hosted.name, where="tasks")
            if failure is error:
                raise
            raise failure from error


def public_task(task: Any) -> Any:
    """Return a public task without the server's token, which says nothing to a reader."""
    return {key: value for key, value in task.items() if key != TASK_TOKEN}


def _excerpt(task: dict[str, Any]) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []
    for key, value in list(task.items())[:_FIELDS]:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text = " ".join(text[: 4 * _CHARACTERS].split())
        fields.append((str(key), text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + "…"))
    return fields


def _natural(text: str) -> int:
    if not text.isdecimal() or len(text) > 15:
        raise HTTPException(400, "A position is a whole number from 0.")
    return int(text)


def _summary(cls: type) -> str:
    text = (cls.__doc__ or "").strip()
    return " ".join(text.split("\n\n", 1)[0].split())


def _readme(cls: type) -> str:
    """Return the README beside the environment's module; else the class's docstring."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file:
        path = Path(file).parent / "README.md"
        try:
            with path.open("rb") as opened:
                return opened.read(_LARGEST_README).decode("utf-8", "replace")
        except OSError:
            pass
    return (cls.__doc__ or "").strip()
