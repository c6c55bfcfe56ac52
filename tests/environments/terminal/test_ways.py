"""No text and no bytes of the agent run in the grader, whichever library the tests pass them to."""

from __future__ import annotations

import pytest
from ors_containers import Sandbox

from .conftest import Service
from .parts import grading, plain_tests
from .test_grading import opened
from .ways import AGENTS_DATA, COMPILING, HELD, HOLDING, PLANTED, REFUSED, SOUND

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def prepared(service: Service) -> Sandbox:
    """Start a sandbox with the files that a cheat leaves."""
    sandbox = await opened(service)
    python = (await service.toolset()).python
    done = await sandbox.run(f"{AGENTS_DATA}\n{python} -I -S - <<'PROGRAM'\n{COMPILING}\nPROGRAM", timeout=30)
    assert done.exit_status == 0, done.text
    return sandbox


async def graded(service: Service, tests: str) -> grading.Verdict:
    """Return the verdict of tests on those files. Fail if any of them ran."""
    sandbox = await prepared(service)
    try:
        try:
            return await grading.run_tests(sandbox, await service.toolset(), tests, live=False, timeout=60)
        finally:
            assert (await sandbox.run("ls ran", timeout=10)).exit_status == 2, "the agent's code ran in the grader"
    finally:
        await sandbox.stop()


@pytest.mark.parametrize("way", REFUSED)
async def test_tests_that_would_run_any_text_earn_nothing(service: Service, way: str) -> None:
    verdict = await graded(service, REFUSED[way])
    assert (verdict.how, bool(verdict.kept_out)) == ("failed", True), verdict


@pytest.mark.parametrize("way", PLANTED)
async def test_text_where_sound_tests_expect_data_earns_nothing(service: Service, way: str) -> None:
    tests, expected = PLANTED[way]
    verdict = await graded(service, tests)
    assert (verdict.how, expected in verdict.detail) == ("failed", True), verdict


@pytest.mark.parametrize("way", SOUND)
async def test_sound_tests_pass(service: Service, way: str) -> None:
    assert (await graded(service, SOUND[way])).how == "passed"


@pytest.mark.parametrize("what", HELD)
async def test_data_that_tests_hold_does_not_fail_the_grader(service: Service, what: str) -> None:
    assert (await graded(service, HOLDING.format(HELD[what]))).how == "failed"


OUTCOMES = {
    **dict.fromkeys(REFUSED.values(), "refused"),
    **dict.fromkeys((tests for tests, _ in PLANTED.values()), "failed"),
    **dict.fromkeys(SOUND.values(), "passed"),
}


@pytest.mark.long
@pytest.mark.usefixtures("with_pytest")
async def test_pytest_says_the_same_of_plain_tests(service: Service) -> None:
    plain = [tests for tests in OUTCOMES if plain_tests.plain_tests(tests) is not None]
    assert len(plain) > 30
    for tests in plain:
        verdict = await graded(service, tests)
        assert ("refused" if verdict.kept_out else verdict.how) == OUTCOMES[tests], tests
