"""An environment for rollout tests, and a session that plays a list of results.

``Bench`` has a tool for each event of an episode; the tests run it in the server's own code. ``PlayedSession`` covers
cases that no environment can cause at will (a lost server, any sequence of results).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ors_clients.models import ToolResult
from pydantic import BaseModel

from ors_server import (
    Environment,
    ImageBlock,
    InfrastructureFailure,
    Message,
    Split,
    TerminalToolSpec,
    TextBlock,
    ToolOutput,
    ToolSpec,
    terminal,
    tool,
)

__all__ = ["PICTURE", "Bench", "Desk", "PlayedSession"]

#: One transparent pixel, as PNG.
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


class Echo(BaseModel):
    """Text to repeat."""

    text: str
    times: int = 1
    note: str | None = None


class Finish(BaseModel):
    """The reward to end with."""

    reward: float | None = None


class Bench(Environment):
    """Echoes, earns, fails, shows a picture, and ends."""

    #: Episodes that were torn down.
    closed = 0

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"goal": "work"}, {"goal": "see", "picture": True}]

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        prompt: list[TextBlock | ImageBlock] = [TextBlock(text=str(self.task_spec["goal"]))]
        if self.task_spec.get("picture"):
            prompt.append(ImageBlock(data=PICTURE, mimeType="image/png"))
        return prompt

    def teardown(self) -> None:
        type(self).closed += 1

    @tool
    def echo(self, input: Echo) -> ToolOutput:
        """Repeat a text."""
        return ToolOutput(blocks=[TextBlock(text=input.text * input.times)])

    @tool
    def earn(self) -> ToolOutput:
        """Earn a half."""
        return ToolOutput(blocks=[TextBlock(text="earned")], reward=0.5)

    @tool
    def finish(self, input: Finish) -> ToolOutput:
        """End the episode."""
        return ToolOutput(blocks=[TextBlock(text="over")], reward=input.reward, finished=True)

    @tool
    def look(self) -> ToolOutput:
        """Show a picture."""
        return ToolOutput(
            blocks=[TextBlock(text="here:"), ImageBlock(data=PICTURE, mimeType="image/png")], metadata={"pixels": 1}
        )

    @tool
    def fail(self) -> ToolOutput:
        """Raise."""
        raise ValueError("the hammer broke")

    @tool
    def burn(self) -> ToolOutput:
        """Lose the machine."""
        raise InfrastructureFailure("the workshop burned down", "Build another.")

    @tool
    async def wait(self) -> ToolOutput:
        """Never return."""
        await asyncio.Event().wait()
        return ToolOutput(blocks=[])


class Answer(BaseModel):
    """The final message."""

    message: str


class Desk(Bench):
    """A bench that takes a final message; its first message is from the system."""

    def get_messages(self) -> list[Message]:
        return [
            Message(role="system", blocks=[TextBlock(text="You are at a desk.")]),
            Message(role="user", blocks=[TextBlock(text="Write.")]),
        ]

    @tool
    @terminal
    def hand_in(self, input: Answer) -> ToolOutput:
        """Take the final message."""
        return ToolOutput(blocks=[TextBlock(text="taken")], reward=float(len(input.message)), finished=True)


@dataclass
class PlayedSession:
    """A session whose tool calls return the given results, one after another; an exception is raised."""

    results: Sequence[ToolResult | Exception] = ()
    tool_specs: Sequence[ToolSpec] = (ToolSpec(name="echo", description="Repeats.", input_schema=None),)
    opening: Sequence[Message] = (Message(role="user", blocks=[TextBlock(text="Begin.")]),)
    terminal_tool: TerminalToolSpec | None = None
    open_failure: Exception | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    closed: int = 0

    async def __aenter__(self) -> "PlayedSession":
        if self.open_failure is not None:
            raise self.open_failure
        return self

    async def close(self) -> None:
        self.closed += 1

    async def messages(self) -> list[Message]:
        return list(self.opening)

    async def tools(self) -> list[ToolSpec]:
        return list(self.tool_specs)

    async def call(self, name: str, input: Mapping[str, Any], /) -> ToolResult:
        number = len(self.calls)
        self.calls.append((name, dict(input)))
        result = self.results[number] if number < len(self.results) else ToolResult([TextBlock(text="ok")])
        if isinstance(result, Exception):
            raise result
        return result
