"""One interface to the four real clients, so that each test is written once.

`openreward` and `ors-sdk` name their methods alike, and each has an asynchronous and a synchronous client. This module
only awaits the asynchronous methods and runs the synchronous ones on a thread of their own; the SDK does everything
that goes over the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

from . import openreward_sdk, ors_sdk

ClientKind = Literal["openreward-async", "openreward-sync", "ors-sdk-async", "ors-sdk-sync"]
OPENREWARD: tuple[ClientKind, ...] = ("openreward-async", "openreward-sync")
ORS: tuple[ClientKind, ...] = ("ors-sdk-async", "ors-sdk-sync")
EVERY_CLIENT: tuple[ClientKind, ...] = (*OPENREWARD, *ORS)


class Task(Protocol):
    environment_name: str
    task_spec: dict[str, Any]


class ToolSpec(Protocol):
    name: str
    description: str
    input_schema: dict[str, Any] | None


class ToolOutput(Protocol):
    blocks: list[Any]
    metadata: Any
    reward: float | None
    finished: bool


class Runner(Protocol):
    """Call of an SDK's method: awaited, or run on a thread."""

    async def __call__(self, method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any: ...


#: Seconds after which a test counts a client as hung; the SDKs themselves wait without a limit.
_PATIENCE = 60


async def _awaiting(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    async with asyncio.timeout(_PATIENCE):
        return await method(*arguments, **keywords)


def _on(thread: ThreadPoolExecutor) -> Runner:
    async def run(method: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        async with asyncio.timeout(_PATIENCE):
            return await asyncio.get_running_loop().run_in_executor(thread, lambda: method(*arguments, **keywords))

    return run


class Session:
    """An episode. `sdk` is the SDK's own object, for methods that only one SDK has."""

    def __init__(self, sdk: Any, run: Runner, asynchronous: bool) -> None:
        self.sdk = sdk
        self.run = run
        self._asynchronous = asynchronous

    async def __aenter__(self) -> Session:
        await self.run(self.sdk.__aenter__ if self._asynchronous else self.sdk.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.run(self.sdk.__aexit__ if self._asynchronous else self.sdk.__exit__, *error)

    @property
    def sid(self) -> str:
        return self.sdk.sid

    async def prompt(self) -> list[Any]:
        return await self.run(self.sdk.get_prompt)

    async def tools(self) -> list[ToolSpec]:
        return await self.run(self.sdk.list_tools)

    async def call(self, tool: str, **arguments: Any) -> ToolOutput:
        return await self.run(self.sdk.call_tool, tool, arguments)

    async def text(self, tool: str, **arguments: Any) -> str:
        """Call a tool that returns one block of text."""
        output = await self.call(tool, **arguments)
        (block,) = output.blocks
        return block.text


class Environment:
    """An environment as a client sees it."""

    def __init__(self, sdk: Any, run: Runner, asynchronous: bool) -> None:
        self.sdk = sdk
        self.run = run
        self._asynchronous = asynchronous

    async def splits(self) -> list[str]:
        return await self.run(self.sdk.list_splits)

    async def count(self, split: str) -> int:
        return await self.run(self.sdk.num_tasks, split)

    async def tasks(self, split: str) -> list[Task]:
        return await self.run(self.sdk.list_tasks, split)

    async def task(self, split: str, index: int) -> Task:
        return await self.run(self.sdk.get_task, split, index)

    async def range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        return await self.run(self.sdk.get_task_range, split, start, stop)

    async def tools(self) -> list[ToolSpec]:
        return await self.run(self.sdk.list_tools)

    def session(self, task: Task | None = None, **keywords: Any) -> Session:
        return Session(self.sdk.session(task, **keywords), self.run, self._asynchronous)


class Client:
    """One real client, connected to a server."""

    def __init__(self, kind: ClientKind, sdk: Any, run: Runner) -> None:
        self.kind = kind
        self.is_openreward = kind in OPENREWARD
        self.asynchronous = kind.endswith("-async")
        self.sdk = sdk
        self.run = run
        #: Raised for a call that ran no tool.
        self.refused = openreward_sdk.ToolCallError if self.is_openreward else ors_sdk.ToolCallError
        #: Raised for an `error` event.
        self.failed: type[Exception] = openreward_sdk.ToolFailed if self.is_openreward else RuntimeError

    async def environment(self, name: str, **keywords: str) -> Environment:
        if self.asynchronous:
            sdk = self.sdk.environments.get(name, **keywords)
        else:
            sdk = await self.run(self.sdk.environments.get, name, **keywords)
        return Environment(sdk, self.run, self.asynchronous)

    async def named(self, name: str) -> Environment:
        """Return the hosted environment of a name, in this client's spelling of paths."""
        return await (self.environment(name, variant=name) if self.is_openreward else self.environment(name))

    def task(self, environment_name: str, **spec: Any) -> Task:
        """Return a task made by the client itself."""
        if self.is_openreward:
            return openreward_sdk.task(environment_name, environment_name, spec)
        return ors_sdk.task(environment_name, spec)


@contextlib.asynccontextmanager
async def connected(kind: ClientKind, url: str) -> AsyncGenerator[Client]:
    """Return a client of a server, closed at the end."""
    asynchronous = kind.endswith("-async")
    sdk = (openreward_sdk if kind in OPENREWARD else ors_sdk).new_client(url, asynchronous=asynchronous)
    if asynchronous:
        try:
            yield Client(kind, sdk, _awaiting)
        finally:
            await (sdk.environments.aclose() if kind in OPENREWARD else ors_sdk.close(sdk))
        return
    # As in a program that uses a synchronous client, all its calls come from one thread.
    thread = ThreadPoolExecutor(1, thread_name_prefix=kind)
    run = _on(thread)
    try:
        yield Client(kind, sdk, run)
    finally:
        try:
            await run(sdk.close)
        finally:
            thread.shutdown(wait=False)  # waiting for a hung client would keep its test from failing


async def with_every_client(
    play: Callable[[ClientKind], Awaitable[None]], kinds: tuple[ClientKind, ...] = EVERY_CLIENT
) -> None:
    """Let all clients play at the same time, because a play takes seconds. A failure names its client."""

    async def one(kind: ClientKind) -> None:
        try:
            await play(kind)
        except BaseException as error:  # only adds the client's name: it is raised again
            error.add_note(f"with the client {kind}")
            raise

    async with asyncio.TaskGroup() as group:
        for kind in kinds:
            group.create_task(one(kind))


async def failure(awaitable: Awaitable[Any]) -> Any:
    """Return the exception of an awaitable; fail if it raises none."""
    try:
        outcome = await awaitable
    except Exception as error:  # noqa: BLE001 - the caller looks at its type
        return error
    raise AssertionError(f"returned {outcome!r} instead of raising")
