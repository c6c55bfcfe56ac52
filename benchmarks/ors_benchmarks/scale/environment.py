"""The environment of the benchmark: tools that do nothing, wait, send much, or keep a processor busy."""

from __future__ import annotations

import asyncio
import time

from pydantic import BaseModel

from ors_benchmarks.harness.client import TARGETS
from ors_server import Environment, JSONObject, Split, TextBlock, ToolOutput, tool

__all__ = ["BURN_SECONDS", "LoadEnvironment"]

#: Processor time of one call of ``burn``.
BURN_SECONDS = 0.01


class Text(BaseModel):
    """Text to send back."""

    text: str


class Size(BaseModel):
    """A number of characters."""

    characters: int


class Delay(BaseModel):
    """A time to wait."""

    seconds: float


class LoadEnvironment(Environment):
    """Tasks that name a word, and tools without a reward."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        """One split."""
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        """Return a task a word."""
        return [{"id": f"load-{number}", "target": word} for number, word in enumerate(TARGETS)]

    def get_prompt(self) -> list[TextBlock]:
        """Name the word, so that a client can check whether it got the right task."""
        return [TextBlock(text=f"The word is {self.task_spec['target']}.")]

    @tool
    async def noop(self, params: Text) -> ToolOutput:
        """Send the text back at once."""
        return _output(f"noop:{params.text}")

    @tool
    async def big(self, params: Size) -> ToolOutput:
        """Send a long text."""
        return _output("x" * params.characters)

    @tool
    async def slow(self, params: Delay) -> ToolOutput:
        """Wait without holding a thread."""
        await asyncio.sleep(params.seconds)
        return _output("slept")

    @tool
    def burn(self, params: Text) -> ToolOutput:
        """Keep the interpreter busy, and send the text back."""
        end = time.thread_time() + BURN_SECONDS
        while time.thread_time() < end:
            pass
        return _output(f"burned:{params.text}")


def _output(text: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=0.0, finished=False)
