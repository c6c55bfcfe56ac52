"""States of solutions: made once, kept outside of sandboxes, made again when a task changes, never half made."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator

import pytest
from ors_containers import Sandbox

from ors_server import InfrastructureFailure

from .conftest import Service
from .parts import generated, grading, reference_states, settings, task
from .play import episode

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = settings.TerminalSettings()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    reference_states.forget()
    yield
    reference_states.forget()


def csv_join(seed: int, **changes: object) -> task.TerminalTask:
    return dataclasses.replace(generated.generated_task("csv_join", seed), **changes)  # type: ignore[arg-type]


async def test_a_state_is_made_once_for_all_that_wait_and_for_later_processes(service: Service) -> None:
    before = len(service.opened)
    tasks = await asyncio.gather(*(reference_states.completed(service, csv_join(900), SETTINGS) for _ in range(5)))
    assert len({made.final_tests for made in tasks}) == 1
    assert len(service.opened) == before + 1
    reference_states.forget()  # as a new process
    assert await reference_states.completed(service, csv_join(900), SETTINGS) == tasks[0]
    assert len(service.opened) == before + 1


async def test_it_is_made_again_for_another_solution_and_other_tests(service: Service) -> None:
    before = len(service.opened)
    first = csv_join(901)
    assert first.solution is not None
    for changed in (
        first,
        csv_join(901, solution=f"{first.solution}:\n"),
        csv_join(901, final_tests=first.final_tests + "\n"),
    ):
        await reference_states.completed(service, changed, SETTINGS)
    assert len(service.opened) == before + 3


async def test_a_solution_that_fails_leaves_no_state(service: Service) -> None:
    for solution in ("exit 3", "chmod 000 .."):
        broken = csv_join(902, solution=f"cd ~/*/ && echo tried && {solution}")
        with pytest.raises(InfrastructureFailure, match="cannot be recorded"):
            async with episode(service, broken):
                pass
    assert (await reference_states.completed(service, csv_join(902), SETTINGS)).final_tests.count("REFERENCE = {") == 1


async def test_only_the_server_reads_states(service: Service) -> None:
    await reference_states.completed(service, csv_join(903), SETTINGS)
    folder = service.store.root / "references"
    assert folder.stat().st_mode & 0o077 == 0
    for file in folder.iterdir():
        entries = json.loads(file.read_text())
        assert all(len(entry) == 5 for entry in entries.values())


@pytest.mark.parametrize(
    ("what", "script", "passed"),
    [
        ("the solution", "", True),
        ("another way", "sed -i 's/$/\\r/' *-*.csv 2> /dev/null; sed -i 's/\\r\\r$/\\r/' *-*.csv; true", True),
        ("another file", "touch more", False),
        ("a folder elsewhere", "cd .. && mv $root ~/.elsewhere && ln -s ~/.elsewhere $root", False),
        ("another owner of nothing", "chmod 700 .", False),
    ],
)
async def test_an_episode_is_judged_by_the_state(service: Service, what: str, script: str, passed: bool) -> None:
    played = csv_join(3)
    assert played.solution is not None and played.state is not None
    async with episode(service, played) as one:
        await one.bash(f"cat > ~/solve.sh <<'SOLUTION'\n{played.solution}\nSOLUTION\nbash ~/solve.sh")
        await one.bash(f"root={played.state.root}; cd $root && {script or ':'}")
        assert (await one.done()).reward == float(passed), what


async def test_the_seed_of_drawn_cases_is_new_and_decides(service: Service) -> None:
    drawn = "import random\nSEED = 0\n\n\ndef test_drawn():\n    assert random.Random(SEED).random() < 0.5, SEED\n"
    plain = csv_join(904, final_tests=drawn, state=None)
    verdicts: dict[int, bool] = {}
    async with episode(service, plain) as one:
        sandbox = one.instance._sandbox  # pyright: ignore[reportPrivateUsage]
        assert isinstance(sandbox, Sandbox)
        tools = await service.toolset()
        for _ in range(8):
            verdict = await grading.run_tests(sandbox, tools, drawn, live=False, timeout=30)
            verdicts[verdict.seed] = verdict.passed
            assert str(verdict.seed) in verdict.detail or verdict.passed
        seed, passed = next(iter(verdicts.items()))
        again = await grading.run_tests(sandbox, tools, drawn, live=False, timeout=30, seed=seed)
        assert (again.seed, again.passed) == (seed, passed)
    assert len(verdicts) == 8
