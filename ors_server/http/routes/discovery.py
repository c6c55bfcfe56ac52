"""Routes of the environments, their tools, splits and tasks."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ors_server.hosting.author_exceptions import as_request_error
from ors_server.hosting.catalogue import Catalogue, HostedEnvironment
from ors_server.http.exchange import Exchange
from ors_server.http.routes.table import routes_of
from ors_server.protocol import GetTask, GetTaskRange, ListTasks, NumTasks
from ors_server.settings import Settings
from ors_server.wire.encoding import encode
from ors_server.wire.version import VERSION

__all__ = ["DiscoveryRoutes"]

Result = TypeVar("Result")


class DiscoveryRoutes:
    """Handlers over one server's environments. A bare path means that of ``X-Deployment``, or the default."""

    def __init__(self, catalogue: Catalogue, settings: Settings, check_open: Callable[[], None]) -> None:
        self._catalogue = catalogue
        self._settings = settings
        self._check_open = check_open
        self.table = routes_of(self, "server", "environments")

    async def health(self, exchange: Exchange) -> None:
        """Say that the server answers."""
        await exchange.json(b'{"status":"ok"}')

    async def ready(self, exchange: Exchange) -> None:
        """Say that the server takes new sessions; while it is being stopped it takes none."""
        self._check_open()
        await exchange.json(b'{"status":"ready"}')

    async def version(self, exchange: Exchange) -> None:
        """Return the server's version."""
        await exchange.json(encode({"version": VERSION, "build_sha": os.environ.get("OPENREWARD_BUILD_SHA")}))

    async def list_environments(self, exchange: Exchange) -> None:
        """List the names of the hosted environments, the default first."""
        await exchange.json(encode(self._catalogue.names))

    async def tools(self, exchange: Exchange) -> None:
        """List the tools that every session of the environment has."""
        await exchange.json(self._hosted(exchange).tools_json)

    async def splits(self, exchange: Exchange) -> None:
        """List the environment's splits."""
        await exchange.json(self._hosted(exchange).splits_json)

    async def tasks(self, exchange: Exchange) -> None:
        """List all tasks of a split."""
        hosted = self._hosted(exchange)
        request = await exchange.model(ListTasks, self._settings.max_body)
        tasks = await self._guarded(hosted, hosted.tasks.list_json(request.split))
        await exchange.json(b'{"tasks":' + tasks + b',"env_name":' + _name(exchange, hosted) + b"}")

    async def num_tasks(self, exchange: Exchange) -> None:
        """Count the tasks of a split."""
        hosted = self._hosted(exchange)
        request = await exchange.model(NumTasks, self._settings.max_body)
        count = await self._guarded(hosted, hosted.tasks.count(request.split))
        await exchange.json(b'{"num_tasks":%d}' % count)

    async def task(self, exchange: Exchange) -> None:
        """Return one task of a split."""
        hosted = self._hosted(exchange)
        request = await exchange.model(GetTask, self._settings.max_body)
        task = await self._guarded(hosted, hosted.tasks.get_public(request.split, request.index))
        await exchange.json(b'{"task":' + encode(task) + b',"env_name":' + _name(exchange, hosted) + b"}")

    async def task_range(self, exchange: Exchange) -> None:
        """List the tasks of a slice of a split."""
        hosted = self._hosted(exchange)
        request = await exchange.model(GetTaskRange, self._settings.max_body)
        tasks = await self._guarded(hosted, hosted.tasks.range_json(request.split, request.start, request.stop))
        await exchange.json(b'{"tasks":' + tasks + b',"env_name":' + _name(exchange, hosted) + b"}")

    get_task = task
    get_task_range = task_range

    def _hosted(self, exchange: Exchange) -> HostedEnvironment:
        if exchange.environment is not None:
            return self._catalogue.by_path(exchange.environment)
        return self._catalogue.by_deployment(exchange.header(b"x-deployment")) or self._catalogue.default

    async def _guarded(self, hosted: HostedEnvironment, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except Exception as error:  # the author's task methods may raise anything
            failure = as_request_error(error, self._settings.return_errors, environment=hosted.name, where="tasks")
            if failure is error:
                raise
            raise failure from error


def _name(exchange: Exchange, hosted: HostedEnvironment) -> bytes:
    """Encode the environment as the client spelt it; openreward clients require it beside every task."""
    return encode(exchange.environment or hosted.name)
