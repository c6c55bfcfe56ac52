"""The `ors-sdk` client, with types."""

from __future__ import annotations

import importlib
from typing import Any

_client: Any = importlib.import_module("ors.client")

ToolCallError: type[Exception] = _client.ToolCallError


def new_client(url: str, *, asynchronous: bool) -> Any:
    """Return an `AsyncORS` or `ORS`."""
    return (_client.AsyncORS if asynchronous else _client.ORS)(base_url=url)


def task(environment_name: str, spec: dict[str, Any]) -> Any:
    """Return a task in the form of code that stores tasks."""
    return _client.Task(environment_name=environment_name, task_spec=spec)


async def close(client: Any) -> None:
    """Close an `AsyncORS`: it has no method for this and leaves its connections to the garbage collector."""
    for session in client.environments._clients.values():
        await session.close()
