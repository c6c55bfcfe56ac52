"""Requests for OpenReward's sandbox service, which this server does not have."""

# pyright: reportMissingTypeStubs=false

import asyncio

import pytest
from openreward import AsyncOpenReward, SandboxSettings

from tests.server.protocol.conftest import Serve
from tests.server.protocol.live import live_server
from tests.support.environments import Echo

REASON = "This server has no sandbox service, so environments that open sandboxes through the openreward client cannot"


@pytest.mark.parametrize("path", ["create_sandbox", "run", "stat_file", "read_file", "write_file", "set_network"])
async def test_each_request_is_refused_with_a_reason(serve: Serve, path: str) -> None:
    response = await serve(Echo).post(f"/{path}", {"cmd": "ls"}, "some session")
    assert response.status_code == 501
    assert response.json()["detail"].startswith(REASON)


async def test_openrewards_client_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It retries after every status above 499, and waits in between unless a header says otherwise."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(seconds)

    with live_server() as server:
        monkeypatch.setenv("OPENREWARD_API_URL", server.url)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", server.url)
        settings = SandboxSettings(environment="owner/Name", image="python:3.12", machine_size="1:1")
        sandbox = AsyncOpenReward(api_key="key").sandbox(settings)
        monkeypatch.setattr(asyncio, "sleep", noted)
        try:
            with pytest.raises(Exception, match=REASON):
                await sandbox.start()
        finally:
            await sandbox.stop()
    assert waits
    assert sum(waits) == 0
