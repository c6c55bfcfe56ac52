"""``kill -9`` during uploads: acknowledged uploads are stored, and the file is sound."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.server.rollouts.support import body, message, rollout, rows, stored
from tests.support.servers import StartServer


async def upload_until_it_ends(url: str, pid: int, number: signal.Signals) -> tuple[list[str], int]:
    """Upload on many connections and kill the server meanwhile. Return the acknowledged uploads and all begun."""
    answered: list[str] = []
    begun = 0
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:

        async def upload(name: str) -> None:
            nonlocal begun
            while True:
                rollout_id = f"{name}-{begun}"
                begun += 1
                events = [rollout(rollout_id), *(message(rollout_id, index, "x" * 300) for index in range(5))]
                response = await client.post("/v1/rollouts", content=body(*events))
                if response.status_code == 503:
                    assert "being stopped" in response.json()["message"]
                    return
                assert response.status_code == 200, response.text
                answered.append(rollout_id)
                if len(answered) == 60:
                    os.kill(pid, number)

        async def until_lost(name: str) -> None:
            with suppress(httpx.TransportError):
                await upload(name)

        await asyncio.gather(*map(until_lost, "abcdefgh"))
    return answered, begun


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_answered_upload_outlives_the_server(
    start_server: StartServer, data_dir: Path, number: signal.Signals
) -> None:
    served = start_server("echo")
    answered, begun = asyncio.run(upload_until_it_ends(served.url, served.process.pid, number))
    served.process.wait(20)
    assert len(answered) >= 60

    found = {each["id"]: each for each in stored(data_dir)}
    assert set(answered) <= set(found)
    assert len(found) <= begun
    # Whole or not at all: an upload is one transaction.
    assert {each["num_messages"] for each in found.values()} == {5}
    assert rows(data_dir, "PRAGMA integrity_check") == [("ok",)]
    # The next server continues with the file.
    again = start_server("echo")
    uploaded = httpx.post(f"{again.url}/v1/rollouts", content=body(rollout("after")), trust_env=False)
    assert uploaded.json() == {"stored": 1}
    assert httpx.get(f"{again.url}/v1/runs", trust_env=False).json()["runs"][0]["num_rollouts"] == len(found) + 1
