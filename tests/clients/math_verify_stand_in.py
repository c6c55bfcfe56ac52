"""The parts of math_verify that limit its time, where the package is not installed.

math_verify 0.9.0 (huggingface/Math-Verify): ``utils.py`` has the decorator, which ``parser.py`` and ``grader.py``
import by name and apply again at each call. The texts that are parsed and compared are not mathematics.
``tests/long/trainers/check_math_verify.py`` tests the real package.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

__all__ = ["TimeoutException", "install"]


class TimeoutException(BaseException):
    """The work took too long; as in the package, this is not a subclass of ``Exception``."""


def timeout(timeout_seconds: int | None = 10) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that lets SIGALRM end the function."""
    if timeout_seconds is None or timeout_seconds <= 0:
        return lambda function: function

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        def handler(number: int, frame: Any) -> None:
            raise TimeoutException("Operation timed out!")

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            before = signal.getsignal(signal.SIGALRM)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
            try:
                return function(*args, **kwargs)
            finally:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, before)

        return wrapper

    return decorator


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Replace the real package. Return its ``parser`` module."""
    names = ("math_verify", "math_verify.errors", "math_verify.utils", "math_verify.parser", "math_verify.grader")
    for name in [name for name in sys.modules if name.partition(".")[0] == "math_verify"]:
        monkeypatch.delitem(sys.modules, name)
    package, errors, utils, parser, grader = modules = [ModuleType(name) for name in names]
    for name, module in zip(names, modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    vars(package)["__path__"] = []
    vars(errors)["TimeoutException"] = TimeoutException
    for module in (utils, parser, grader):
        vars(module)["timeout"] = timeout

    def parse(text: str, parsing_timeout: float | None = 5, **options: Any) -> list[str]:
        decorator: Any = vars(parser)["timeout"](timeout_seconds=parsing_timeout)
        return decorator(lambda: re.findall(r"boxed\{(.*?)\}", text)[:1])()

    def verify(gold: list[str], target: list[str], timeout_seconds: float | None = 5) -> bool:
        decorator: Any = vars(grader)["timeout"](timeout_seconds=timeout_seconds)
        return decorator(lambda: bool(gold) and gold == target)()

    vars(package).update(parse=parse, verify=verify, LatexExtractionConfig=dict)
    return parser
