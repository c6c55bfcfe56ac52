"""Environments for the tests of the adapters: a tool for each possible event of a turn, and sessions that never open.

Each open session has a file in the folder ``OPEN_SESSIONS``. ``StepEnvironment`` appends each call that its tools ran
to the file ``TOOL_TRACE``, if that is set.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ors_server import Environment, ImageBlock, InfrastructureFailure, JSONObject, Split, TextBlock, ToolOutput, tool

#: One white pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4////fwAJ+wP9CNHoHgAAAABJRU5ErkJggg=="


class Reward(BaseModel):
    reward: float | None = None


class Seconds(BaseModel):
    seconds: float


class Text(BaseModel):
    text: str


class Letters(BaseModel):
    count: int
    letter: str | None = None


class Typed(BaseModel):
    """One parameter of each type."""

    number: int
    ratio: float
    flag: bool
    names: list[str]
    options: dict[str, Any]
    note: str
    limit: int | None = None


class Guess(BaseModel):
    name: str
    value: str | None = None


def said(text: str, **more: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **more)


class CountedEnvironment(Environment):
    """Leaves a file while its session is open."""

    _mark: Path | None = None

    def setup(self) -> None:
        handle, name = tempfile.mkstemp(dir=os.environ["OPEN_SESSIONS"])
        os.close(handle)
        self._mark = Path(name)

    def teardown(self) -> None:
        if self._mark is not None:
            self._mark.unlink()


class EchoEnvironment(CountedEnvironment):
    """The bundled echo environment's contract."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        words = ["hello", "world", "trl", "openreward"] if split == "train" else ["reward", "standard"]
        return [{"id": f"echo-{index}", "target": word} for index, word in enumerate(words)]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Call the `echo` tool with text='{self.task_spec['target']}' to finish the task.")]

    @tool
    def echo(self, params: Text) -> ToolOutput:
        """Say the word."""
        right = params.text == self.task_spec["target"]
        return said("match" if right else "no match", reward=float(right), finished=right)

    @tool
    def hint(self) -> ToolOutput:
        """Get a hint."""
        return said("It is short.")


class StepEnvironment(CountedEnvironment):
    """Tasks by number. Every tool affects the episode as its name says."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name=name, type="train" if name == "train" else "test") for name in ("train", "long", "empty")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"number": number} for number in range({"train": 5, "long": 300}.get(split, 0))]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Task {self.task_spec['number']}.")]

    def _ran(self, name: str, params: BaseModel | None = None) -> None:
        if trace := os.environ.get("TOOL_TRACE"):
            with Path(trace).open("a") as file:
                file.write(json.dumps([name, {} if params is None else params.model_dump()]) + "\n")

    @tool
    def earn(self, params: Reward) -> ToolOutput:
        """Earn a reward and go on."""
        self._ran("earn", params)
        return said(f"earned {params.reward}", reward=params.reward)

    @tool
    def finish(self, params: Reward) -> ToolOutput:
        """Earn a reward and end the episode."""
        self._ran("finish", params)
        return said("done", reward=params.reward, finished=True)

    @tool
    def write(self, params: Letters) -> ToolOutput:
        """Write a letter so many times."""
        self._ran("write", params)
        return said((params.letter or "-") * params.count)

    @tool
    def fail(self) -> ToolOutput:
        """Raise."""
        self._ran("fail")
        raise RuntimeError("it broke")

    @tool
    def lose(self) -> ToolOutput:
        """Lose the machine."""
        self._ran("lose")
        raise InfrastructureFailure("the sandbox died")

    @tool
    def picture(self) -> ToolOutput:
        """Show a picture."""
        self._ran("picture")
        return ToolOutput(blocks=[TextBlock(text="look"), ImageBlock(data=PIXEL, mimeType="image/png")])

    @tool
    async def wait(self, params: Seconds) -> ToolOutput:
        """Take a while."""
        self._ran("wait", params)
        await asyncio.sleep(params.seconds)
        return said("waited")

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """Guess the value of a secret; without a value: that there is none."""
        self._ran("guess", params)
        right = self.secrets.get(params.name) == params.value
        return said("guessed", reward=float(right), finished=True)


class TypedEnvironment(StepEnvironment):
    """One more tool, whose parameters have all types."""

    @tool
    def typed(self, params: Typed) -> ToolOutput:
        """Return the input."""
        return said(json.dumps(params.model_dump()))


class BrokenEnvironment(StepEnvironment):
    """Its set-up always fails."""

    def setup(self) -> None:
        raise InfrastructureFailure("no machine")


class IndexedEnvironment(StepEnvironment):
    """More tasks than a list should hold: they are available by index only."""

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        raise NotImplementedError

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return 1000

    @classmethod
    def get_task(cls, split: str, index: int) -> JSONObject:
        return {"number": index, "text": "ä “quoted”\n", "ratio": 0.1, "private": None}
