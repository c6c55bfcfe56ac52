"""The client for programs without an event loop: the same names, the same arguments, the same errors.

    with Client("http://host:8080") as client:
        with client.environment("terminal").session(split="train", index=0) as session:
            result = session.call("bash", {"command": "ls"})

Each method runs its asynchronous counterpart on one background thread of the process, which all clients share, and
waits for it. Threads may share a client. A forked worker starts a thread of its own with its first call; sessions that
its parent opened stay the parent's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from ors_clients.client.async_client import RETRIES, TIMEOUT, AsyncClient
from ors_clients.client.environments import AsyncEnvironment
from ors_clients.models import Block, Task, ToolResult
from ors_clients.transport.base import Transport
from ors_clients.transport.loop_thread import LoopThread
from ors_server.protocol import Message, Split, TerminalToolSpec, ToolSpec

__all__ = ["Client", "Environment", "Session"]

_THREAD = LoopThread("ors-clients")


class AnySession(Protocol):
    """The asynchronous session behind a ``Session``: a server's or a local one."""

    @property
    def id(self) -> str: ...
    @property
    def finished(self) -> bool: ...
    @property
    def terminal_tool(self) -> TerminalToolSpec | None: ...
    async def open(self) -> Any: ...
    async def open_ahead(self) -> Any: ...
    async def begin(self) -> None: ...
    async def close(self) -> None: ...
    async def prompt(self) -> list[Block]: ...
    async def messages(self) -> list[Message]: ...
    async def tools(self) -> list[ToolSpec]: ...
    async def call(
        self, name: str, input: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> ToolResult: ...


class Session:
    """One episode (``AsyncSession``). ``with environment.session(…) as session``, or ``open`` and ``close``."""

    def __init__(self, session: AnySession) -> None:
        self._session = session

    def __repr__(self) -> str:
        return repr(self._session).replace("Async", "", 1)

    @property
    def id(self) -> str:
        """The session's id. Raises ``ConfigurationError`` before it is opened."""
        return self._session.id

    @property
    def finished(self) -> bool:
        """True if a tool has ended the episode."""
        return self._session.finished

    @property
    def terminal_tool(self) -> TerminalToolSpec | None:
        """The tool that the assistant's last message goes to; known once ``tools`` was asked for."""
        return self._session.terminal_tool

    def open(self) -> Self:
        """Create the session (``AsyncSession.open``)."""
        _THREAD.run(self._session.open())
        return self

    def open_ahead(self) -> Self:
        """Create the session for an episode that begins later (``AsyncSession.open_ahead``)."""
        _THREAD.run(self._session.open_ahead())
        return self

    def begin(self) -> None:
        """Say that its episode begins (``AsyncSession.begin``)."""
        _THREAD.run(self._session.begin())

    def close(self) -> None:
        """End the session (``AsyncSession.close``)."""
        _THREAD.run(self._session.close())

    def prompt(self) -> list[Block]:
        """Return the task as the model reads it (``AsyncSession.prompt``)."""
        return _THREAD.run(self._session.prompt())

    def messages(self) -> list[Message]:
        """Return the task as a conversation (``AsyncSession.messages``)."""
        return _THREAD.run(self._session.messages())

    def tools(self) -> list[ToolSpec]:
        """Return the tools of this session (``AsyncSession.tools``)."""
        return _THREAD.run(self._session.tools())

    def call(self, name: str, input: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> ToolResult:
        """Call a tool and wait for its result (``AsyncSession.call``)."""
        return _THREAD.run(self._session.call(name, input, timeout=timeout))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Environment:
    """One environment of a server (``AsyncEnvironment``)."""

    def __init__(self, environment: AsyncEnvironment) -> None:
        self._environment = environment
        #: The name as it was given; None for the server's default environment.
        self.name = environment.name

    def __repr__(self) -> str:
        return repr(self._environment).replace("Async", "", 1)

    def splits(self) -> list[Split]:
        """Return the splits of its tasks."""
        return _THREAD.run(self._environment.splits())

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks in a split."""
        return _THREAD.run(self._environment.num_tasks(split))

    def tasks(self, split: str) -> list[Task]:
        """All tasks of a split, in order."""
        return _THREAD.run(self._environment.tasks(split))

    def task(self, split: str, index: int) -> Task:
        """One task, by its index from 0. Servers may refuse a negative one, and this project's does."""
        return _THREAD.run(self._environment.task(split, index))

    def task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        """Return the tasks of a slice of a split."""
        return _THREAD.run(self._environment.task_range(split, start, stop))

    def tools(self) -> list[ToolSpec]:
        """Return the tools every session has."""
        return _THREAD.run(self._environment.tools())

    def session(
        self,
        *,
        task: Task | Mapping[str, Any] | None = None,
        split: str | None = None,
        index: int | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> Session:
        """Return a session on a task (``AsyncEnvironment.session``)."""
        return Session(self._environment.session(task=task, split=split, index=index, secrets=secrets))


class Client:
    """A client of one server, with the arguments of ``AsyncClient``."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        transport: Transport | Literal["httpx"] | None = None,
    ) -> None:
        self._client = AsyncClient(base_url, api_key=api_key, timeout=timeout, retries=retries, transport=transport)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    @property
    def url(self) -> str:
        """The server's address."""
        return self._client.url

    def environments(self) -> list[str]:
        """Return the names of the server's environments, its default first. Raises ``ServerUnavailable``."""
        return _THREAD.run(self._client.environments())

    def environment(self, name: str | None = None) -> Environment:
        """Return an environment by name, or the server's default one. Its first use refuses a wrong name."""
        return Environment(self._client.environment(name))

    def close(self) -> None:
        """Close the connections. Sessions are ended by themselves (``Session.close``)."""
        _THREAD.run(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
