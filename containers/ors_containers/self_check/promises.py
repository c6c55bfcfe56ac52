"""Definitions of promises, and helpers that their checks share.

A check takes the runtime and a fresh sandbox of it, and raises ``PromiseBroken`` where the promise is not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ors_containers.limits import MIB, LimitName, Limits
from ors_containers.runtime import Runtime
from ors_containers.sandbox import CommandResult, Sandbox

__all__ = [
    "SMALL",
    "Definition",
    "ExpectedDifference",
    "PromiseBroken",
    "Promises",
    "examine",
    "expect",
    "expect_failure",
    "expect_output",
]

#: Limits of the sandbox that a check gets.
SMALL = Limits(memory=96 * MIB, pids=48, disk=32 * MIB, output=2000)

Body = Callable[[Runtime, Sandbox], Awaitable[None]]


class PromiseBroken(Exception):
    """A promise that was not kept."""


class ExpectedDifference(Exception):
    """A promise that the runtime does not make on this machine, as its description says."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A promise's check."""

    body: Body
    #: The limit it is about; the check is skipped where that limit does not hold.
    limit: LimitName | None


class Promises(dict[str, Definition]):
    """Checks of one module by promise, in the order of their definition. A decorator."""

    def __call__(self, promise: str, limit: LimitName | None = None) -> Callable[[Body], Body]:
        """Add the decorated function as the check of ``promise``."""

        def add(body: Body) -> Body:
            self[promise] = Definition(body, limit)
            return body

        return add


def expect(condition: bool, explanation: object) -> None:
    """Raise ``PromiseBroken`` with ``explanation`` unless ``condition``."""
    if not condition:
        raise PromiseBroken(str(explanation))


async def expect_output(sandbox: Sandbox, command: str, expected: str, status: int = 0) -> CommandResult:
    """Run ``command`` and expect this output and exit status."""
    result = await sandbox.run(command, timeout=20)
    expect(
        result.text == expected and result.exit_status == status,
        f"{command!r} gave {result.exit_status} and {result.text!r}, not {status} and {expected!r}",
    )
    return result


async def expect_failure(sandbox: Sandbox, command: str) -> None:
    """Run ``command`` and expect an exit status other than 0."""
    result = await sandbox.run(command, timeout=20)
    expect(result.exit_status != 0, f"{command!r} was allowed: {result.text!r}")


async def examine(sandbox: Sandbox, script: str, *, timeout: float = 20, **options: Any) -> CommandResult:
    """Examine the sandbox with the image's shell, which runs ``script`` without reading a startup file."""
    program = [sandbox.image.shell, "--noprofile", "--norc", "-c", script]
    return await sandbox.examine(program, timeout=timeout, **options)
