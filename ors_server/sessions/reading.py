"""Answers to ``/prompt``, ``/messages`` and ``/task_tools`` from the methods of an author's instance, as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from ors_server.hosting.catalogue import HostedEnvironment
from ors_server.hosting.prompts import flatten_messages
from ors_server.hosting.session_toolsets import listing_with
from ors_server.hosting.tools import ToolTable
from ors_server.protocol import Blocks, ListToolsOutput, Message
from ors_server.wire.encoding import encode

__all__ = ["Read", "checked", "messages_json", "prompt_json", "task_tools_json"]

#: Run a reading method of the instance by its name and return what it returned, checked.
Read = Callable[[str], Awaitable[Any]]

_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "get_prompt": TypeAdapter(Blocks),
    "get_messages": TypeAdapter(list[Message]),
    "list_task_tools": TypeAdapter(ListToolsOutput),
}
#: The type that each reading method must return, in the words of an error, and a field that its models have.
_RETURNS = {
    "get_prompt": "a list of TextBlock and ImageBlock",
    "get_messages": "a list of Message",
    "list_task_tools": "ListToolsOutput",
}
_FIELDS = {"get_prompt": "type", "get_messages": "role", "list_task_tools": "input_schema"}


async def prompt_json(hosted: HostedEnvironment, read: Read) -> bytes:
    """Encode the prompt as blocks; messages are flattened where the author wrote no ``get_prompt``."""
    if hosted.has_prompt:
        return encode(await read("get_prompt"))
    return encode(flatten_messages(await read("get_messages")))


async def messages_json(hosted: HostedEnvironment, read: Read) -> bytes:
    """Encode the prompt as messages; blocks become one user message where the author wrote no ``get_messages``."""
    if hosted.has_messages:
        return encode(await read("get_messages"))
    blocks = encode(await read("get_prompt"))
    return b'[{"role":"user","blocks":' + blocks + b',"detail":null}]'


async def task_tools_json(hosted: HostedEnvironment, read: Read, table: ToolTable, toolset: type | None) -> bytes:
    """Encode the tools of a session: those of its environment and of its task, and those of its toolset."""
    listing = await _environment_tools(hosted, read)
    if toolset is None:
        return listing
    return encode(listing_with(ListToolsOutput.model_validate_json(listing), table, toolset))


async def _environment_tools(hosted: HostedEnvironment, read: Read) -> bytes:
    if not hosted.has_task_tools:
        return hosted.session_tools_json
    # By name: the task's description of a tool replaces that of the method that is called.
    tools: dict[str, Any] = {tool.name: tool for tool in hosted.session_tools.tools}
    tools.update((tool.name, tool) for tool in (await read("list_task_tools")).tools)
    if hosted.tools.terminal is not None:
        tools.pop(hosted.tools.terminal.name, None)
    return encode({**hosted.session_tools.model_dump(mode="json"), "tools": list(tools.values())})


def checked(method: str, value: Any) -> Any:
    """Return what an author's reading method returned if the protocol can carry it, models of any SDK unchanged.

    Raises ``TypeError``.
    """
    items: Any = value.tools if hasattr(value, "tools") else value
    if isinstance(items, (list, tuple)) and all(isinstance(item, BaseModel) for item in cast("list[Any]", items)):
        expected = _FIELDS[method]
        if all(hasattr(item, expected) for item in cast("list[Any]", items)):
            return value
    try:
        return _ADAPTERS[method].validate_python(value)
    except ValidationError:
        raise TypeError(f"{method} returned {value!r:.200}; it must return {_RETURNS[method]}") from None
