"""Tests that run without pytest get the verdict that pytest gives them."""

from __future__ import annotations

import pytest

from .conftest import Service
from .parts import generated, generation, plain_tests
from .test_grading import KEPT_OUT, UNFIT, VERDICTS, grade, see_kept_out, see_unfit

PLAIN = {
    "functions": "def test_a(): pass\n\ndef helper(x, *, y=1): return x\n\ndef test_b():\n    assert helper(1)",
    "a docstring and constants": '"""Final state."""\nimport os\nHOME = "/home/user"\nA, B = 1, 2\nN: int = 3\n'
    "def test_a(): assert os.path.isdir(HOME)",
    "cases of tests": "tests = [1, 2]\ntest_names = {'a': 1}\ndef test_a(): assert tests",
    "pytest for nothing": "import os\nimport pytest\ndef test_a(): pass",
    "pytest for a main program": "import pytest\ndef test_a(): pass\nif __name__ == '__main__':\n    pytest.main()",
    "inner functions": "def test_a():\n    def inner(x): yield_ = x\n    assert [inner(x) is None for x in 'ab']",
}
NOT_PLAIN = {
    "no Python": "def test_a(:",
    "uses pytest": "import pytest\ndef test_a(): pytest.fail('x')",
    "pytest within a test": "def test_a():\n    import pytest\n    pytest.skip('x')",
    "pytest on a line with more": "import os; import pytest\ndef test_a(): pass",
    "pytest by another name": "import pytest as p\ndef test_a(): pass",
    "part of pytest": "from pytest import fail\ndef test_a(): pass",
    "a fixture": "def test_a(tmp_path): pass",
    "a default": "def test_a(x=1): pass",
    "a decorator": "import functools\n@functools.cache\ndef test_a(): pass",
    "a decorated helper": "import functools\n@functools.cache\ndef helper(): pass\ndef test_a(): pass",
    "a coroutine": "async def test_a(): pass",
    "a generator": "def test_a():\n    yield 1",
    "a class": "class TestA:\n    def test_a(self): pass",
    "a class of unittest": "import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass",
    "skipping by unittest": "from unittest import SkipTest\ndef test_a(): raise SkipTest('x')",
    "a set-up": "def setup_module(): pass\ndef test_a(): pass",
    "a mark": "pytestmark = []\ndef test_a(): pass",
    "tests of another module": "from helpers import test_a",
    "all of another module": "from os.path import *\ndef test_a(): pass",
    "a lambda": "test_a = lambda: None",
    "a function under another name": "def check(): pass\ntest_a = check",
    "several names": "def check(): pass\ntest_a, test_b = check, check",
    "an attribute of a test": "def test_a(): pass\ntest_a.__test__ = False",
    "a name bound by the way": "x = [test_a := print]\ndef test_b(): pass",
    "a condition": "import os\nif os.name == 'posix':\n    def test_a(): pass",
    "a loop": "for i in range(3):\n    exec(f'def test_{i}(): pass')",
    "a module that changes itself": "globals()['test_a'] = print\ndef test_b(): pass",
    "a test that makes tests": "def test_a():\n    global test_b\n    def test_b(): assert 0",
}


@pytest.mark.parametrize("what", PLAIN)
def test_plain_tests_are_detected(what: str) -> None:
    text = plain_tests.plain_tests(PLAIN[what])
    assert text is not None
    assert text.count("\n") == PLAIN[what].count("\n")
    assert "\nimport pytest" not in text


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_modules_that_pytest_might_treat_differently_are_not_plain(what: str) -> None:
    assert plain_tests.plain_tests(NOT_PLAIN[what]) is None


def test_nearly_all_tests_of_generated_tasks_are_plain() -> None:
    texts = [generated.generated_task(family, 1).final_tests for family in generation.FAMILIES]
    assert sum(plain_tests.plain_tests(text) is not None for text in texts) > 0.9 * len(texts)


def _plain(table: dict[str, tuple[str, str]]) -> list[str]:
    found = [what for what, (text, _) in table.items() if plain_tests.plain_tests(text) is not None]
    assert len(found) > 4
    return found


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("with_pytest")
@pytest.mark.parametrize("what", _plain(VERDICTS))
async def test_pytest_says_the_same(service: Service, what: str) -> None:
    tests, expected = VERDICTS[what]  # the verdict in `test_verdicts`, without pytest
    verdict = await grade(service, tests, timeout=3 if "hangs" in what else 60)
    assert verdict.how in expected, verdict
    assert verdict.passed == (expected == "passed")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("with_pytest")
@pytest.mark.parametrize("what", _plain(UNFIT))
async def test_pytest_refuses_the_same(service: Service, what: str) -> None:
    await see_unfit(service, *UNFIT[what])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("with_pytest")
@pytest.mark.parametrize("what", _plain(KEPT_OUT))
async def test_pytest_keeps_the_same_code_out(service: Service, what: str) -> None:
    await see_kept_out(service, *KEPT_OUT[what])
