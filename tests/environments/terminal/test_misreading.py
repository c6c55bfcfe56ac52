"""No program of the tests that only reads prints what the agent has written for it to print (``misreading``)."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
from ors_containers import Limits

from .conftest import Service
from .misreading import FORMS, HEAD, SETUP
from .parts import grading

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = Limits(memory=512 * 2**20, disk=96 * 2**20, pids=64)
_SERVICE = """
cat > service.py <<'END'
import runpy, time
while True:
    runpy.run_path("/home/user/evil")
    time.sleep(0.01)
END
setsid python3 service.py > /dev/null 2>&1 < /dev/null &
"""
_ASKING = """
def test_all():
    said, honest = {}, 0
    for name in range(COUNT):
        try:
            answer = str(answer_of(name))
        except Exception as error:
            answer = repr(error)
        if "FORGED" in answer:
            said[name] = answer[:200]
        honest += "honest" in answer
    raise AssertionError("TRIED " + repr((said, honest, os.path.exists(HOME + "/ran"))))
"""


@dataclass(frozen=True)
class Tried:
    """Result of all forms in one sandbox."""

    paid: dict[str, str]
    #: How many answers have the content of an honest file: the programs did run.
    honest: int
    #: Whether a program of the agent was started.
    ran: bool


async def tried(service: Service, *, live: bool) -> Tried:
    """Leave every form in a sandbox, and have the tests ask all of them."""
    tools = await service.toolset()
    sandbox = await service.open(service.image(tools), LIMITS)
    try:
        for left in (SETUP, *(form.left for form in FORMS.values()), "cp file forged; echo FORGED > forged; rm -f ran"):
            functions = SETUP[SETUP.index("new() {") : SETUP.index("new plain")]
            await sandbox.run(f"cd /home/user\n{functions}{left}" if left != SETUP else left, timeout=60)
        if live:
            await sandbox.run(_SERVICE, timeout=10)
        # By number: what the tests name, as a setting of git, they are about.
        cases = "".join(f"    if name == {n}:\n        return {form.asked}\n" for n, form in enumerate(FORMS.values()))
        tests = f"{HEAD}\n\ndef answer_of(name):\n{cases}\n\nCOUNT = {len(FORMS)}\n\n{_ASKING}"
        verdict = await grading.run_tests(sandbox, tools, tests, live=live, timeout=240)
        assert "TRIED " in verdict.detail, verdict
        paid, honest, ran = ast.literal_eval(verdict.detail.rpartition("TRIED ")[2])
        return Tried({list(FORMS)[number]: answer for number, answer in paid.items()}, honest, ran)
    finally:
        await sandbox.stop()


async def test_no_form_pays_when_every_process_of_the_agent_was_ended(service: Service) -> None:
    result = await tried(service, live=False)
    assert not result.paid, "\n".join(f"{form}: {answer!r}" for form, answer in result.paid.items())
    assert not result.ran
    assert result.honest > len(FORMS) // 2


async def test_no_form_pays_beside_a_service_of_the_agent(service: Service) -> None:
    result = await tried(service, live=True)
    assert not result.paid, "\n".join(f"{form}: {answer!r}" for form, answer in result.paid.items())
    assert result.honest > len(FORMS) // 2
