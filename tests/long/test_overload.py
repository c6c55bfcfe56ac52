"""Hundreds of episodes at once on a busy machine: overload is never a reward 0, and 0 stays 0.

All sessions are opened first; then every episode runs its solution, or a wrong one, at the same time, while processes
outside of every sandbox use all processors. Figures are printed: run with ``-s``. ``ORS_TEST_OVERLOAD`` is the number
of solved episodes, with a quarter as many wrong ones, and ``ORS_TEST_OVERLOAD_ROUNDS`` the number of rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from ors_clients import AsyncClient, AsyncSession, Task
from ors_clients.errors import InfrastructureFailure

from tests.environments.terminal.conftest import images, isolated, toolset
from tests.environments.terminal.parts import generated
from tests.environments.terminal.server import serving

__all__ = ["images", "isolated", "toolset"]  # fixtures

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("isolated")]

SOLVED = int(os.environ.get("ORS_TEST_OVERLOAD", "400"))
WRONG = SOLVED // 4
ROUNDS = int(os.environ.get("ORS_TEST_OVERLOAD_ROUNDS", "3"))
FAMILIES = ("csv_join", "permissions", "text_transform", "json_query")
#: Seconds for the set-up of all sessions of a round, and for its episodes.
_PATIENCE = 3000.0
#: The text of ``MachineOverloaded``.
_MEASURED = "for processors that others used"


@contextlib.contextmanager
def second_load() -> Generator[None]:
    """Keep every processor busy with a process that is in no sandbox; a session of its own gives it full weight."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(command, start_new_session=True) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


async def play(session: AsyncSession, command: str, start: asyncio.Event) -> tuple[str, float]:
    """Return the outcome of an episode, and the seconds of its calls."""
    await start.wait()
    started = time.monotonic()
    try:
        said = await session.call("bash", {"command": command})
        result = await session.call("done") if said.reward is None else said
    except InfrastructureFailure as error:
        outcome = f"typed with the cause: {error}" if _MEASURED in str(error) else f"typed: {error}"
    else:
        outcome = "1.0" if result.reward == 1.0 else f"{result.reward} {result.metadata}, {said.metadata}"
    return outcome, time.monotonic() - started


async def play_round(url: str, tasks: dict[str, Task]) -> tuple[list[str], list[str], list[float]]:
    """Return the outcomes of the solved and of the wrong episodes, and the seconds of all."""
    names = sorted(tasks)
    async with AsyncClient(url) as client, contextlib.AsyncExitStack() as open_sessions:
        environment = client.environment("terminalenvironment")
        start = asyncio.Event()
        playing: list[asyncio.Task[tuple[str, float]]] = []
        opened = asyncio.Semaphore(64)

        async def opening(number: int) -> tuple[AsyncSession, str]:
            task = generated.generated_task(*_family_and_seed(names[number % len(names)]))
            async with opened:
                session = await open_sessions.enter_async_context(environment.session(task=tasks[task.name]))
                await session.prompt()
            command = task.solution if number < SOLVED else task.near_miss
            assert command is not None
            return session, command

        for session, command in await asyncio.gather(*map(opening, range(SOLVED + WRONG))):
            playing.append(asyncio.create_task(play(session, command, start)))
        with second_load():
            start.set()
            outcomes = await asyncio.gather(*playing)
    seconds = [seconds for _, seconds in outcomes]
    return [outcome for outcome, _ in outcomes[:SOLVED]], [outcome for outcome, _ in outcomes[SOLVED:]], seconds


def _family_and_seed(name: str) -> tuple[str, int]:
    family, _, seed = name.rpartition("-")
    return family, int(seed)


async def test_overload_is_never_a_zero(images: Path, tmp_path: Path) -> None:
    variables = {
        "ORS_TERMINAL_FAMILIES": ",".join(FAMILIES),
        "ORS_TERMINAL_TRAIN_TASKS": "40",
        "ORS_SANDBOX_QUEUE": str(2 * (SOLVED + WRONG)),
        "ORS_SANDBOX_QUEUE_TIMEOUT": str(_PATIENCE),
        "ORS_SETUP_TIMEOUT": str(_PATIENCE),
        "ORS_LOG_LEVEL": "debug",  # the reason of each verdict, for a failure of this test
    }
    with serving(tmp_path, images, "terminal", **variables) as url:
        async with AsyncClient(url) as client:
            listed = await client.environment("terminalenvironment").tasks("train")
        tasks = {task.spec["id"]: task for task in listed}
        for number in range(ROUNDS):
            solved, wrong, seconds = await play_round(url, tasks)
            seconds.sort()
            median, worst = seconds[len(seconds) // 2], seconds[-1]
            print(f"\nround {number + 1}: the calls of an episode took {median:.0f} s, at worst {worst:.0f} s")
            for what, outcomes in (("solved", solved), ("wrong", wrong)):
                for outcome, count in Counter(outcomes).most_common():
                    print(f"  {what}: {count} × {outcome}")
            failed = [outcome for outcome in solved if outcome != "1.0"]
            assert all(outcome.startswith("typed with the cause") for outcome in failed), failed
            assert len(failed) <= SOLVED // 50
            assert all(outcome.startswith("0.0 ") for outcome in wrong), wrong
