"""Sandboxes for the terminal environment: one runtime a module, for each runtime that this machine has.

The service is the server's, except for its runtime and its store, which are the test's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from ors_containers import Image, Limits, Runtime, RuntimeUnavailable, Sandbox, UnknownRuntime, find_runtime
from ors_containers.container import Container, ContainerSettings
from ors_containers.graders.portable_python import Toolset, python_toolset
from ors_containers.images.storing import store_folder
from ors_containers.linux.leases import sweep

from ors_server.sandboxes import close_sandbox_service, sandboxes_unavailable

from .parts import grading

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))


class Service:
    """The interface ``preparation.Service``, without warm sandboxes and without a queue."""

    def __init__(self, runtime: Runtime, folder: Path, toolset: Toolset) -> None:
        self.runtime = runtime
        self._folder = folder
        self._toolset = toolset
        self._store: Any = None
        #: Every sandbox that was opened.
        self.opened: list[Sandbox] = []

    @property
    def store(self) -> Any:
        if self._store is None:
            from ors_containers.images import ImageStore

            self._store = ImageStore(self._folder)
        return self._store

    def image(self, tools: Toolset) -> Image:
        """Return this machine's image, with the graders' Python."""
        image = self.runtime.host_image()
        return dataclasses.replace(image, binds=(*image.binds, tools.bind))

    async def toolset(self) -> Toolset:
        return self._toolset

    async def open(self, image: Image, limits: Limits | None = None) -> Sandbox:
        sandbox = self.runtime.sandbox(image, limits)
        await sandbox.start()
        self.opened.append(sandbox)
        return sandbox

    async def open_container(self, image: Image, settings: ContainerSettings | None = None) -> Container:
        return await self.runtime.open_container(image, settings)


@pytest.fixture(scope="session")
def images() -> Iterator[Path]:
    """Create the test run's store of images where every user may pass through: pytest's own directories are private."""
    with tempfile.TemporaryDirectory(prefix="ors-images-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="session")
def toolset(images: Path) -> Toolset:
    """Build the graders' Python once, where the servers of these tests look for it, too."""
    try:
        return asyncio.run(python_toolset(images / "toolsets"))
    except RuntimeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def isolated(toolset: Toolset) -> None:
    """Skip where a server could not start sandboxes."""
    if reason := asyncio.run(sandboxes_unavailable()):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """Create the directory for a runtime's leases."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        asyncio.run(sweep(path))


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(runtime_name: str, state: Path) -> AsyncIterator[Runtime]:
    try:
        runtime = cast("Any", find_runtime(runtime_name))(state)
        await runtime.start()
    except (RuntimeUnavailable, UnknownRuntime) as error:
        pytest.skip(str(error))
    yield runtime
    await runtime.close()
    await close_sandbox_service()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(runtime: Runtime, toolset: Toolset, images: Path) -> Service:
    return Service(runtime, images, toolset)


@pytest.fixture
def with_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every module with pytest, also those of plain tests."""

    def none(text: str) -> None:
        return None

    monkeypatch.setattr(grading, "plain_tests", none)


@pytest.fixture
def docker_like(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the test where the runtime has no containers; let this process find the images of the service."""
    if service.runtime.name != "bubblewrap":
        pytest.skip("this runtime has no containers")
    monkeypatch.setenv("ORS_IMAGES", str(service.store.root))
    assert store_folder.default_root() == service.store.root
