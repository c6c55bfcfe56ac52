"""Base class and decorators of an author's environment.

One instance is one episode: it is built with a task, set up, read for its prompt, called, and torn down. Every method
may be ``def`` or ``async def``; synchronous methods run on a thread, so they may block. The server introspects the
class once, when it starts (``ors_server.hosting.catalogue``), and not while it serves.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast, overload

from ors_server.protocol import (
    Blocks,
    GroupCandidate,
    GroupScore,
    JSONObject,
    ListToolsOutput,
    Message,
    RunToolOutput,
    Split,
    TerminalToolSpec,
)

__all__ = ["Environment", "Toolset", "terminal", "tool"]

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def tool(function: Function, /) -> Function: ...
@overload
def tool(
    *, shared: bool = True, concurrent: bool = False, exclusive: bool = False
) -> Callable[[Function], Function]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    shared: bool = True,
    concurrent: bool = False,
    exclusive: bool = False,
) -> Any:
    """Make a method a tool: ``@tool`` or ``@tool(shared=…, concurrent=…, exclusive=…)``.

    The method takes nothing or one pydantic model besides ``self`` and is annotated ``-> ToolOutput``. Its name is the
    tool's name, its docstring the description the model reads.

    With ``shared=False`` it is listed for a session only, not for the environment. In a session calls of one tool run
    one after another and different tools overlap; with ``concurrent=True`` calls of this tool overlap as well. With
    ``exclusive=True`` (a submit tool) a call waits for all running calls, and new calls wait until it has ended.

    The marks are those of both SDKs, so that the decorators are interchangeable (protocol, section 4).
    """

    def mark(target: Callable[..., Any]) -> Callable[..., Any]:
        attributes = cast(Any, target)
        attributes._env_tool = True
        attributes._env_tool_shared = shared
        attributes._env_tool_concurrent = concurrent
        attributes._env_tool_exclusive = exclusive
        return target

    return mark if function is None else mark(function)


def terminal(function: Function, /) -> Function:
    """Mark the tool that ends the episode with the assistant's plain message; used with ``@tool``, in either order.

    The tool is hidden from the model. Its input has no field, or one field that gets the message. An environment has at
    most one terminal tool, its toolsets included.
    """
    cast(Any, function)._env_tool_terminal = True
    return function


class Environment:
    """Base class of environments.

    Must be overridden: ``list_splits``; ``list_tasks``, or ``num_tasks`` and ``get_task``; ``get_prompt`` or
    ``get_messages``; and at least one ``@tool``.

    Raise ``ors_server.InfrastructureFailure`` from any method when the machine failed and not the agent: the episode
    then ends without a reward instead of with a wrong reward.
    """

    #: Classes with more ``@tool`` methods; built at first use with the environment as argument.
    toolsets: ClassVar[Sequence[type]] = ()
    #: Other names of this environment for clients, for example ``("owner/Name",)``.
    aliases: ClassVar[Sequence[str]] = ()
    #: Names of the secrets that a session needs (``openai_api_key``), for clients that ask before they begin.
    required_secrets: ClassVar[Sequence[str]] = ()
    #: Fields of a task that clients never get (answers, paths of graders). The instance gets the whole task.
    private_task_fields: ClassVar[Collection[str]] = ()

    task_spec: JSONObject
    secrets: Mapping[str, str]

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - both SDKs' signature; neither default is changed
        self.task_spec = task_spec
        self.secrets = secrets

    # --- the machine -------------------------------------------------------------------------

    @classmethod
    def unavailable(cls) -> str | Awaitable[str]:
        """Return why this environment cannot be served on this machine, with the remedy; empty where it can.

        Called once, before the server starts. Clients that ask for the environment get the reason, and the other
        environments are served.
        """
        return ""

    # --- the episode -------------------------------------------------------------------------

    def setup(self) -> Awaitable[None] | None:
        """Prepare the episode; runs once, before the first prompt or call, while the client waits."""

    def teardown(self) -> Awaitable[None] | None:
        """Release what the episode holds; runs exactly once, after the last call has ended."""

    def get_prompt(self) -> Blocks | Awaitable[Blocks]:
        """Return the task as the model reads it. Default: ``get_messages`` rendered as blocks."""

        async def default() -> Blocks:
            from ors_server.hosting.prompts import flatten_messages

            return flatten_messages(await _resolve(self.get_messages()))

        return default()

    def get_messages(self) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the task as a conversation. Default: ``get_prompt`` as one user message."""

        async def default() -> Sequence[Message]:
            return [Message(role="user", blocks=await _resolve(self.get_prompt()))]

        return default()

    def list_task_tools(self) -> ListToolsOutput | Awaitable[ListToolsOutput]:
        """List tools of this task beyond those of the class; a call of one needs a ``@tool`` method of its name."""
        return ListToolsOutput(tools=[])

    def score_group(
        self, candidates: Sequence[GroupCandidate]
    ) -> Sequence[GroupScore | float] | Awaitable[Sequence[GroupScore | float]]:
        """Score the rollouts of a group against each other: one score for each candidate, in order. Optional."""
        raise NotImplementedError(f"{type(self).__name__} does not implement score_group")

    # --- tasks -------------------------------------------------------------------------------

    @classmethod
    def list_splits(cls) -> Sequence[Split | str] | Awaitable[Sequence[Split | str]]:
        """List the splits. The names ``train``, ``validation``, ``test`` are types; other names get ``validation``."""
        raise NotImplementedError(f"{cls.__name__} does not implement list_splits")

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject] | Awaitable[Sequence[JSONObject]]:
        """List all tasks of a split; called once a split and kept. With too many tasks, override the next three."""
        raise NotImplementedError(f"{cls.__name__} does not implement list_tasks")

    @classmethod
    def num_tasks(cls, split: str) -> int | Awaitable[int]:
        """Return the number of tasks of a split."""

        async def default() -> int:
            return len(await _resolve(cls.list_tasks(split)))

        return default()

    @classmethod
    def get_task(cls, split: str, index: int) -> JSONObject | Awaitable[JSONObject]:
        """Return one task. Raises ``IndexError`` outside the split; a negative index counts from the end."""

        async def default() -> JSONObject:
            return (await _resolve(cls.list_tasks(split)))[index]

        return default()

    @classmethod
    def get_task_range(
        cls, split: str, start: int | None = None, stop: int | None = None
    ) -> Sequence[JSONObject] | Awaitable[Sequence[JSONObject]]:
        """Return the tasks of a slice of the split."""

        async def default() -> Sequence[JSONObject]:
            count = await _resolve(cls.num_tasks(split))
            return [await _resolve(cls.get_task(split, index)) for index in range(*slice(start, stop).indices(count))]

        return default()

    # --- tools -------------------------------------------------------------------------------

    @classmethod
    def name(cls) -> str:
        """Return the name that clients use, in any case. Default: the class's name."""
        return cls.__name__

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        """List the shared tools, as clients see them. Raises ``DefinitionError`` for a malformed tool."""
        from ors_server.hosting.tools import compile_tools

        return compile_tools(cls).listing()

    @classmethod
    def terminal_tool(cls) -> TerminalToolSpec | None:
        """Return the terminal tool, if there is one."""
        return cls.list_tools().terminal_tool

    @classmethod
    def is_assistant_message_final(cls) -> bool:
        """Return whether a plain assistant message ends the episode: true where there is a terminal tool."""
        return cls.terminal_tool() is not None

    async def call_terminal_tool(self, message: str = "") -> RunToolOutput:
        """Call the terminal tool with a message. Raises ``ValueError`` where there is none."""
        terminal_tool = self.terminal_tool()
        if terminal_tool is None:
            raise ValueError(f"{self.name()} has no terminal tool; decorate one of its tools with @terminal")
        return await self._call_tool(
            terminal_tool.name, {} if terminal_tool.arg is None else {terminal_tool.arg: message}
        )

    async def _call_tool(self, name: str, input: JSONObject) -> RunToolOutput:
        """Call a tool as the server would, without a server: for an author's own tests (both SDKs have this method).

        A class that overrides this method gets every call of the server, with the input as the client sent it.
        """
        from ors_server.hosting.call_overrides import inner_runner
        from ors_server.hosting.tool_runner import ToolRunner, outcome_to_model
        from ors_server.hosting.tools import compile_tools

        runner = inner_runner(self) or cast("ToolRunner | None", self.__dict__.get("_ors_runner"))
        if runner is None:
            runner = ToolRunner(self, compile_tools(type(self)))
            self.__dict__["_ors_runner"] = runner
        return outcome_to_model(await runner.run(name, input))


class Toolset:
    """Optional base class of toolsets: tools that several environments share. ``self.env`` is the environment."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @classmethod
    def name(cls) -> str:
        """Return the name of this toolset in error messages."""
        return cls.__name__


Value = TypeVar("Value")


async def _resolve(value: Value | Awaitable[Value]) -> Value:
    return await value if inspect.isawaitable(value) else cast(Value, value)
