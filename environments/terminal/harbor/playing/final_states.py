"""Final states of graded episodes: kept for a bounded time, so that they are graded again after a test was repaired.

A state is the layer of what an agent has written, held in the image store with the layers of its task's image
(``images.storing.holds``). The hold's notes say what it is the state of, and the verdict that it got.

Invariant: keeping a state changes no verdict. Where it fails, or there is no room, the state is left out, with a line
in the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ors_containers import SandboxError
from ors_containers.container import Container, FrozenFiles

from ors_server import OrsError

from .grading import HarborVerdict, grade_container
from .task import PreparedTask
from .verification import Containers

if TYPE_CHECKING:
    from ors_containers.images import Hold, ImageStore

__all__ = ["FinalState", "StateRules", "find_states", "grade_and_keep"]

logger = logging.getLogger("ors_server.terminal")

_KIND = "harbor final state"
_DAY = 86400.0
#: Seconds that the copy of a state may take: an agent may leave any number of files.
_PATIENCE = 60.0
#: Seconds after which the bytes of all states are counted again, and states whose time is over are freed.
_RECOUNT = 600.0
#: When they were counted, and the bytes, by the folder of a store.
_counted: dict[Path, tuple[float, int]] = {}


@dataclass(frozen=True)
class StateRules:
    """The operator's choice: days that a state is kept, 0 for none, and bytes of one state and of all."""

    days: float = 0.0
    most_of_one: int = 0
    most_of_all: int = 0


@dataclass(frozen=True)
class FinalState:
    """The files that an agent left, and the verdict of its episode."""

    task: str
    #: The task's folder, and the digest of its content by which the episode was graded.
    folder: str
    key: str
    #: The session's id; empty for an episode without a server.
    session: str
    #: None where the verifier gave no verdict.
    reward: float | None
    detail: str
    #: Seconds since 1970.
    graded_at: float
    #: Bytes of the files.
    size: int
    #: The layer of the files, and those of the image below it.
    layer: str
    image: tuple[str, ...]
    #: Its name in the store.
    name: str = ""

    @staticmethod
    def of(hold: Hold) -> FinalState | None:
        """Return the state that a hold keeps; None where it keeps something else."""
        notes = dict(hold.notes)
        try:
            if notes.pop("kind") != _KIND:
                return None
            return FinalState(**notes, layer=hold.layers[0], image=hold.layers[1:], name=hold.name)
        except (KeyError, TypeError, IndexError):
            return None


def find_states(store: ImageStore) -> list[FinalState]:
    """Return the states of a store, the oldest first, also those whose time is over and whose layer may be gone."""
    found = [state for hold in store.holds() if (state := FinalState.of(hold)) is not None]
    return sorted(found, key=lambda state: state.graded_at)


async def grade_and_keep(
    service: Containers, prepared: PreparedTask, container: Container, rules: StateRules, session: str
) -> HarborVerdict:
    """End a container, grade what it has written, and keep that as the rules say. Raises what grading raises."""
    task, record, variables = prepared.task, prepared.record, prepared.variables
    if not rules.days:
        return await grade_container(service, task, record, variables, container)
    keeper = _Keeper(service.store, prepared, rules, session)
    try:
        verdict = await grade_container(service, task, record, variables, container, keeper.copy)
    except (OrsError, SandboxError) as failure:
        keeper.hold(None, str(failure))
        raise
    else:
        keeper.hold(verdict.reward, verdict.detail)
        return verdict
    finally:
        keeper.release()


class _Keeper:
    """The way of one state into the store: copied before it is graded, held with its verdict afterwards."""

    def __init__(self, store: ImageStore, prepared: PreparedTask, rules: StateRules, session: str) -> None:
        self._store = store
        self._prepared = prepared
        self._rules = rules
        self._session = session
        #: The layer and its bytes; None where it is not kept.
        self._kept: tuple[str, int] | None = None

    async def copy(self, files: FrozenFiles) -> None:
        if files.size > self._rules.most_of_one:
            self._leave_out(f"it has {files.size:,} bytes, more than ORS_TERMINAL_FINAL_STATE_SIZE")
            return
        try:
            async with asyncio.timeout(_PATIENCE):
                if await _all_bytes(self._store) + files.size > self._rules.most_of_all:
                    self._leave_out("all states have as many bytes as ORS_TERMINAL_FINAL_STATES_SIZE allows")
                else:
                    self._kept = await self._store.keep(files, f"final state of {self._prepared.name}", times=True)
        except TimeoutError:
            self._leave_out(f"copying it took longer than {_PATIENCE:.0f} s")
        except (SandboxError, OSError) as error:
            self._leave_out(str(error))

    def hold(self, reward: float | None, detail: str) -> None:
        if self._kept is None:
            return
        key, size = self._kept
        task, record, now = self._prepared.task, self._prepared.record, time.time()
        notes = {"kind": _KIND, "task": task.name, "folder": str(task.folder), "key": record.key}
        notes |= {"session": self._session, "reward": reward, "detail": detail, "graded_at": now, "size": size}
        try:
            layers = (key, *self._store.record(record.image).layers)
            self._store.hold(layers, now + _DAY * self._rules.days, notes)
            at, used = _counted.get(self._store.root, (-math.inf, 0))
            _counted[self._store.root] = (at, used + size)
        except (SandboxError, OSError) as error:
            self._leave_out(str(error))

    def release(self) -> None:
        """End this process's use of the layer: else it would stay as long as the server runs."""
        if self._kept is not None:
            try:
                self._store.layers.release([self._kept[0]])
            except SandboxError as error:
                logger.warning("a layer stays in use", extra={"task": self._prepared.name, "cause": str(error)})

    def _leave_out(self, cause: str) -> None:
        logger.warning("a final state is not kept", extra={"task": self._prepared.name, "cause": cause})


async def _all_bytes(store: ImageStore) -> int:
    """Return the bytes of all states, as counted a while ago; free those whose time is over. Raises ``StoreFailed``."""
    at, used = _counted.get(store.root, (-math.inf, 0))
    if time.monotonic() - at > _RECOUNT:
        _counted[store.root] = (time.monotonic(), used)  # one counts, the others go on
        await store.free_expired()
        used = sum(state.size for state in await asyncio.to_thread(find_states, store))
        _counted[store.root] = (time.monotonic(), used)
    return used
