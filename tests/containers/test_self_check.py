"""The contract's own checks, on each runtime; test_ordinary_user has them for servers that are not root."""

from __future__ import annotations

import pytest
from ors_containers import Runtime
from ors_containers.self_check import CHECKS, run_check

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


@pytest.mark.asyncio(loop_scope="module")
async def test_a_broken_contract_is_reported(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(*_: object, **__: object) -> None:
        raise TimeoutError("it hung")

    name = "standard input is empty"
    definition = CHECKS[name]
    monkeypatch.setitem(CHECKS, name, type(definition)(wrong, None))
    check = await run_check(runtime, name)
    assert (check.outcome, check.detail) == ("failed", "it hung")
