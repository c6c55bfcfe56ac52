"""An environment that records every call its tools ran, in the file ``TOOL_TRACE``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import BaseModel

from ors_server import Environment, InfrastructureFailure, JSONObject, Split, TextBlock, ToolOutput, tool


class Reward(BaseModel):
    reward: float | None = None


class Count(BaseModel):
    count: int


class ConformanceEnvironment(Environment):
    """Every tool affects the episode as its name says."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"number": 0}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Do what you are told.")]

    def _ran(self, name: str, **input: object) -> list[TextBlock]:
        with Path(os.environ["TOOL_TRACE"]).open("a") as trace:
            trace.write(json.dumps([name, input]) + "\n")
        return [TextBlock(text=f"{name} ran")]

    @tool
    def earn(self, params: Reward) -> ToolOutput:
        """Earn a reward and go on."""
        return ToolOutput(blocks=self._ran("earn", reward=params.reward), reward=params.reward)

    @tool
    def finish(self, params: Reward) -> ToolOutput:
        """Earn a reward and end the episode."""
        return ToolOutput(blocks=self._ran("finish", reward=params.reward), reward=params.reward, finished=True)

    @tool
    def repeat(self, params: Count) -> ToolOutput:
        """Take a number."""
        return ToolOutput(blocks=self._ran("repeat", count=params.count))

    @tool
    def fail(self) -> ToolOutput:
        """Raise."""
        self._ran("fail")
        raise RuntimeError("it broke")

    @tool
    def lose(self) -> ToolOutput:
        """Lose the machine."""
        self._ran("lose")
        raise InfrastructureFailure("the machine is gone")
