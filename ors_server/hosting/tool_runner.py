"""Run tool calls on one environment instance.

Invariants: calls of one tool do not overlap unless the tool is ``concurrent``; an ``exclusive`` tool runs alone. Once a
tool has returned ``finished=True``, no later call runs, and a call that still ran cannot report a second result.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ValidationError

from ors_server.hosting.executors import Execution, LoopExecution, raise_safely
from ors_server.hosting.stopwatch import Stopwatch, timed
from ors_server.hosting.tools import Tool, ToolTable, is_tool_output
from ors_server.protocol import (
    ListToolsOutput,
    RunToolError,
    RunToolErrorReason,
    RunToolOutput,
    RunToolSuccess,
    ToolOutput,
)

__all__ = ["RefusedCall", "Timed", "ToolRunner", "after_finish", "outcome_to_model"]


@dataclass(slots=True, frozen=True)
class RefusedCall:
    """A call that ran no tool."""

    #: None where the author's own method gave no reason.
    reason: RunToolErrorReason | None
    error: str


class Timed(Stopwatch, Protocol):
    """A call that notes, by ``time.monotonic``, when the author's code, or its wait for a thread, began and ended."""

    entered: float
    left: float


class _Gate:
    """The order of calls. Without waiting calls, every operation is a few comparisons and there is no lock object."""

    __slots__ = ("_active", "_alone", "_exclusive_waiting", "_serial", "_waiting")

    def __init__(self) -> None:
        self._active = 0
        self._alone = False
        self._exclusive_waiting = 0
        # Made at first use: the garbage collector walks the objects of idle sessions too.
        self._serial: list[str] | None = None
        self._waiting: deque[tuple[asyncio.Future[None], Tool]] | None = None

    def try_enter(self, tool: Tool) -> bool:
        if self._alone:
            return False
        if tool.exclusive:
            if self._active:
                return False
            self._alone = True
        else:
            if self._exclusive_waiting:
                return False
            if not tool.concurrent:
                if self._serial is None:
                    self._serial = []
                elif tool.name in self._serial:
                    return False
                self._serial.append(tool.name)
        self._active += 1
        return True

    async def wait(self, tool: Tool) -> None:
        """Wait for the turn of a tool that ``try_enter`` refused; on return the tool has entered."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (turn, tool)
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(entry)
        if tool.exclusive:
            self._exclusive_waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(tool)  # the turn came at the same time as the cancellation
            else:
                self._waiting.remove(entry)
                if tool.exclusive:
                    self._exclusive_waiting -= 1
                self._admit()
            raise

    def leave(self, tool: Tool) -> None:
        self._active -= 1
        if tool.exclusive:
            self._alone = False
        elif not tool.concurrent and self._serial is not None:
            self._serial.remove(tool.name)
            self._serial = self._serial or None
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        assert self._waiting is not None
        for entry in list(self._waiting):
            turn, tool = entry
            if turn.done():
                continue
            if tool.exclusive:
                self._exclusive_waiting -= 1
            if self.try_enter(tool):
                self._waiting.remove(entry)
                turn.set_result(None)
            elif tool.exclusive:
                self._exclusive_waiting += 1


class ToolRunner:
    """Runner of the tool calls on one environment instance."""

    __slots__ = ("_enforce_finished", "_environment", "_execution", "_gate", "_table", "_toolsets", "finished")

    def __init__(
        self,
        environment: Any,
        table: ToolTable,
        execution: Execution | None = None,
        *,
        enforce_finished: bool = True,
        toolsets: dict[type, Any] | None = None,
    ) -> None:
        self._environment = environment
        self._table = table
        self._execution: Execution = execution or LoopExecution()
        self._enforce_finished = enforce_finished
        self._gate = _Gate()
        #: Instances by their classes; those that are not given are built at first use.
        self._toolsets = toolsets
        #: Whether a tool has returned ``finished=True``.
        self.finished = False

    async def run(self, name: str, arguments: Mapping[str, Any], call: Timed | None = None) -> Any:
        """Run a tool and return its ``ToolOutput``, or a ``RefusedCall``; ``call`` gets the times.

        Raises what the tool raises, and ``TypeError`` when it returns anything else.
        """
        table = self._table
        tool = table.tools.get(name)
        if tool is None or (table.only_listed and not (tool.shared or tool.is_terminal)):
            names = await self._names()
            if tool is None or name not in names:
                return RefusedCall("not_found", f"{name!r} is not a valid tool. Tools: {', '.join(names)}")
        if table.collisions and name in table.collisions:
            return RefusedCall(
                "name_collision",
                f"Tool name collision: {name!r} is defined in both the environment and toolset "
                f"{table.collisions[name]!r}. Rename one of them.",
            )
        if self.finished and self._enforce_finished:
            return after_finish(name)
        if tool.model is None:
            values: tuple[Any, ...] = ()
        else:
            try:
                values = (tool.model(**arguments),)
            except ValidationError as error:
                without = _without_needless_nulls(tool.model, arguments)
                try:
                    if without is None:
                        raise
                    values = (tool.model(**without),)
                except ValidationError:
                    return RefusedCall("input_validation", f"Tool input validation error: {_explain(error)}")
        gate = self._gate
        if not gate.try_enter(tool):
            await gate.wait(tool)
        try:
            if self.finished and self._enforce_finished:
                return after_finish(name)  # the call before this one ended the episode
            target = self._environment if tool.owner is None else await self._toolset(tool.owner)
            function: Callable[..., Any] = getattr(target, name)
            if call is not None:
                call.entered = time.monotonic()
            if tool.is_async:
                try:  # not awaited(): its coroutine would stay in memory as long as the call runs
                    output = await function(*values)
                except BaseException as raised:  # noqa: BLE001 - raise_safely() replaces what must not be raised
                    raise_safely(raised)
            else:
                output = await self._execution.run(timed(function, call), *values)
        finally:
            if call is not None and call.entered:
                call.left = time.monotonic()
                if tool.is_async:
                    call.inside = call.left - call.entered
            gate.leave(tool)
        output_type: type[Any] = output.__class__
        if output_type not in table.output_types:
            if not is_tool_output(output_type):
                raise TypeError(f"Tool {name!r} returned {output_type.__name__}; a tool returns ToolOutput")
            table.output_types.add(output_type)
        if self.finished and self._enforce_finished:
            return after_finish(name)  # a concurrent call has ended the episode first
        if output.finished:
            self.finished = True
        return output

    def reopen(self) -> None:
        """Reopen the episode: the result that ended it could not be sent."""
        self.finished = False

    async def _toolset(self, owner: type) -> Any:
        if self._toolsets is None:
            self._toolsets = {}
        toolset = self._toolsets.get(owner)
        if toolset is None:
            takes_environment = _accepts_one(owner)
            arguments = (self._environment,) if takes_environment else ()
            toolset = await self._execution.run(owner, *arguments)
            toolset = self._toolsets.setdefault(owner, toolset)
        return toolset

    async def _names(self) -> list[str]:
        """Return the names of the tools that the model may know."""
        tools = [tool for tool in self._table.tools.values() if not tool.is_terminal]
        if not self._table.only_listed:
            return [tool.name for tool in tools]
        listed = {spec.name for spec in (self._table.own_listing or ListToolsOutput(tools=[])).tools}
        if self._table.has_task_tools:
            listing = await self._execution.run(self._environment.list_task_tools)
            listed |= {spec.name for spec in listing.tools}
        return [tool.name for tool in tools if tool.shared or tool.name in listed]


def after_finish(name: str) -> RefusedCall:
    """Refuse a call that comes after the end of the episode."""
    return RefusedCall(
        "episode_finished",
        f"{name!r} was not run: the episode has finished (a tool returned finished=True), "
        "so no further tool calls are accepted.",
    )


def _without_needless_nulls(model: type[BaseModel], arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Drop nulls for optional fields, which some trainers send for every field that the model left out."""
    optional: set[str] = set()
    for name, info in model.model_fields.items():
        if not info.is_required():
            optional |= {name, info.alias or name}
    if not any(value is None and name in optional for name, value in arguments.items()):
        return None
    return {name: value for name, value in arguments.items() if value is not None or name not in optional}


def _explain(error: ValidationError) -> str:
    """Explain a validation error to the model that wrote the input."""
    problems: Sequence[str] = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'input'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    return "; ".join(problems)


@functools.cache
def _accepts_one(owner: type) -> bool:
    try:
        inspect.signature(owner).bind(None)
    except TypeError:
        return False
    return True


def outcome_to_model(outcome: Any) -> RunToolOutput:
    """Convert an outcome of a ``ToolRunner`` to the protocol's model."""
    if isinstance(outcome, RefusedCall):
        failed: Literal[False] = False
        return RunToolOutput(RunToolError(ok=failed, error=outcome.error, reason=outcome.reason))
    return RunToolOutput(RunToolSuccess(output=ToolOutput.model_validate(outcome.model_dump())))
