"""Every family is played and graded as in an episode: image prepared once, tests out of the agent's reach.

``ORS_TEST_TASKS`` is the number of tasks over all families; without it, each plays the first task of every shape.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio
from ors_containers import Runtime, RuntimeUnavailable
from ors_containers.graders.portable_python import python_toolset

from tests.environments.terminal.conftest import Service
from tests.environments.terminal.parts import generated, settings, verification

TASKS = int(os.environ.get("ORS_TEST_TASKS", "0"))

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(runtime: Runtime) -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory(prefix="ors-images-") as directory:
        folder = Path(directory)
        await asyncio.to_thread(folder.chmod, 0o755)
        try:
            toolset = await python_toolset(folder / "toolsets")
        except RuntimeUnavailable as error:
            pytest.skip(str(error))
        yield Service(runtime, folder, toolset)


@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"], indirect=True, scope="module")
async def test_tasks_are_sound(generation: ModuleType, family: str, service: Service) -> None:
    """All four checks of ``ors-server tasks verify`` hold."""
    families = generation.FAMILIES
    missing = [program for program in families[family].programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{family} needs {', '.join(missing)}, which this machine lacks")
    count = max(len(families[family].shapes), TASKS // len(families))
    tasks = (generated.generated_task(family, seed) for seed in range(count))
    reports = verification.verify_tasks(service, tasks, settings.TerminalSettings(), jobs=3)
    faults = [f"{report.name}: {report.checks}" async for report in reports if not report.sound]
    assert not faults, "\n".join(faults)
