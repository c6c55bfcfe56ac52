"""Environments in the style of `openreward`'s authors; our server hosts them unchanged."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from .journal import note
from .openreward_authoring import (
    Environment,
    GroupCandidate,
    GroupScore,
    JSONObject,
    Message,
    Split,
    TextBlock,
    ToolOutput,
    Toolset,
    terminal,
    tool,
)


class Move(BaseModel):
    seconds: float = 0.0


class Word(BaseModel):
    word: str


class Shell(Toolset):
    """The SDK's own base requires a sandbox and takes it from the environment."""

    sandbox: Any

    @tool
    def where(self) -> ToolOutput:
        """Say which sandbox this is."""
        return ToolOutput(blocks=[TextBlock(text=f"in {self.sandbox}")])


class Riddle(Environment):
    """Say the secret word."""

    toolsets = (Shell,)
    words = {"train": ["echo", "shadow"], "final": ["river"]}  # noqa: RUF012 - as authors write it

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDK's signature
        super().__init__(task_spec)
        self.secrets_seen = sorted(secrets)
        self.sandbox = "sandbox 7"
        self.log: list[str] = []

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return [Split(name="train", type="train"), "final"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": f"{split}-{index}", "word": word} for index, word in enumerate(cls.words[split])]

    async def setup(self) -> None:
        self.log.append("set up")

    def teardown(self) -> None:
        if "token" in self.task_spec:
            note("torn down", self.task_spec["token"])

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Say the word of {len(str(self.task_spec['word']))} letters.")]

    @tool
    def say(self, params: Word) -> ToolOutput:
        """Say a word."""
        right = params.word == self.task_spec["word"]
        return ToolOutput(blocks=[TextBlock(text=params.word)], reward=float(right), finished=right)

    def stay(self, name: str, seconds: float) -> ToolOutput:
        assert threading.current_thread() is not threading.main_thread()
        self.log.append(f"{name} in")
        time.sleep(seconds)
        self.log.append(f"{name} out")
        return ToolOutput(blocks=[TextBlock(text=json.dumps(self.log))])

    @tool
    def walk(self, params: Move) -> ToolOutput:
        """Take a while; calls of one tool never overlap."""
        return self.stay("walk", params.seconds)

    @tool
    def talk(self, params: Move) -> ToolOutput:
        """Take a while; calls of different tools overlap."""
        return self.stay("talk", params.seconds)

    @tool(concurrent=True)
    def look(self, params: Move) -> ToolOutput:
        """Take a while; calls of this tool overlap, too."""
        return self.stay("look", params.seconds)

    @tool(exclusive=True)
    def submit(self, params: Move) -> ToolOutput:
        """Take a while; this tool runs alone."""
        return self.stay("submit", params.seconds)

    @tool
    def shout(self) -> str:
        """Return a value other than ToolOutput: the SDK silently leaves such a tool out."""
        return "oops"


class HarderRiddle(Riddle):
    """A subclass beside its base; the SDK would serve it the base's splits and tasks."""

    words = {"train": ["labyrinth", "mirror", "silence"], "bonus": ["fog"]}  # noqa: RUF012 - as authors write it

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train", "bonus"]


class Interview(Environment):
    """A conversation that the assistant's message ends, with a judge."""

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"question": "Why?"}]

    async def get_messages(self) -> Sequence[Message]:
        question = TextBlock(text=str(self.task_spec["question"]))
        return [Message(role="system", blocks=[TextBlock(text="Be kind.")]), Message(role="user", blocks=[question])]

    @terminal
    @tool
    def answer(self, params: Word) -> ToolOutput:
        """Submit the answer."""
        return ToolOutput(blocks=[], reward=float(len(params.word)), finished=True)

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore | float]:
        assert all(isinstance(candidate, GroupCandidate) for candidate in candidates)  # the SDK's class instead of ours
        texts: list[Any] = [candidate.messages[-1].blocks[0] for candidate in candidates]
        return [GroupScore(reward=len(text.text), metadata={"text": text.text}) for text in texts]


ENVIRONMENTS: list[type[Any]] = [Riddle, HarderRiddle, Interview]
