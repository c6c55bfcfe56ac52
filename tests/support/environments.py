"""Small environments to serve, and to derive a test's own environment from."""

from collections.abc import Awaitable, Sequence

from pydantic import BaseModel

from ors_server import Blocks, Environment, JSONObject, Split, TextBlock, ToolOutput, tool

__all__ = ["Bare", "Echo", "Number", "Text", "said"]


class Text(BaseModel):
    """Input of the usual tool."""

    text: str


class Number(BaseModel):
    """Input of a counting tool."""

    number: int


def said(text: str = "", reward: float | None = None, *, finished: bool = False) -> ToolOutput:
    """Return a tool's output with one text block."""
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Bare(Environment):
    """Four tasks in each of two splits, a prompt that names the task, and no tool."""

    @classmethod
    def list_splits(cls) -> Sequence[Split | str] | Awaitable[Sequence[Split | str]]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject] | Awaitable[Sequence[JSONObject]]:
        return [{"id": f"{split}-{number}"} for number in range(4)]

    def get_prompt(self) -> Blocks | Awaitable[Blocks]:
        return [TextBlock(text=f"prompt of {self.task_spec.get('id')}")]


class Echo(Bare):
    """``Bare`` with the usual tool, and a tool that ends the episode."""

    @tool(concurrent=True)
    async def echo(self, params: Text) -> ToolOutput:
        """Repeat a text."""
        return said(params.text)

    @tool
    async def win(self) -> ToolOutput:
        """End the episode."""
        return said("won", 1.0, finished=True)
