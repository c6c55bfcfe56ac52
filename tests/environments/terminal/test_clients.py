"""Episodes of both task sources, played by the real `openreward` client against a real server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.compat.real_clients.clients import Environment, connected

from .conftest import RUNTIMES
from .folders import SOLUTION, run_tasks, write_folder
from .parts import generated
from .server import serving

pytestmark = pytest.mark.usefixtures("isolated")

FAMILIES = ("csv_join", "permissions", "services")


@pytest.fixture(scope="module", params=RUNTIMES)
def generated_url(
    request: pytest.FixtureRequest, images: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    if request.param == "apptainer" and shutil.which("apptainer") is None:
        pytest.skip("apptainer is not installed")
    variables = {"ORS_TERMINAL_FAMILIES": ",".join(FAMILIES), "ORS_TERMINAL_TRAIN_TASKS": "60"}
    variables["ORS_SANDBOX_RUNTIME"] = request.param
    with serving(tmp_path_factory.mktemp("generated"), images, "terminal", "echo", **variables) as url:
        yield url


async def play(environment: Environment, name: str, *commands: str) -> list[float | None]:
    """Play a task by its name. Return the rewards of all calls, ``done`` last."""
    task = next(task for task in await environment.tasks("train") if task.task_spec["id"] == name)
    async with environment.session(task) as session:
        (block,) = await session.prompt()
        assert "Call `done`" in block.text
        assert sorted(tool.name for tool in await session.tools()) == ["bash", "done"]
        rewards = [(await session.call("bash", command=command)).reward for command in commands]
        last = await session.call("done")
        assert last.finished
        return [*rewards, last.reward]


async def test_generated_tasks(generated_url: str) -> None:
    async with connected("openreward-async", generated_url) as client:
        # The name that a trainer for the platform's environment uses.
        environment = await client.environment("kanishk/EndlessTerminals")
        assert await environment.count("train") == 60
        for family in FAMILIES:
            task = generated.generated_task(family, 3)
            assert task.solution is not None and task.near_miss is not None
            played = await asyncio.gather(
                play(environment, task.name, task.solution),
                play(environment, task.name, task.near_miss),
                play(environment, task.name),
            )
            assert played == [[None, 1.0], [None, 0.0], [0.0]], family


async def test_a_group_of_one_task(generated_url: str) -> None:
    """Eight sessions of one task at once, as in GRPO; half of them solve it."""
    task = generated.generated_task("csv_join", 7)
    assert task.solution is not None
    async with connected("openreward-async", generated_url) as client:
        environment = await client.environment("kanishk/EndlessTerminals")
        commands = [(task.solution,) if number % 2 else () for number in range(8)]
        played = await asyncio.gather(*(play(environment, task.name, *each) for each in commands))
    assert [rewards[-1] for rewards in played] == [0.0, 1.0] * 4


@pytest.mark.long
async def test_folders_of_tasks(images: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    write_folder(tasks, "task_000000_own")
    write_folder(tasks, "task_000001_broken", files={"test_final_state.py": None})
    done = run_tasks(images, "generate", *FAMILIES, "--count", "1", "--seed", "3", "--output", tasks / "more")
    assert done.returncode == 0, done.stderr
    with serving(tmp_path / "server", images, "terminal", "--tasks", tasks, "--tasks", tasks / "more") as url:
        async with connected("openreward-async", url) as client:
            environment = await client.environment("terminalenvironment")
            assert await environment.count("train") == 4
            assert await play(environment, "task_000000_own", SOLUTION) == [None, 1.0]
            assert await play(environment, "task_000000_own") == [0.0]
            for written in sorted((tasks / "more").iterdir()):
                assert await play(environment, written.name, (written / "solution.sh").read_text()) == [None, 1.0]
                assert await play(environment, written.name, (written / "near_miss.sh").read_text()) == [None, 0.0]
        said = (tmp_path / "server" / "log").read_text()
        assert f"{tasks}/task_000001_broken/test_final_state.py: the file is missing" in said
