"""Tests of the environment: its tasks, the grading, and whole episodes. Run `pytest` here."""

import asyncio
import subprocess
import sys
from fractions import Fraction
from itertools import combinations
from pathlib import Path

from environment import COUNTS, AnswerInput, TemplateEnvironment, value_of
from ors_clients import local_sync

from ors_server import TextBlock

TASK = {"numbers": [2, 3, 7, 50], "target": 42}
SOME = {split: [TemplateEnvironment.get_task(split, index) for index in range(300)] for split in COUNTS}


def reward(expression: str) -> float | None:
    """Return the reward of an answer to `TASK`; each answer ends the episode."""
    output = asyncio.run(TemplateEnvironment(TASK).answer(AnswerInput(expression=expression)))
    assert output.finished
    return output.reward


def test_an_index_is_the_same_task_in_another_process() -> None:
    code = "import environment; print(environment.TemplateEnvironment.get_task('train', 299))"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(SOME["train"][299])


def test_the_last_index_is_a_task() -> None:
    for split, count in COUNTS.items():
        assert TemplateEnvironment.get_task(split, count - 1)["id"] == f"{split}-{count - 1}"


def test_no_task_of_the_test_is_in_the_training() -> None:
    train, test = ({str(task["numbers"]) for task in SOME[split]} for split in ("train", "test"))
    assert train.isdisjoint(test)
    assert len(train) > 290


def test_what_is_right_and_what_is_not() -> None:
    rewards = {
        "2 * 3 * 7": 1.0,
        " 7*(3*2)": 1.0,
        "2 * 3 * 8": 0.0,
        "6 * 7": 0.0,  # 6 is not among the numbers
        "50 - 2 * 7 + 3 * 2": 0.0,  # 2 is there once
        "7 * 7 - 7": 0.0,
    }
    assert {expression: reward(expression) for expression in rewards} == rewards
    assert value_of("7 / 2 / 7") == (Fraction(1, 2), [7, 2, 7])


def test_what_is_not_arithmetic_is_wrong_and_nothing_worse() -> None:
    for expression in ("", " ", "9**9**9**9", "7 // 2", "-42", "1 / (3 - 3)", "007", "(" * 200, "7 7", "7(6)"):
        assert reward(expression) == 0.0, expression
    for expression in ("__import__('os').system('true')", "True", "7 if 7 else 7", "2e3", "\x00", "\uff14\uff12"):
        assert reward(expression) == 0.0, expression


def test_episodes() -> None:
    """The first tasks of the test split are played under the server's rules, by an agent that tries everything."""
    for index in range(3):
        with local_sync(TemplateEnvironment, split="test", index=index) as session:
            (block,) = session.prompt()
            assert isinstance(block, TextBlock)
            numbers = [word for word in block.text.replace(",", "").split() if word.isdecimal()]
            result = session.call("answer", {"expression": solution(numbers[1:], int(numbers[0]))})
            assert (result.reward, result.finished) == (1.0, True)


def solution(terms: list[str], target: int) -> str:
    """Join two terms after each other, in every way, until one of them is the target."""
    for first, second in combinations(terms, 2):
        rest = [term for term in terms if term not in (first, second)]
        for left, right in ((first, second), (second, first)):
            for sign in "+-*":
                term = f"({left} {sign} {right})"
                if value_of(term)[0] == target:
                    return term
                if found := solution([*rest, term], target):
                    return found
    return ""
