"""``math_verify`` on other threads than the main thread: its time is limited there, too, without late interrupts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from ors_clients.trainers.atropos.math_verify_timeouts import bound_math_verify

from tests.clients import math_verify_stand_in
from tests.clients.math_verify_stand_in import TimeoutException


@pytest.fixture
def parser(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return math_verify_stand_in.install(monkeypatch)


def elsewhere(work: Callable[[], Any]) -> Any:
    """Return or raise the outcome of ``work`` on another thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - what it raises is what is asked for
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return outcome[0]


def loop_forever() -> None:
    while True:
        pass


def package() -> Any:
    return sys.modules["math_verify"]


def test_it_works_on_every_thread(parser: ModuleType) -> None:
    def compare() -> bool:
        return package().verify(package().parse("boxed{4}"), package().parse("It is \\boxed{4}."))

    assert isinstance(elsewhere(compare), ValueError)  # the failure that the module repairs
    bound_math_verify()
    assert elsewhere(compare) is True
    assert compare() is True


def test_work_that_takes_too_long_is_ended(parser: ModuleType) -> None:
    bound_math_verify()
    bounded = vars(parser)["timeout"](timeout_seconds=0.2)(loop_forever)
    begun = time.monotonic()
    assert isinstance(elsewhere(bounded), TimeoutException)
    assert 0.2 <= time.monotonic() - begun < 20


def test_errors_and_results_of_the_work_are_its_own(parser: ModuleType) -> None:
    bound_math_verify()

    def divide(by: int, *, what: int) -> float:
        return what / by

    bounded = vars(parser)["timeout"](5)(divide)
    assert elsewhere(lambda: bounded(2, what=3)) == 1.5
    assert isinstance(elsewhere(lambda: bounded(0, what=3)), ZeroDivisionError)
    assert vars(parser)["timeout"](None)(divide) is divide


def test_a_late_timer_interrupts_nothing(parser: ModuleType) -> None:
    """The work ends at the moment of its limit, repeatedly."""
    bound_math_verify()
    ended = {"in time": 0, "too late": 0}

    def work() -> None:
        end = time.monotonic() + 0.002
        while time.monotonic() < end:
            pass

    def many() -> dict[str, int]:
        bounded = vars(parser)["timeout"](timeout_seconds=0.002)(work)
        for _ in range(300):
            try:
                bounded()
                ended["in time"] += 1
            except TimeoutException:
                ended["too late"] += 1
            for _ in range(100):  # a late interrupt would arrive here
                pass
        return ended

    assert elsewhere(many) == ended
    assert sum(ended.values()) == 300


def test_the_main_thread_keeps_the_alarm(parser: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    bound_math_verify()
    bounded = vars(parser)["timeout"](timeout_seconds=0.2)(loop_forever)

    def no_timer(*arguments: Any) -> None:
        raise AssertionError("a timer, where there is an alarm")

    monkeypatch.setattr(threading, "Timer", no_timer)
    with pytest.raises(TimeoutException, match="Operation timed out!"):
        bounded()


def test_every_module_that_has_the_decorator_gets_it_once(parser: ModuleType) -> None:
    bound_math_verify()
    replaced = vars(parser)["timeout"]
    bound_math_verify()
    assert replaced is not math_verify_stand_in.timeout
    for name in ("utils", "parser", "grader"):
        assert vars(sys.modules[f"math_verify.{name}"])["timeout"] is replaced


def test_without_the_package_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "math_verify"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "math_verify", None)  # as if it were not installed
    bound_math_verify()
    other = ModuleType("math_verify")  # as if it were another package
    vars(other)["__path__"] = []
    monkeypatch.setitem(sys.modules, "math_verify", other)
    bound_math_verify()
