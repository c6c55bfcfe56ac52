"""``kill -9`` during uploads: acknowledged uploads are stored, and the file is sound."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.gateway.conftest import call, start_several
from tests.server.rollouts.support import body, message, rollout, rows, stored
from tests.support.http_client import Client
from tests.support.servers import StartServer
from tests.support.waiting import until


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


@pytest.mark.long
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


def of_sessions(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recorded rollouts by their session."""
    return {each["metadata"]["session"]: each for each in stored(folder)}


async def until_stored(folder: Path, messages: dict[str, int]) -> None:
    """Wait until so many messages of each session are stored."""
    await until(
        lambda: {sid: len(each["messages"]) for sid, each in of_sessions(folder).items()} == messages, within=30
    )


async def until_ended(folder: Path, count: int) -> None:
    """Wait until so many rollouts have an outcome."""
    await until(lambda: sum(each["outcome"] is not None for each in stored(folder)) == count, within=60)


@pytest.mark.long
@pytest.mark.usefixtures("database")
async def test_sessions_of_a_killed_server_are_lost(
    start_server: StartServer, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the last second is stored, and the next server marks them when it starts."""
    monkeypatch.setenv("ORS_RECORD", "1")
    first = start_server("echo")
    client = Client(url=first.url)
    finished, unfinished = await client.open(), await client.open()
    assert (await client.call(finished, "echo", {"text": "hello"})).text == "match"
    await client.call(unfinished, "echo", {"text": "no"})
    await client.close()
    await until_stored(data_dir, {finished: 2, unfinished: 2})
    first.process.kill()
    first.process.wait()
    assert {each["outcome"] for each in stored(data_dir)} == {None}
    again = start_server("echo")
    await until_ended(data_dir, 2)
    found = of_sessions(data_dir)
    assert (found[finished]["outcome"], found[finished]["max_reward"]) == ("finished", 1.0)
    assert (found[unfinished]["outcome"], found[unfinished]["max_reward"]) == ("lost", None)
    assert "ended without ending its sessions" in found[unfinished]["outcome_reason"]
    again.stop()
    assert list(data_dir.joinpath("recorders").iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("stopped", [False, True])
async def test_sessions_of_a_killed_worker_are_lost(tmp_path: Path, *, stopped: bool) -> None:
    """Its successor marks them; where the server is stopped before there is one, the worker that is left."""
    data = tmp_path / "data"
    with start_several(tmp_path, "echo", ORS_RECORD="1") as several, several.client() as client:
        sids = [several.open(client) for _ in range(8)]
        for sid in sids:
            call(client, sid, "echo", text="no")
        await until_stored(data, dict.fromkeys(sids, 2))
        # Workers report each second.
        await until(lambda: sum(row["sessions"] for row in several.workers()) == 8)
        first = several.workers()[0]
        held = first["sessions"]
        assert 0 < held < 8
        os.kill(first["pid"], signal.SIGKILL)
        if not stopped:
            await until_ended(data, held)
    outcomes = Counter(each["outcome"] for each in stored(data))
    assert outcomes == {"lost": held, "stopped": 8 - held}
