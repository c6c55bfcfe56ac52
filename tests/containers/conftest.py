"""One runtime for each test module; skipped with the remedy on machines that cannot isolate."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from ors_containers import BubblewrapRuntime, RuntimeUnavailable, Sandbox
from ors_containers.leases import sweep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run by `make test-all` until the sandboxes are whole: they are reachable from no command yet."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def state() -> Iterator[Path]:
    """A state directory like the real one: everybody may pass through, pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="ors-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
        # After a test that failed in the middle: its server is gone, and the directory is about to be.
        asyncio.run(sweep(path))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(state: Path) -> AsyncIterator[BubblewrapRuntime]:
    runtime = BubblewrapRuntime(state)
    try:
        await runtime.start()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    yield runtime
    await runtime.close()
    assert not list((state / "owners").iterdir()), "a lease was left behind"


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(runtime: BubblewrapRuntime) -> AsyncIterator[Sandbox]:
    async with runtime.sandbox(runtime.host_image()) as sandbox:
        yield sandbox
