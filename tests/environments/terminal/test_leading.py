"""No program of the tests that only reads is led to run or believe what the agent left for it (``leading``)."""

from __future__ import annotations

import ast

import pytest
from ors_containers import Limits

from .conftest import Service
from .leading import HEAD, SETUP, Try, tries
from .parts import grading

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(memory=512 * 2**20, disk=256 * 2**20, pids=64)
#: Of one examination: a test can start some 3400 programs.
_MOST = 600
#: The gate tries one of so many; the number has no divisor in common with that of the calls.
_SHARE = 17
_ASKING = """
def test_all():
    paid, answers = {}, 0
    for number in range(COUNT):
        try:
            answer = str(answer_of(number))
        except Exception as error:
            answer = repr(error)
        answers += "honest" in answer
        if "FORGED" in answer:
            paid[number] = answer[:60]
    raise AssertionError("TRIED " + repr((list(paid.items())[:40], answers)))
"""


async def paid(service: Service, tried: list[Try], *, live: bool) -> dict[str, str]:
    """Return the expressions of the tries that paid, with what they printed."""
    tools = await service.toolset()
    sandbox = await service.open(service.image(tools), LIMITS)
    try:
        left = list(dict.fromkeys(one.left for one in tried))
        for first in range(0, len(left), 50):
            text = "\n".join(f"cd /home/user\n{one}" for one in left[first : first + 50])
            functions = SETUP[SETUP.index("new() {") :]
            result = await sandbox.run(f"{functions if first else SETUP}\n{text}", timeout=120)
            assert not result.timed_out
        # By number: what the tests name, as a setting of git, they are about.
        cases = "".join(f"    if number == {n}:\n        return {one.asked}\n" for n, one in enumerate(tried))
        tests = f"{HEAD}\n\ndef answer_of(number):\n{cases}\n\nCOUNT = {len(tried)}\n\n{_ASKING}"
        verdict = await grading.run_tests(sandbox, tools, tests, live=live, timeout=300)
        assert "TRIED " in verdict.detail, verdict
        said: tuple[list[tuple[int, str]], int] = ast.literal_eval(verdict.detail.rpartition("TRIED ")[2])
        found, answers = said
        # Those of the first list that are refused print nothing honest.
        assert answers + len(found) > 0 or tried[0].form == "commands of SQLite", "no program has run"
        return {f"{tried[number].form}: {tried[number].asked}": answer for number, answer in found}
    finally:
        await sandbox.stop()


async def test_no_sample_of_tries_pays(service: Service) -> None:
    for tried in tries():
        assert await paid(service, tried[::_SHARE], live=False) == {}


@pytest.mark.long
@pytest.mark.parametrize("live", [False, True], ids=["frozen", "live"])
async def test_no_try_pays(service: Service, live: bool) -> None:
    found: dict[str, str] = {}
    for tried in tries():
        for first in range(0, len(tried), _MOST):
            found |= await paid(service, tried[first : first + _MOST], live=live)
    every = [one for tried in tries() for one in tried]
    forms = {one.form for one in every}
    print(f"{len(every)} tries of {len(forms)} forms, {len(found)} paid")
    assert len(every) >= 150
    assert len(forms) >= 10
    assert found == {}
