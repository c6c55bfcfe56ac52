"""Every family for real: the task is laid out in a sandbox, solved, not solved and nearly solved."""

from __future__ import annotations

import asyncio
import shutil
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from ors_containers import BubblewrapRuntime

from tests.terminal_families.sandboxes import laid_out, results

if TYPE_CHECKING:
    from environments.terminal.generation import GeneratedTask

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: At once; more only wait for the processor.
PARALLEL = 3
MANY = 25


async def test_each_shape(generation: ModuleType, family: str, runtime: BubblewrapRuntime) -> None:
    """The first seed of every shape."""
    await _check(generation, family, runtime, range(len(generation.FAMILIES[family].shapes)))


@pytest.mark.long
async def test_many_seeds(generation: ModuleType, family: str, runtime: BubblewrapRuntime) -> None:
    await _check(generation, family, runtime, range(100, 100 + MANY))


async def _check(generation: ModuleType, family: str, runtime: BubblewrapRuntime, seeds: range) -> None:
    missing = [program for program in generation.FAMILIES[family].programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{family} needs {', '.join(missing)}, which this machine lacks")
    tasks: list[GeneratedTask] = [generation.generate(family, seed) for seed in seeds]
    turn = asyncio.Semaphore(PARALLEL)

    async def in_turn(task: GeneratedTask) -> list[str]:
        async with turn:
            return [*await _solved(runtime, task), *await _nearly_solved(runtime, task)]

    faults = [fault for found in await asyncio.gather(*map(in_turn, tasks)) for fault in found]
    assert not faults, "\n".join(faults)


async def _solved(runtime: BubblewrapRuntime, task: GeneratedTask) -> list[str]:
    faults: list[str] = []
    async with laid_out(runtime, task) as sandbox:
        (count, before), (final_count, untouched) = await results(sandbox, "initial", "final")
        if before or not count:
            faults.append(f"{task.name}: the initial state is not as it should be: {before}")
        if not untouched or not final_count:
            faults.append(f"{task.name}: doing nothing passes")
        result = await sandbox.run(f"cd /home/user\n{task.oracle}", timeout=60)
        if result.exit_status or result.output:
            faults.append(f"{task.name}: the oracle ended with {result.exit_status}: {result.text[:500]}")
        ((_, failed),) = await results(sandbox, "final")
        if failed:
            faults.append(f"{task.name}: the oracle does not pass: {failed}")
    return faults


async def _nearly_solved(runtime: BubblewrapRuntime, task: GeneratedTask) -> list[str]:
    async with laid_out(runtime, task) as sandbox:
        await sandbox.run(f"cd /home/user\n{task.near_miss}", timeout=60)
        ((_, failed),) = await results(sandbox, "final")
        return [] if failed else [f"{task.name}: the near miss passes"]
