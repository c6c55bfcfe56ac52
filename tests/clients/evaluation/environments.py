"""Environments for tests of evaluations: an exam with known answers, and faults where a test wants them."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel

from ors_server import Environment, InfrastructureFailure, TextBlock, ToolOutput, tool

__all__ = ["Exam"]


class Answer(BaseModel):
    """The answer to the question."""

    text: str


class Exam(Environment):
    """Reward 1 for the answer ``right``, 0 for any other, a half for ``half``; either ends the episode."""

    questions: ClassVar[int] = 6
    #: Called with the question and the answer; an episode for which it returns True is lost.
    loses: ClassVar[Callable[[int, str], bool]] = lambda question, answer: False
    #: Like it, before the model has taken a turn.
    loses_setup: ClassVar[Callable[[int], bool]] = lambda question: False
    #: Episodes that ended with an answer, by question.
    answered: ClassVar[Counter[int]] = Counter()

    @classmethod
    def reset(cls) -> None:
        """Forget what a test has set."""
        cls.questions = 6
        cls.loses = lambda question, answer: False
        cls.loses_setup = lambda question: False
        cls.answered = Counter()

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train", "test"]

    @classmethod
    def num_tasks(cls, split: str) -> int:
        return cls.questions

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, Any]:
        if not 0 <= index < cls.questions:
            raise IndexError(index)
        return {"id": f"q{index}", "question": index}

    async def setup(self) -> None:
        if type(self).loses_setup(self.question):
            raise InfrastructureFailure("the machine is gone", "Wait.")

    @property
    def question(self) -> int:
        number = self.task_spec["question"]
        assert isinstance(number, int)
        return number

    async def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Question {self.question}")]

    @tool
    async def answer(self, params: Answer) -> ToolOutput:
        """Give the answer."""
        if type(self).loses(self.question, params.text):
            raise InfrastructureFailure("the machine burned down", "Build another.")
        type(self).answered[self.question] += 1
        rewards = {"right": 1.0, "half": 0.5, "huge": 1.7e308}
        return ToolOutput(blocks=[TextBlock(text="noted")], reward=rewards.get(params.text, 0.0), finished=True)

    @tool
    async def think(self) -> ToolOutput:
        """Do nothing."""
        return ToolOutput(blocks=[TextBlock(text="hm")], reward=0.25)

    @tool
    async def fail(self) -> ToolOutput:
        """Raise."""
        raise ValueError("the pencil broke")

    @tool
    async def reveal(self) -> ToolOutput:
        """Print a secret, as text and within JSON."""
        secret = self.secrets["EXAM_TOKEN"]
        text = f"{secret} {json.dumps({'said': json.dumps(secret)})}"
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"deep": [{secret: secret}]})
