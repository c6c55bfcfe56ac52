"""Grading of kept final states by the folders of their tasks as these are prepared now, without an agent.

Invariant: a state is never changed; each try grades a copy of it. What keeps one state from being graded is its
problem, and the others are graded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_containers import SandboxError

from ors_server import InfrastructureFailure, OrsError

from ..discovery import FoundFolder
from ..jobs import results_of
from ..source import HarborSource
from .final_states import FinalState
from .grading import HarborVerdict, grade_changes
from .task import PreparedTask
from .verification import Containers

__all__ = ["PreparedTasks", "Regraded", "regrade_states"]


@dataclass(frozen=True)
class Regraded:
    """A state, and its new verdict or the reason why it has none."""

    state: FinalState
    verdict: HarborVerdict | None = None
    #: The digest of the folder by which it was graded.
    key: str = ""
    problem: str = ""

    @property
    def changed(self) -> bool:
        """True where the new reward differs from the one before."""
        return self.verdict is not None and self.verdict.reward != self.state.reward


class PreparedTasks:
    """The tasks of states, as they are prepared now: of the folders ``found``, for None each of its own folder."""

    def __init__(self, found: Sequence[FoundFolder] | None, variables: Mapping[str, str], *, flag: bool) -> None:
        self._variables = variables
        self._flag = flag
        self._own: dict[tuple[str, str], HarborSource] = {}
        self._folders = None if found is None else [each.folder for each in found]
        self._source = None if found is None else HarborSource(found, variables, flag=flag)

    def concern(self, state: FinalState) -> bool:
        """Return whether a state is of one of the tasks, by its name or its folder."""
        if self._source is None or self._folders is None:
            return True
        return state.task in self._source.names or Path(state.folder) in self._folders

    def find(self, state: FinalState) -> PreparedTask:
        """Find the task of a state. Raises ``InfrastructureFailure`` where it is gone or not prepared."""
        source = self._source
        if source is None:
            key = (state.folder, state.task)
            if key not in self._own:
                folder = FoundFolder(Path(state.folder), state.task)
                self._own[key] = HarborSource([folder], self._variables, flag=self._flag)
            source = self._own[key]
        if state.task not in source.names:
            why = next(
                (f": {each}" for each in source.problems if each.startswith(state.folder)), f" in {state.folder}"
            )
            raise InfrastructureFailure(f"The Harbor task {state.task!r} is no longer there{why}")
        return source.find(state.task)


def regrade_states(
    service: Containers, states: Sequence[FinalState], tasks: PreparedTasks, *, jobs: int
) -> AsyncGenerator[Regraded]:
    """Grade states, ``jobs`` of them at a time; yield each result when it is there."""

    async def grade(state: FinalState) -> Regraded:
        try:
            return await _regraded(service, state, await asyncio.to_thread(tasks.find, state))
        except (OrsError, SandboxError) as error:
            return Regraded(state, problem=str(error))
        except OSError as error:
            return Regraded(state, problem=f"A file cannot be read or written: {error}")

    return results_of(states, grade, jobs=jobs)


async def _regraded(service: Containers, state: FinalState, prepared: PreparedTask) -> Regraded:
    store, record = service.store, prepared.record
    if store.record(record.image).layers != state.image:
        raise InfrastructureFailure(
            f"The image of the Harbor task {state.task!r} has changed since this episode: its files do not fit it"
        )
    if not store.layers.use((state.layer, *state.image)):
        raise InfrastructureFailure("The episode's files are no longer in the store: the time to keep them is over")
    async with store.layers.folder() as folder:
        changes = folder / "upper"
        await store.layers.owners.keep(str(store.layers.path(state.layer)), changes)
        below = [store.layers.path(key) for key in state.image]
        await store.layers.owners.leave_out(changes, record.left_out, below)
        verdict = await grade_changes(service, prepared.task, record, prepared.variables, changes)
    return Regraded(state, verdict, record.key)
