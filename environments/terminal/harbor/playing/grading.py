"""The reward of an episode, and whose fault it is when there is none.

A verifier may end without a reward, or not in its time, because of the agent, the task or the machine. It runs again;
then it runs on the start state, which no agent has touched. If it gives a reward there, the agent's files are the cause
and the reward is 0. If it gives none, the failure is the task's or the machine's and never a reward.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ors_containers.container import Container

from ors_server import InfrastructureFailure, JSONObject

from ..ctrf_report import reported_tests
from ..folder import HarborTask
from ..record import Record
from ..reward import Reward
from .judging import OnFrozen, frozen
from .verification import Containers, Verification, run_verifier

__all__ = ["HarborVerdict", "NoVerdict", "grade_changes", "grade_container"]

logger = logging.getLogger("ors_server.terminal")

#: Characters of the end of a verifier's output that are handed on.
_MOST_OUTPUT = 20_000
#: Runs of a verifier that gives no reward.
_TRIES = 2


class NoVerdict(InfrastructureFailure):
    """A verifier that gives no reward, on the start state either."""


@dataclass(frozen=True)
class HarborVerdict:
    """A reward, every number of the verifier, and the mark of a verdict that an agent could write."""

    reward: float
    numbers: Mapping[str, float]
    mark: str
    detail: str
    #: The run of the verifier that gave it, or the last that gave none. Never for a client.
    run: Verification | None = None

    @property
    def data(self) -> JSONObject:
        """Findings for the record of the episode (docs/environments.md)."""
        numbers = ", ".join(f"{name} {value:g}" for name, value in list(self.numbers.items())[:50])
        said = [self.detail, *([numbers] if len(self.numbers) > 1 else [])]
        return {
            "summary": f"The verifier: {'; '.join(said)}.",
            "tests": [] if self.run is None else reported_tests(self.run.tests),
            "output": "" if self.run is None else self.run.output[-_MOST_OUTPUT:],
        }


async def grade_container(
    service: Containers,
    task: HarborTask,
    record: Record,
    variables: Mapping[str, str],
    container: Container,
    on_frozen: OnFrozen | None = None,
) -> HarborVerdict:
    """End a container and grade what it has written, which ``on_frozen`` gets before.

    Raises what ``grade_changes`` and ``frozen`` raise.
    """
    async with frozen(service, container, record.left_out, on_frozen) as changes:
        return await grade_changes(service, task, record, variables, changes)


async def grade_changes(
    service: Containers, task: HarborTask, record: Record, variables: Mapping[str, str], changes: Path
) -> HarborVerdict:
    """Grade a layer of an agent's files, without what is kept out.

    Raises ``NoVerdict`` where the agent is not the cause of a missing reward, and what opening a container raises.
    """
    found: Verification | None = None
    for _ in range(_TRIES):
        found = await run_verifier(service, task, record, variables, changes)
        if (verdict := _verdict(found, record)) is not None:
            return verdict
        logger.warning("a verifier gave no reward", extra={"task": task.name, "cause": found.described})
    assert found is not None
    start = await run_verifier(service, task, record, variables)
    if start.value is None:
        raise NoVerdict(
            f"The verifier of {task.name!r} gives no reward, on the start state either: {start.described}",
            f"Prepare the task again: ors-server tasks prepare --again {task.folder}",
        )
    return HarborVerdict(0.0, {}, record.mark, f"Only on the agent's state: {found.described}", found)


def _verdict(found: Verification, record: Record) -> HarborVerdict | None:
    if found.timed_out or not isinstance(found.reward, Reward):
        return None
    return HarborVerdict(found.reward.value, found.reward.numbers, record.mark, found.described, found)
