"""Every family for real: the task is laid out in a sandbox, solved, not solved and nearly solved.

The tests of a task run here with the sandbox's own Python and without pytest; how the environment runs them, out of the
agent's reach, is tested with the environment.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from ors_containers import BubblewrapRuntime, Sandbox

if TYPE_CHECKING:
    from environments.terminal.generation import GeneratedTask

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: At once; more only wait for the processor.
PARALLEL = 3
MANY = 25

#: Runs every test of the modules it is given and prints, for each module, how many there are and what failed.
RUNNER = """
import json, sys
report = []
for path in sys.argv[1:]:
    module = {"__name__": "task", "__file__": path}
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), module)
    tests = {name: test for name, test in module.items() if name.startswith("test_")}
    failed = []
    for name, test in tests.items():
        try:
            test()
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}"[:500])
    report.append([len(tests), failed])
print(json.dumps(report))
"""


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
    async with _laid_out(runtime, task) as sandbox:
        (count, before), (final_count, untouched) = await _results(sandbox, "initial", "final")
        if before or not count:
            faults.append(f"{task.name}: the initial state is not as it should be: {before}")
        if not untouched or not final_count:
            faults.append(f"{task.name}: doing nothing passes")
        result = await sandbox.run(f"cd /home/user\n{task.oracle}", timeout=60)
        if result.exit_status or result.output:
            faults.append(f"{task.name}: the oracle ended with {result.exit_status}: {result.text[:500]}")
        ((_, failed),) = await _results(sandbox, "final")
        if failed:
            faults.append(f"{task.name}: the oracle does not pass: {failed}")
    return faults


async def _nearly_solved(runtime: BubblewrapRuntime, task: GeneratedTask) -> list[str]:
    async with _laid_out(runtime, task) as sandbox:
        await sandbox.run(f"cd /home/user\n{task.near_miss}", timeout=60)
        ((_, failed),) = await _results(sandbox, "final")
        return [] if failed else [f"{task.name}: the near miss passes"]


@asynccontextmanager
async def _laid_out(runtime: BubblewrapRuntime, task: GeneratedTask) -> AsyncGenerator[Sandbox]:
    """A sandbox in which the task begins."""
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        await sandbox.write_file("/tmp/task.tar", _archive(task))
        commands = ["cd / && tar -xpf /tmp/task.tar && cd /home/user"]
        if task.setup:
            # In a shell of its own: what it sets must not reach the agent's.
            commands.append(f"bash <<'SETUP OF THE TASK'\n{task.setup}\nSETUP OF THE TASK")
        await _must(sandbox, "\n".join(commands))
        if task.start:
            await _must(sandbox, task.start)
        yield sandbox


def _archive(task: GeneratedTask) -> bytes:
    """The task's files and the modules of its tests."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, file in task.files.items():
            member = tarfile.TarInfo(path.removeprefix("/"))
            member.mode, member.size = file.mode, len(file.content)
            if file.directory:
                member.type = tarfile.DIRTYPE
            elif file.link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, file.link
            archive.addfile(member, io.BytesIO(file.content))
        for name, text in (("run", RUNNER), ("initial/tests", task.initial_tests), ("final/tests", task.final_tests)):
            member = tarfile.TarInfo(f"tmp/{name}.py")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def _must(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.run(command, timeout=60)
    assert result.exit_status == 0, result.text


async def _results(sandbox: Sandbox, *modules: str) -> list[tuple[int, list[str]]]:
    """For each module the number of its tests and those that failed."""
    paths = " ".join(f"/tmp/{module}/tests.py" for module in modules)
    result = await sandbox.run(f"python3 -I /tmp/run.py {paths}", timeout=120)
    assert result.exit_status == 0, result.text
    return [(int(count), list(failed)) for count, failed in json.loads(result.text.splitlines()[-1])]
