"""Check that a runtime keeps what ``Sandbox`` promises: one set of checks for every runtime, ours or yours.

    async with MyRuntime() as runtime:
        async for check in self_check(runtime):
            print(check.outcome, check.name, check.detail)

Each check gets a fresh sandbox of the runtime's host image. The check of a limit, or of hard links, is skipped where
``describe`` says that it does not hold: a runtime may enforce less, but must not claim more. Invariant: a check fails
with an explanation, never with an exception, and leaves nothing running.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from ors_containers.errors import SandboxError
from ors_containers.runtime import Runtime
from ors_containers.self_check import examinations, files, isolation, limits, links, shell
from ors_containers.self_check.promises import SMALL, Definition, ExpectedDifference, PromiseBroken

__all__ = ["CHECKS", "Check", "Outcome", "run_check", "self_check"]

Outcome = Literal["passed", "failed", "skipped"]

#: Every check by name; the name is the promise.
CHECKS: dict[str, Definition] = {
    **shell.promise,
    **files.promise,
    **links.promise,
    **examinations.promise,
    **isolation.promise,
    **limits.promise,
}


@dataclass(frozen=True, slots=True)
class Check:
    """A promise and whether it was kept."""

    name: str
    outcome: Outcome
    #: Why it failed or was skipped.
    detail: str
    seconds: float


async def self_check(runtime: Runtime) -> AsyncIterator[Check]:
    """Run every check on a started runtime, in order, and yield each result as it is ready."""
    for name in CHECKS:
        yield await run_check(runtime, name)


async def run_check(runtime: Runtime, name: str) -> Check:
    """Run one of ``CHECKS``."""
    definition = CHECKS[name]
    started = time.monotonic()
    for enforcement in runtime.describe().enforcements:
        if enforcement.limit == definition.limit and not enforcement.holds:
            return Check(name, "skipped", f"{enforcement.limit} is not enforced here", 0.0)
    try:
        async with runtime.sandbox(runtime.host_image(), SMALL) as sandbox:
            await definition.body(runtime, sandbox)
    except ExpectedDifference as difference:
        return Check(name, "skipped", str(difference), time.monotonic() - started)
    except (PromiseBroken, SandboxError, TimeoutError) as error:
        return Check(name, "failed", str(error) or type(error).__name__, time.monotonic() - started)
    return Check(name, "passed", "", time.monotonic() - started)
