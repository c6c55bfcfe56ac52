"""Fixtures: one runtime for each test module; skipped with the remedy on machines that cannot isolate.

A module whose tests hold for several runtimes lists them in ``RUNTIMES``; the default is bubblewrap alone.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from ors_containers import ApptainerRuntime, BubblewrapRuntime, RuntimeUnavailable, Sandbox
from ors_containers.graders.portable_python import Toolset, python_toolset
from ors_containers.linux.leases import sweep
from ors_containers.runtimes.namespace_runtime import NamespaceRuntime

_RUNTIMES = {"bubblewrap": BubblewrapRuntime, "apptainer": ApptainerRuntime}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the module's tests once for each of its ``RUNTIMES``, except those that name their own."""
    names = getattr(cast("object", metafunc.module), "RUNTIMES", None)  # pyright: ignore[reportUnknownMemberType]
    named = any("runtime" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if names and "runtime" in metafunc.fixturenames and not named:
        metafunc.parametrize("runtime", names, indirect=True, scope="module")


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
    runtime = _RUNTIMES[getattr(request, "param", "bubblewrap")](state)
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    yield runtime
    await runtime.close()
    assert not list((state / "owners").iterdir()), "a lease was left behind"


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(runtime: NamespaceRuntime) -> AsyncIterator[Sandbox]:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> Toolset:
    """Return a Python from outside of the sandbox, made for the module."""
    try:
        return await python_toolset(tmp_path_factory.mktemp("toolset"))
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
