"""Environments for the tests of the ROLL adapters, one tool for each possible event of a turn."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ors_server import (
    Environment,
    ImageBlock,
    InfrastructureFailure,
    JSONObject,
    Message,
    Split,
    TextBlock,
    ToolOutput,
    tool,
)

#: One white pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4////fwAJ+wP9CNHoHgAAAABJRU5ErkJggg=="


class Reward(BaseModel):
    reward: float | None = None


class Typed(BaseModel):
    """One parameter of each type."""

    number: int
    ratio: float
    flag: bool
    names: list[str]
    options: dict[str, Any]
    note: str
    limit: int | None = None


class Seconds(BaseModel):
    seconds: float


def said(text: str, **more: Any) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], **more)


class RewardEnvironment(Environment):
    """Five tasks. Every tool affects the episode as its name says."""

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train"), Split(name="empty", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"number": number} for number in range(5)] if split == "train" else []

    def setup(self) -> None:
        """Create a file for each open episode, in a folder where the test counts them."""
        handle, name = tempfile.mkstemp(dir=os.environ["OPEN_EPISODES"])
        os.close(handle)
        self.marker = Path(name)

    def teardown(self) -> None:
        self.marker.unlink()

    def get_messages(self) -> list[Message]:
        return [Message(role="user", blocks=[TextBlock(text=f"Task {self.task_spec['number']}.")])]

    @tool
    def earn(self, params: Reward) -> ToolOutput:
        """Earn a reward and go on."""
        return said(f"earned {params.reward}", reward=params.reward)

    @tool
    def finish(self, params: Reward) -> ToolOutput:
        """Earn a reward and end the episode."""
        return said("done", reward=params.reward, finished=True)

    @tool
    def typed(self, params: Typed) -> ToolOutput:
        """Say what was given."""
        return said(json.dumps(params.model_dump()))

    @tool
    def fail(self) -> ToolOutput:
        """Raise."""
        raise RuntimeError("it broke")

    @tool
    def lose(self) -> ToolOutput:
        """Lose the machine."""
        raise InfrastructureFailure("the sandbox died")

    @tool
    def picture(self) -> ToolOutput:
        """Show a picture."""
        return ToolOutput(blocks=[TextBlock(text="look"), ImageBlock(data=PIXEL, mimeType="image/png")])

    @tool
    async def wait(self, params: Seconds) -> ToolOutput:
        """Take a while."""
        await asyncio.sleep(params.seconds)
        return said("waited")


class LostEnvironment(RewardEnvironment):
    """Its set-up always fails."""

    def setup(self) -> None:
        raise InfrastructureFailure("no machine")

    def teardown(self) -> None:
        """There is nothing to release."""
