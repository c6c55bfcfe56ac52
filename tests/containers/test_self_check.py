"""The contract's own checks, on each runtime; test_ordinary_user has them for servers that are not root."""

from __future__ import annotations

import pytest
from ors_containers import Runtime, Sandbox
from ors_containers.self_check import CHECKS, promises, run_check

from tests.support.sampling import sample


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CHECKS)
async def test_the_contract_holds_for(runtime: Runtime, name: str) -> None:
    await _holds(runtime, name)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("runtime", ["apptainer"], indirect=True)
@pytest.mark.parametrize("name", sample(CHECKS, 4))
async def test_the_contract_of_apptainer_holds_for(runtime: Runtime, name: str) -> None:
    await _holds(runtime, name)


async def _holds(runtime: Runtime, name: str) -> None:
    check = await run_check(runtime, name)
    if check.outcome == "skipped":
        pytest.skip(check.detail)
    assert check.outcome == "passed", check.detail


async def _hangs(runtime: Runtime, sandbox: Sandbox) -> None:
    raise TimeoutError("it hung")


async def _prints_another_text(runtime: Runtime, sandbox: Sandbox) -> None:
    await promises.expect_output(sandbox, "echo one", "another\n")


async def _allows_what_it_forbids(runtime: Runtime, sandbox: Sandbox) -> None:
    await promises.expect_failure(sandbox, "echo allowed")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (_hangs, "it hung"),
        (_prints_another_text, "'echo one' gave 0 and 'one\\n', not 0 and 'another\\n'"),
        (_allows_what_it_forbids, "'echo allowed' was allowed: 'allowed\\n'"),
    ],
)
async def test_a_broken_contract_is_reported(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, body: promises.Body, detail: str
) -> None:
    name = "standard input is empty"
    monkeypatch.setitem(CHECKS, name, promises.Definition(body, None))
    check = await run_check(runtime, name)
    assert (check.outcome, check.detail) == ("failed", detail)
