"""Environments written for openreward and ors-sdk, in the style of their authors."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedFunctionDecorator=false, reportUntypedBaseClass=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportIncompatibleMethodOverride=false
# pyright: reportIncompatibleVariableOverride=false

import threading
from typing import Any

import openreward.environments as openreward
import ors
from pydantic import BaseModel

WORDS = ["one", "two", "three"]
#: For each session of ``OrsThreads``, the methods that ran and the thread of each.
THREADS: dict[int, list[tuple[str, int]]] = {}
#: Releases the blocking tool.
RELEASE = threading.Event()


class Guess(BaseModel):
    word: str


class Message(BaseModel):
    message: str


class OpenRewardGame(openreward.Environment):
    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec)
        self.secret = secrets.get("k", "")

    @classmethod
    def list_splits(cls) -> Any:
        return [openreward.Split(name="train", type="train"), "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return [{"word": word} for word in WORDS]

    def get_prompt(self) -> Any:
        return [openreward.TextBlock(text=f"guess {self.task_spec['word']}")]

    @openreward.tool
    async def guess(self, params: Guess) -> openreward.ToolOutput:
        """Guess the word."""
        right = params.word == self.task_spec["word"]
        return openreward.ToolOutput(
            blocks=[openreward.TextBlock(text="right" if right else "wrong")],
            metadata={"by": "guess"},
            reward=float(right),
            finished=right,
        )

    @openreward.tool
    def look(self) -> openreward.ToolOutput:
        """Look around."""
        return openreward.ToolOutput(blocks=[openreward.TextBlock(text=self.secret)])


class OrsGame(ors.Environment):
    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec)
        self.secret = secrets.get("k", "")

    @classmethod
    def list_splits(cls) -> Any:
        return [ors.Split(name="train", type="train"), "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return [{"word": word} for word in WORDS]

    def get_prompt(self) -> Any:
        return [ors.TextBlock(text=f"guess {self.task_spec['word']}")]

    @ors.tool
    async def guess(self, params: Guess) -> ors.ToolOutput:
        """Guess the word."""
        right = params.word == self.task_spec["word"]
        return ors.ToolOutput(
            blocks=[ors.TextBlock(text="right" if right else "wrong")],
            metadata={"by": "guess"},
            reward=float(right),
            finished=right,
        )

    @ors.tool
    def look(self) -> ors.ToolOutput:
        """Look around."""
        return ors.ToolOutput(blocks=[ors.TextBlock(text=self.secret)])


class OrsThreads(OrsGame):
    """Records the thread of all synchronous code; its tools fail if they overlap."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec)
        self.steps: list[tuple[str, int]] = []
        self.inside = 0
        THREADS[len(THREADS)] = self.steps
        self.note("init")

    def note(self, step: str) -> None:
        self.steps.append((step, threading.get_ident()))

    def setup(self) -> None:
        self.note("setup")

    def teardown(self) -> None:
        self.note("teardown")

    def get_prompt(self) -> Any:
        self.note("prompt")
        return super().get_prompt()

    @ors.tool
    def first(self) -> ors.ToolOutput:
        return self.alone("first")

    @ors.tool
    def second(self) -> ors.ToolOutput:
        return self.alone("second")

    def alone(self, step: str) -> ors.ToolOutput:
        self.inside += 1
        assert self.inside == 1
        threading.Event().wait(0.01)
        self.inside -= 1
        self.note(step)
        return ors.ToolOutput(blocks=[])


class OrsBlocking(OrsGame):
    @ors.tool
    def block(self) -> ors.ToolOutput:
        RELEASE.wait(10)
        return ors.ToolOutput(blocks=[ors.TextBlock(text="blocked")])

    @ors.tool
    def quick(self) -> ors.ToolOutput:
        return ors.ToolOutput(blocks=[ors.TextBlock(text="quick")])


class OrsMalformed(ors.Environment):
    @classmethod
    def list_splits(cls) -> Any:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return [{}]

    def get_prompt(self) -> Any:
        return []

    @ors.tool
    async def good(self) -> ors.ToolOutput:
        return ors.ToolOutput(blocks=[])

    @ors.tool
    async def bad(self, one: Guess, two: Guess) -> ors.ToolOutput:
        return ors.ToolOutput(blocks=[])


class OrsExtra(ors.Toolset):
    @ors.tool(shared=False)
    def look(self) -> ors.ToolOutput:
        return ors.ToolOutput(blocks=[])


class OrsCollision(OrsGame):
    toolsets = (OrsExtra,)


class OpenRewardChat(openreward.Environment):
    @classmethod
    def list_splits(cls) -> Any:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return [{}]

    def get_messages(self) -> Any:
        return [
            openreward.Message(role="system", blocks=[openreward.TextBlock(text="Be brief.")]),
            openreward.Message(role="user", blocks=[openreward.TextBlock(text="6 x 7?")]),
        ]

    @openreward.tool
    def step(self) -> openreward.ToolOutput:
        return openreward.ToolOutput(blocks=[])

    @openreward.terminal
    @openreward.tool
    def answer(self, params: Message) -> openreward.ToolOutput:
        """Grade the answer."""
        return openreward.ToolOutput(blocks=[], reward=float(params.message == "42"), finished=True)

    async def score_group(self, candidates: Any) -> Any:
        assert all(isinstance(candidate, openreward.GroupCandidate) for candidate in candidates)
        return [openreward.GroupScore(reward=float(len(one.messages[0].blocks[0].text))) for one in candidates]


def _family(game: Any) -> Any:
    """Return a parent class and a child that overrides the tasks."""

    class Parent(game):
        pass

    class Child(Parent):
        @classmethod
        def list_tasks(cls, split: str) -> Any:
            return [{"word": "alone"}]

    return Parent, Child


OPENREWARD_FAMILY = _family(OpenRewardGame)
ORS_FAMILY = _family(OrsGame)
