"""Countdown: the agent makes a number from four others by arithmetic. Tasks are drawn by their index.

A million tasks make no list: `num_tasks` and `get_task` take the place of `list_tasks`. They keep two promises: an
index is the same task in every process and after every restart, and no task of one split is in another.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from random import Random

from pydantic import BaseModel, Field

from ors_server import Environment, JSONObject, TextBlock, ToolOutput, tool

COUNTS = {"train": 1_000_000, "test": 1_000}
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
}


class Countdown(BaseModel):
    """A task, checked."""

    numbers: list[int] = Field(min_length=1, max_length=6)
    target: int


class AnswerInput(BaseModel):
    """Input of the tool `answer`."""

    expression: str = Field(max_length=200, description="The arithmetic, for example '(3 + 4) * 10'.")


class TemplateEnvironment(Environment):
    """One instance is one episode."""

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006 - never changed
        super().__init__(task_spec, secrets)
        self.task = Countdown.model_validate(task_spec)

    @classmethod
    def name(cls) -> str:
        """Return the name by which clients find this environment."""
        return "template-environment"

    @classmethod
    def list_splits(cls) -> list[str]:
        """List the splits."""
        return list(COUNTS)

    @classmethod
    def num_tasks(cls, split: str) -> int:
        """Return the number of tasks. The server refuses every index that is not below it."""
        return COUNTS[split]

    @classmethod
    def get_task(cls, split: str, index: int) -> JSONObject:
        """Draw one task. The seed is a text: `Random` reads it alike in every process, which `hash` does not."""
        random = Random(f"{split}-{index}")
        while True:
            numbers = sorted(random.sample(range(1, 51), 4))
            target = reachable(numbers, random)
            if split_of(numbers) == split and 1 <= target <= 999 and target not in numbers:
                return {"id": f"{split}-{index}", "numbers": numbers, "target": target}

    def get_prompt(self) -> list[TextBlock]:
        """Return the question to the model, which learns about the tools separately."""
        numbers = ", ".join(map(str, self.task.numbers))
        text = f"Make {self.task.target} from the numbers {numbers} with + - * / and brackets, each at most once."
        return [TextBlock(text=text)]

    @tool(exclusive=True)
    async def answer(self, params: AnswerInput) -> ToolOutput:
        """Answer with an expression whose value is the number. There is one try."""
        try:
            value, used = value_of(params.expression)
        except (ValueError, SyntaxError, ZeroDivisionError):
            text, right = "This is not arithmetic with whole numbers, + - * / and brackets.", False
        else:
            right = value == self.task.target and Counter(used) <= Counter(self.task.numbers)
            text = "Right." if right else f"Wrong: it is {value}, made of {used}."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 if right else 0.0, finished=True)


def split_of(numbers: list[int]) -> str:
    """Return the split that may have a task with these numbers.

    The content decides, not the seed. Tasks that two seeds happen to draw alike are then in the same split, so that no
    test measures what the training has seen.
    """
    return "test" if sha256(repr(numbers).encode()).digest()[0] % 2 else "train"


def reachable(numbers: list[int], random: Random) -> int:
    """Combine all the numbers at random, and return the result: a target that has a solution."""
    value, *rest = random.sample(numbers, len(numbers))
    for number in rest:
        value = random.choice((value + number, value - number, value * number))
    return value


def value_of(expression: str) -> tuple[Fraction, list[int]]:
    """Return the exact value of an expression and the numbers in it; nothing is executed.

    Raises `ValueError`, `SyntaxError` or `ZeroDivisionError` for anything that is not arithmetic.
    """
    if not re.fullmatch(r"[0-9+\-*/() ]+", expression):
        raise ValueError(expression)
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            used.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and (function := OPERATORS.get(type(node.op))):
            return function(value(node.left), value(node.right))
        raise ValueError(expression)

    return value(ast.parse(expression.strip(), mode="eval").body), used
