"""Sessions that are opened for episodes that begin later: their sandboxes start after those of all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ors_containers.image import Image
from ors_containers.limits import Limits
from ors_containers.scheduling.pool import SandboxPool

from ors_server.sandboxes import SandboxService, sandbox_service
from tests.server.protocol.conftest import Serve
from tests.support.environments import Echo
from tests.support.waiting import until


class Workshop(Echo):
    """Opens a sandbox in its set-up."""

    async def setup(self) -> None:
        sandboxes = await sandbox_service()
        sandbox = await sandboxes.open(sandboxes.runtime.host_image(), Limits(wall=60.0))
        await sandbox.stop()


async def test_their_sandboxes_give_way_until_their_episodes_begin(
    serve: Serve, service: SandboxService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    begun = asyncio.Event()
    acquire = SandboxPool.acquire

    async def watched(pool: SandboxPool, image: Image, limits: Limits | None, *, gives_way: Callable[[], bool]) -> Any:
        asked.append(gives_way())
        await begun.wait()
        asked.append(gives_way())
        return await acquire(pool, image, limits, gives_way=gives_way)

    monkeypatch.setattr(SandboxPool, "acquire", watched)
    client = serve(Workshop)
    await client.open(sid="ahead", X_Session_Ahead="true")
    await until(lambda: len(asked) == 1)
    assert asked == [True]
    # Neither reading its prompt nor keeping it alive begins its episode.
    assert (await client.post("/ping", None, "ahead")).status_code == 200
    reading = asyncio.create_task(client.get("/prompt", "ahead"))
    await client.open(sid="other")
    await until(lambda: len(asked) == 2)
    assert asked == [True, False]
    assert (await client.post("/ping", None, "ahead", X_Session_Ahead="false")).status_code == 200
    begun.set()
    assert (await reading).status_code == 200
    assert asked[2:] == [False, False]
    assert (await client.post("/ping", None, "gone", X_Session_Ahead="false")).status_code == 404
