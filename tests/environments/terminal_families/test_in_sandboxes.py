"""Every family in real sandboxes: tasks are left undone, solved, nearly solved, mutated, and played in each way."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from types import ModuleType
from typing import TypeVar

import pytest
from ors_containers import BubblewrapRuntime

from tests.environments.terminal_families.mutators import MUTATORS
from tests.environments.terminal_families.sandboxes import Play, Played, play
from tests.environments.terminal_families.ways import EVERYWHERE, Drafted, Solution, drafted

pytestmark = pytest.mark.asyncio(loop_scope="module")

Item = TypeVar("Item")

#: Sandboxes at once; more would only wait for the processor.
PARALLEL = 3
MANY = 25
#: Of the mutants of a task, the most that its prompt may allow.
ALLOWED = 0.1


async def test_the_first_shape(generation: ModuleType, family: str, runtime: BubblewrapRuntime) -> None:
    """The first shape plays a share of its ways and mutators; the long tests play all of each shape."""
    await _check(generation, family, runtime, range(1), 2 * len(generation.FAMILIES[family].shapes))


@pytest.mark.long
async def test_every_way(generation: ModuleType, family: str, runtime: BubblewrapRuntime) -> None:
    """All ways and mutators of every shape."""
    await _check(generation, family, runtime, range(len(generation.FAMILIES[family].shapes)), 1)


@pytest.mark.long
async def test_many_seeds(generation: ModuleType, family: str, runtime: BubblewrapRuntime) -> None:
    """Many tasks play a share of their ways and mutators, another share with each seed."""
    await _check(generation, family, runtime, range(100, 100 + MANY), 4)


async def _check(generation: ModuleType, family: str, runtime: BubblewrapRuntime, seeds: range, share: int) -> None:
    missing = [program for program in generation.FAMILIES[family].programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{family} needs {', '.join(missing)}, which this machine lacks")
    turn = asyncio.Semaphore(PARALLEL)

    async def in_turn(one: Drafted) -> list[str]:
        async with turn:
            return await _faults(runtime, one, share)

    tasks = [drafted(family, seed) for seed in seeds]
    faults = [fault for found in await asyncio.gather(*map(in_turn, tasks)) for fault in found]
    assert not faults, "\n".join(faults)


async def _faults(runtime: BubblewrapRuntime, one: Drafted, share: int) -> list[str]:
    """Return the faults of a task, of every ``share``-th way and of every ``share``-th mutator."""
    task = one.task
    forbidden = _share([(way, demand) for demand, ways in one.forbidden.items() for way in ways], task.seed, share)
    closed = Solution("what is made closed to others", f"umask 077\n{task.oracle}", False)
    honest = _share([*one.honest, *EVERYWHERE, closed], task.seed, share)
    mutators = _share([*MUTATORS], task.seed, share)
    plays = [Play(tests="initial"), Play(), Play(task.oracle), Play(task.near_miss)]
    plays += [Play(way.script, solved=way.solved) for way in (*(way for way, _ in forbidden), *honest)]
    plays += [Play(mutator=name, solved=True) for name in mutators]
    before, untouched, oracle, near_miss, *played = await play(runtime, task, plays)
    faults: list[str] = []
    if before.failed or not before.count:
        faults.append(f"the initial state is not as it should be: {before}")
    if not untouched.failed or not untouched.count:
        faults.append(f"doing nothing passes: {untouched}")
    if oracle.failed or oracle.status or oracle.output:
        faults.append(f"the oracle does not pass in silence: {oracle}")
    if not near_miss.failed:
        faults.append(f"the near miss passes: {near_miss}")
    for (way, demand), found in zip(forbidden, played, strict=False):
        if not found.failed:
            faults.append(f"{way.what} passes, in spite of {demand!r}: {found}")
    for way, found in zip(honest, played[len(forbidden) :], strict=False):
        if found.failed or found.status:
            faults.append(f"{way.what}, which is honest, does not pass: {found}")
    faults += _mutants(one, mutators, played[len(forbidden) + len(honest) :], whole=share == 1)
    return [f"{task.name}: {fault}" for fault in faults]


def _share(items: Sequence[Item], seed: int, share: int) -> Sequence[Item]:
    return items[seed % share :: share]


def _mutants(one: Drafted, names: Sequence[str], played: Sequence[Played], *, whole: bool) -> list[str]:
    """Return the faults of mutants: those that pass although no sentence allows them, and too many that pass."""
    faults: list[str] = []
    allowed = {allowance.kind for allowance in one.task.allowances}
    found = [(name, result) for name, result in zip(names, played, strict=True) if result.applied]
    passing = [name for name, result in found if not result.failed]
    faults += [f"{name}: it was not tried: {result}" for name, result in found if result.status]
    faults += [f"{name} passes, and no sentence allows it" for name in passing if MUTATORS[name][0] not in allowed]
    if whole and len(passing) > ALLOWED * len(found):
        faults.append(f"{len(passing)} of {len(found)} mutants pass: {passing}")
    return faults
