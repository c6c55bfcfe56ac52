"""Environments with every failure that may occur between a server and TRL; test_trl.py serves them."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel, Field

from ors_server import (
    Environment,
    ImageBlock,
    InfrastructureFailure,
    JSONObject,
    ListToolsOutput,
    Split,
    TextBlock,
    ToolOutput,
    ToolSpec,
    terminal,
    tool,
)

#: One white pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4////fwAJ+wP9CNHoHgAAAABJRU5ErkJggg=="


def said(text: str, **more: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **more)


class Odd(BaseModel):
    """Parameters whose names are not Python names."""

    file: str = Field(alias="in-file")
    kind: str = Field(alias="class", default="none")
    note: str = Field(default_factory=str)
    limit: int | None = None


class Number(BaseModel):
    number: int


class Answer(BaseModel):
    text: str


class AwkwardEnvironment(Environment):
    """Tools with any name, and one for each failure of a call."""

    private_task_fields = ("solution",)

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        first = 0 if split == "train" else 100
        return [
            {
                "number": first + index,
                "solution": "secret",
                "_hidden": "private by its name",
                "prompt": "a field with a trainer's name",
                "environment": "another",
                "task_spec": {"number": -1},
                "nested": {f"key {index}": index},
                "mixed": index if index else "zero",
                "tags": ["a", "b"],
            }
            for index in range(5)
        ]

    def setup(self) -> None:
        if self.secrets.get("broken") == "set-up":
            raise InfrastructureFailure("The sandbox did not start", "Look at the machine.")

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        return [TextBlock(text=f"Say {self.task_spec['number']}."), ImageBlock(data=PIXEL, mimeType="image/png")]

    @tool
    def say(self, params: Number) -> ToolOutput:
        """Say a number; the right one ends the episode."""
        right = params.number == self.task_spec["number"]
        return said(
            "right" if right else "wrong", reward=float(right), finished=right, metadata={"said": params.number}
        )

    @tool
    def odd(self, params: Odd) -> ToolOutput:
        return said(f"{params.file} {params.kind} {params.note!r} {params.limit}")

    @tool
    def nothing(self) -> ToolOutput:
        """Answer nothing."""
        return ToolOutput(blocks=[])

    @tool
    def picture(self) -> ToolOutput:
        """Show a picture."""
        return ToolOutput(blocks=[TextBlock(text="look:"), ImageBlock(data=PIXEL, mimeType="image/png")])

    @tool
    def fail(self) -> ToolOutput:
        """Raise."""
        raise ValueError("the tool's own mistake")

    @tool
    def lose(self) -> ToolOutput:
        """Lose the machine."""
        raise InfrastructureFailure("The sandbox is gone", "Look at the machine.")

    @tool
    def idle(self, params: Number) -> ToolOutput:
        """Take some milliseconds."""
        time.sleep(params.number / 1000)
        return said("done")

    def list_task_tools(self) -> ListToolsOutput:
        if self.task_spec["number"] != 4:
            return ListToolsOutput(tools=[])
        return ListToolsOutput(tools=[ToolSpec(name="rare", description="Of the last task.", input_schema=None)])

    @tool(shared=False)
    def rare(self) -> ToolOutput:
        """Only the last task has it."""
        return said("rare")


def _named(name: str, said_name: str) -> None:
    def method(self: AwkwardEnvironment) -> ToolOutput:
        return said(said_name)

    method.__doc__ = f"Named {name}."
    setattr(AwkwardEnvironment, name, tool(method))


# Names that the slot uses, that TRL uses, and free ones.
for _name in ("get-weather", "class", "finished", "get_reward", "reset", "files/read"):
    _named(_name, f"this is {_name}")


class AnsweringEnvironment(Environment):
    """Its answer is the assistant's last message."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"number": "two", "answer": "2"}, {"number": "three", "answer": "3"}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Write {self.task_spec['number']} as a digit.")]

    @terminal
    @tool
    def submit(self, params: Answer) -> ToolOutput:
        """Take the answer."""
        return said("graded", reward=float(params.text == self.task_spec["answer"]), finished=True)
