"""Fixtures: the generator as the server loads it, and one runtime for each test module."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
import pytest_asyncio
from ors_containers import ApptainerRuntime, BubblewrapRuntime, RuntimeUnavailable
from ors_containers.linux.leases import sweep
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

from tests.environments.terminal_families.loading import load_generation

#: Families whose ways take seconds each: the long tests play them. Of the others the gate plays a share.
_SLOW = frozenset(("makefiles", "services", "processes", "scripting"))
_SHARE = 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses ``family`` once for each family."""
    if "family" in metafunc.fixturenames:
        families = cast("dict[str, object]", load_generation().FAMILIES)
        slow = set[str]()
        if metafunc.definition.name == "test_the_first_shape":
            slow = {family for number, family in enumerate(families) if number % _SHARE} | _SLOW
        marked = [pytest.param(family, marks=pytest.mark.long) if family in slow else family for family in families]
        metafunc.parametrize("family", marked)


@pytest.fixture(scope="session")
def generation() -> ModuleType:
    return load_generation()


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """Create a state directory with the usual mode: every user may pass through it, unlike pytest's own directories."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        # For a test that failed midway: its server is gone, and the directory is about to be removed.
        asyncio.run(sweep(path))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(request: pytest.FixtureRequest, state: Path) -> AsyncIterator[NamespaceRuntime]:
    runtime = ApptainerRuntime(state) if getattr(request, "param", "") == "apptainer" else BubblewrapRuntime(state)
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    yield runtime
    await runtime.close()
