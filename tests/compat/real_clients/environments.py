"""Environments written for `ors_server`, for the real clients."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import BaseModel, Field

from ors_server import (
    Environment,
    GroupCandidate,
    GroupScore,
    ImageBlock,
    InfrastructureFailure,
    JSONObject,
    ListToolsOutput,
    Message,
    ReasoningBlock,
    Split,
    TextBlock,
    ToolCallBlock,
    ToolOutput,
    ToolResultBlock,
    Toolset,
    ToolSpec,
    terminal,
    tool,
)

from .awkward import REPLACED, TEXTS
from .journal import note


def text_output(text: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)])


class Noted(Environment):
    """Records the events of its life under the task's `token`, if it has one."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDKs' signature
        super().__init__(task_spec, secrets)
        self.note("constructed")

    def note(self, event: str) -> None:
        token = self.task_spec.get("token")
        if token is not None:
            note(event, token)

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [{"id": f"{cls.__name__.lower()}-0"}]

    def setup(self) -> None:
        self.note("set up")

    def teardown(self) -> None:
        self.note("torn down")


class Prompted(Noted):
    """Has a prompt."""

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        return [TextBlock(text=f"The task is {self.task_spec['id']}.")]


# --- a plain game --------------------------------------------------------------------------------


class GuessInput(BaseModel):
    number: int = Field(description="Your guess.", ge=0)


class Guess(Prompted):
    """Guess the number; the first environment of the server, and so its default."""

    @classmethod
    def name(cls) -> str:
        return "GuessIt"

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train", Split(name="holdout", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        numbers = [7, 3, 11, 5] if split == "train" else [13, 17]
        return [{"id": f"{split}-{index}", "number": number} for index, number in enumerate(numbers)]

    def setup(self) -> None:
        super().setup()
        self.guesses = 0

    @tool
    async def guess(self, params: GuessInput) -> ToolOutput:
        """Guess. The reward is 1.0, and the episode ends, if you are right."""
        self.guesses += 1
        right = params.number == self.task_spec["number"]
        return ToolOutput(
            blocks=[TextBlock(text="right" if right else "wrong", detail={"guess": params.number})],
            metadata={"guesses": self.guesses},
            reward=1.0 if right else 0.0,
            finished=right,
        )

    @tool
    def give_up(self) -> ToolOutput:
        """End the episode."""
        return ToolOutput(blocks=[], reward=-0.5, finished=True)

    @tool(shared=False)
    async def peek(self) -> ToolOutput:
        """Look at the number."""
        return text_output(str(self.task_spec["number"]))

    def list_task_tools(self) -> ListToolsOutput:
        description = f"A riddle about {self.task_spec['id']}."
        return ListToolsOutput(tools=[ToolSpec(name="riddle", description=description, input_schema=None)])

    @tool(shared=False)
    async def riddle(self) -> ToolOutput:
        """Each task describes this one in its own words."""
        return text_output(f"What is one less than {int(str(self.task_spec['number'])) + 1}?")


class SlowStart(Guess):
    """Takes the task's `seconds` to set up."""

    @classmethod
    def name(cls) -> str:
        return "SlowStart"

    def setup(self) -> None:
        time.sleep(float(str(self.task_spec["seconds"])))
        super().setup()


class Endless(Guess):
    """A million tasks that are available by index only."""

    @classmethod
    def name(cls) -> str:
        return "Endless"

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return 1_000_000

    @classmethod
    async def get_task(cls, split: str, index: int) -> JSONObject:
        if not 0 <= index < 1_000_000:
            raise IndexError(index)
        return {"id": f"{split}-{index}", "number": index}


# --- every feature of a tool ------------------------------------------------------------------------


class WorkInput(BaseModel):
    token: str
    seconds: float
    text: str = ""


class KindInput(BaseModel):
    kind: str


class TextInput(BaseModel):
    text: str


class Deck(Toolset):
    """A toolset with a state of its own."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.cards = ["ace", "king"]

    @tool
    def draw_card(self) -> ToolOutput:
        """Draw a card."""
        return text_output(f"{self.cards.pop()} of {self.env.task_spec['id']}")


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


class Workbench(Prompted):
    """A tool for each situation that a client has to handle."""

    toolsets = (Deck,)
    aliases = ("Someone/TheBench",)

    @tool
    async def work(self, params: WorkInput) -> ToolOutput:
        """Take a while."""
        note("work", params.token)
        await asyncio.sleep(params.seconds)
        return ToolOutput(blocks=[TextBlock(text=TEXTS.get(params.text, "done"))], reward=0.25)

    @tool
    def grind(self, params: WorkInput) -> ToolOutput:
        """Take a while on a thread."""
        note("grind", params.token)
        time.sleep(params.seconds)
        return text_output("done")

    @tool
    def say(self, params: KindInput) -> ToolOutput:
        """Say one of the awkward texts."""
        return text_output(TEXTS[params.kind])

    @tool
    def babble(self, params: KindInput) -> ToolOutput:
        """Say what JSON cannot carry, as text and as metadata."""
        text = REPLACED[params.kind][0]
        return ToolOutput(blocks=[TextBlock(text=text, detail={"said": text})], metadata={"said": [text]})

    @tool
    def repeat(self, params: TextInput) -> ToolOutput:
        """Repeat a text, and say how long it is."""
        return ToolOutput(blocks=[TextBlock(text=params.text)], metadata={"length": len(params.text)})

    @tool
    def paint(self) -> ToolOutput:
        """Paint a picture."""
        image = ImageBlock(data=PICTURE, mimeType="image/png", detail={"width": 640})
        return ToolOutput(blocks=[TextBlock(text="before"), image, TextBlock(text="after")])

    @tool
    def reward(self, params: KindInput) -> ToolOutput:
        """Give a reward."""
        return ToolOutput(blocks=[], reward=float(params.kind))

    @tool
    def annotate(self) -> ToolOutput:
        """Give metadata that JSON cannot express."""
        metadata: dict[str, Any] = {
            "object": Opaque(),
            "time": datetime(2026, 1, 2, tzinfo=UTC),
            "nan": float("nan"),
            "big": 2**70,
            "nested": {"list": [1, None, True, 1.5]},
        }
        return ToolOutput(blocks=[], metadata=metadata)

    @tool
    def reveal(self) -> ToolOutput:
        """Show the secrets."""
        return text_output(json.dumps(dict(self.secrets)))

    @tool
    async def fail(self, params: KindInput) -> ToolOutput:
        """Fail in one of many ways."""
        match params.kind:
            case "raise":
                raise ValueError("the kettle is cold:\n  fill it first")
            case "cancel":
                raise asyncio.CancelledError
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "nothing":
                return cast("ToolOutput", None)
            case _:
                raise InfrastructureFailure("The sandbox is gone", "Start another episode.")


PICTURE = base64.b64encode(bytes(range(256)) * 1_200).decode()


# --- messages, a terminal tool, scoring ----------------------------------------------------------


class AnswerInput(BaseModel):
    text: str


class Conversation(Noted):
    """A conversation that a plain message of the assistant ends."""

    async def get_messages(self) -> Sequence[Message]:
        image = ImageBlock(data="AAAA", mimeType="image/png")
        call = ToolCallBlock(id="call-1", name="calculate", input={"text": "6*7"})
        return [
            Message(role="system", blocks=[TextBlock(text="Answer briefly.")]),
            Message(role="user", blocks=[TextBlock(text="What is 6*7?"), image]),
            Message(role="assistant", blocks=[ReasoningBlock(text="Multiply.", signature="s"), call]),
            Message(
                role="user",
                blocks=[
                    ToolResultBlock(tool_call_id="call-1", blocks=[TextBlock(text="no such tool")], is_error=True),
                    TextBlock(text="Go on."),
                ],
                detail={"turn": 2},
            ),
        ]

    @tool
    def calculate(self, params: TextInput) -> ToolOutput:
        """Calculate."""
        return text_output("42")

    @terminal
    @tool
    async def answer(self, params: AnswerInput) -> ToolOutput:
        """Graded: the answer."""
        return ToolOutput(blocks=[], reward=1.0 if "42" in params.text else 0.0, finished=True)

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore | float]:
        """Score longer answers higher; the judge takes a while, and fails where the candidates demand it."""
        note("score", self.task_spec.get("token", "-"))
        await asyncio.sleep(0.1)
        scores: list[GroupScore | float] = []
        for candidate in candidates:
            metadata: Mapping[str, Any] = candidate.metadata or {}
            if metadata.get("judge") == "fails":
                raise RuntimeError("the judge has no opinion")
            block = candidate.messages[-1].blocks[-1]
            assert isinstance(block, TextBlock)
            score = float(len(block.text))
            scores.append(GroupScore(reward=score, metadata={"seen": dict(metadata)}) if metadata else score)
        return scores


# --- failures before the first call ------------------------------------------------------------------


class Troubled(Guess):
    """Fails where the task says."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - the SDKs' signature
        super().__init__(task_spec, secrets)
        self.fail("constructor")

    @classmethod
    def name(cls) -> str:
        return "Troubled"

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train", "unlisted"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        if split == "unlisted":
            raise OSError("the list is unreadable")
        return [{"id": where, "number": 1, "fails": where} for where in ("constructor", "setup", "prompt", "machine")]

    def fail(self, where: str) -> None:
        if self.task_spec["fails"] == where:
            self.note(f"failed in {where}")
            raise LookupError(f"trouble in the {where}")

    def setup(self) -> None:
        super().setup()
        time.sleep(0.2)
        self.fail("setup")
        if self.task_spec["fails"] == "machine":
            raise InfrastructureFailure("The sandbox did not start", "Free some memory.")

    def get_prompt(self) -> list[TextBlock | ImageBlock]:
        self.fail("prompt")
        return super().get_prompt()


OWN: list[type[Environment]] = [Guess, SlowStart, Endless, Workbench, Conversation, Troubled]
