"""Every family is played and graded as in an episode: image prepared once, tests out of the agent's reach."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio
from ors_containers import BubblewrapRuntime, RuntimeUnavailable
from ors_containers.graders.portable_python import python_toolset

from tests.environments.terminal.conftest import Service
from tests.environments.terminal.parts import generated, settings, verification

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(runtime: BubblewrapRuntime) -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory(prefix="ors-images-") as directory:
        folder = Path(directory)
        await asyncio.to_thread(folder.chmod, 0o755)
        try:
            toolset = await python_toolset(folder / "toolsets")
        except RuntimeUnavailable as error:
            pytest.skip(str(error))
        yield Service(runtime, folder, toolset)


async def test_tasks_are_sound(generation: ModuleType, family: str, service: Service) -> None:
    """All four checks of ``ors-server tasks verify`` hold for the first task of every shape."""
    missing = [program for program in generation.FAMILIES[family].programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{family} needs {', '.join(missing)}, which this machine lacks")
    tasks = [generated.generated_task(family, seed) for seed in range(len(generation.FAMILIES[family].shapes))]
    reports = verification.verify_tasks(service, tasks, settings.TerminalSettings(), jobs=3)
    faults = [f"{report.name}: {report.checks}" async for report in reports if not report.sound]
    assert not faults, "\n".join(faults)
