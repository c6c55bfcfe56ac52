"""An environment of a server: its tasks, its tools, and sessions on it.

A bare name is sent in the path of every request (``/name/tasks``), which every server understands. An owned name
(``owner/Name``, as in catalogues) is sent in ``X-Deployment`` with bare paths; the default environment uses bare paths
and no header. The SDKs wrap each of these requests into a session of its own. Self-hosted servers do not require that,
so this client does not do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

from ors_clients.client.sessions import AsyncSession
from ors_clients.errors import ConfigurationError, RequestRefused
from ors_clients.models import Task, read_splits, read_tools, unexpected_response
from ors_clients.transport.base import Headers
from ors_clients.transport.connection import Connection
from ors_server.protocol import Split, ToolSpec

__all__ = ["AsyncEnvironment", "create_body"]

#: Tasks asked for at a time from an environment that cannot list them.
_RANGE = 500


class AsyncEnvironment:
    """One environment of a server. Nothing is sent until one of its methods is called.

    Every method raises ``NotFound`` for an environment the server does not have, ``RequestRefused`` for a split or
    index it does not have, and ``ServerUnavailable``.
    """

    def __init__(self, connection: Connection, name: str | None) -> None:
        if name is not None and (not name.strip("/ ") or not name.isprintable()):
            raise ConfigurationError(f"{name!r} is not a name of an environment", "client.environments() lists them.")
        self._connection = connection
        #: The name as it was given; None for the server's default environment.
        self.name = name
        owned = name is not None and "/" in name
        self._segment = None if name is None or owned else quote(name, safe="")
        self._path = "" if self._segment is None else f"/{self._segment}"
        self._headers = Headers([("X-Deployment", name)] if name is not None and owned else [])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '(default)'} of {self._connection.url}>"

    async def splits(self) -> list[Split]:
        """Return the splits of its tasks."""
        return read_splits(await self._connection.json("GET", f"{self._path}/splits", headers=(self._headers,)))

    async def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split."""
        count = (await self._post("num_tasks", split)).get("num_tasks")
        if not isinstance(count, int):
            raise unexpected_response("a number of tasks")
        return count

    async def tasks(self, split: str) -> list[Task]:
        """All tasks of a split, in order; piece by piece from an environment that has them by index only."""
        try:
            return self._tasks(await self._post("tasks", split), split, 0)
        except RequestRefused as error:
            if "not supported" not in error.detail_text:
                raise
        count = await self.num_tasks(split)
        tasks: list[Task] = []
        for start in range(0, count, _RANGE):
            tasks += await self.task_range(split, start, min(count, start + _RANGE))
        return tasks

    async def task(self, split: str, index: int) -> Task:
        """One task, by its index from 0. Servers may refuse a negative one, and this project's does."""
        answer = await self._post("task", split, index=index)
        return self._task(answer.get("task"), split, index if index >= 0 else None, answer)

    async def task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        """Return the tasks of a slice of a split."""
        answer = await self._post("task_range", split, start=start, stop=stop)
        first = start or 0
        return self._tasks(answer, split, first if first >= 0 else None)

    async def tools(self) -> list[ToolSpec]:
        """Return the tools every session has; a session may have more (``AsyncSession.tools``)."""
        return read_tools(await self._connection.json("GET", f"{self._path}/tools", headers=(self._headers,))).tools

    def session(
        self,
        *,
        task: Task | Mapping[str, Any] | None = None,
        split: str | None = None,
        index: int | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> AsyncSession:
        """Return a session on a task: one of this environment's ``Task`` objects, or one by ``split`` and ``index``.

        ``secrets`` are given to the environment's code on the server, and are in no error and no ``repr`` here. Raises
        ``ConfigurationError`` for a task that is given in both ways or in none.
        """
        body = create_body(task, split, index)
        if self._segment is not None:
            body["env_name"] = self.name
        return AsyncSession(self._connection, self._segment, self._headers, body, secrets)

    # --- details -----------------------------------------------------------------------------

    async def _post(self, route: str, split: str, **more: Any) -> dict[str, Any]:
        answer = await self._connection.json(
            "POST", f"{self._path}/{route}", {"split": split, **more}, (self._headers,)
        )
        if not isinstance(answer, dict):
            raise unexpected_response("an object")
        return cast("dict[str, Any]", answer)

    def _tasks(self, answer: dict[str, Any], split: str, first: int | None) -> list[Task]:
        specs = answer.get("tasks")
        if not isinstance(specs, list):
            raise unexpected_response("a list of tasks")
        return [
            self._task(spec, split, None if first is None else first + offset, answer)
            for offset, spec in enumerate(cast("list[Any]", specs))
        ]

    def _task(self, spec: Any, split: str, index: int | None, answer: dict[str, Any]) -> Task:
        if not isinstance(spec, dict):
            raise unexpected_response("a task")
        own = answer.get("env_name")
        server_name = own if isinstance(own, str) else None
        return Task(self.name or server_name or "", split, index, cast("dict[str, Any]", spec), server_name)


def create_body(task: Task | Mapping[str, Any] | None, split: str | None, index: int | None) -> dict[str, Any]:
    """Return the task's part of a ``/create`` body.

    Raises ``ConfigurationError`` unless the task is given in exactly one way.
    """
    if (split is None) != (index is None) or (task is None) == (split is None):
        raise ConfigurationError(
            "A session needs one task", "Give task=, or both split= and index=, and not all of them."
        )
    if task is None:
        return {"split": split, "index": index}
    return {"task_spec": dict(task.spec if isinstance(task, Task) else task)}
