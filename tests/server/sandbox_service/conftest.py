"""Fixtures: the loop's service, closed after each test, on a machine that can isolate."""

from collections.abc import AsyncIterator

import pytest

from ors_server.sandboxes import SandboxService, close_sandbox_service, sandbox_service
from tests.server.protocol.conftest import serve  # pyright: ignore[reportUnusedImport] # noqa: F401 - a fixture


@pytest.fixture
async def service() -> AsyncIterator[SandboxService]:
    """Return the real service of this test's loop; skip with the remedy on machines that cannot isolate."""
    from ors_containers import RuntimeUnavailable

    try:
        found = await sandbox_service()
    except RuntimeUnavailable as error:
        pytest.skip(str(error))
    yield found
    await close_sandbox_service()
