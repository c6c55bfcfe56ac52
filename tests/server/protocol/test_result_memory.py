"""`ORS_RESULT_MEMORY`: undelivered results above it go to disk at once, and a failing disk loses no result."""

import asyncio
import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ors_server import ToolOutput, tool
from tests.server.protocol.conftest import Serve
from tests.server.protocol.live import live_server, open_session
from tests.support.environments import Echo, Number, said
from tests.support.http_client import Client
from tests.support.waiting import PATIENCE, until


class Verbose(Echo):
    """A tool with a large output, once it is released."""

    proceed: asyncio.Event
    runs: list[int]

    @tool(concurrent=True)
    async def talk(self, params: Number) -> ToolOutput:
        self.runs.append(params.number)
        await self.proceed.wait()
        return said(f"{params.number} " * 10_000)


def verbose() -> tuple[type[Verbose], asyncio.Event]:
    proceed = asyncio.Event()
    return type("Verbose", (Verbose,), {"proceed": proceed, "runs": []}), proceed


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def files(disk: Path) -> list[Path]:
    """Return the files that were written."""
    return [path for path in disk.rglob("*") if path.is_file()]


def on_disk(disk: Path) -> int:
    """Return the size of those files in bytes."""
    return sum(path.stat().st_size for path in files(disk))


async def lose(client: Client, sid: str, *numbers: int) -> list[str]:
    """Start calls and disconnect while they run. Return their ids."""
    task_ids: list[str] = []
    for number in numbers:
        async with client.stream("/call", {"name": "talk", "input": {"number": number}}, sid) as stream:
            task_ids.append((await stream.event()).data)
    return task_ids


async def fetched(client: Client, sid: str, task_id: str) -> str:
    """Return a result by its id."""
    return (await client.call(sid, "talk", {"number": 0}, task_id=task_id)).text


def in_memory(client: Client) -> int:
    """Return the size in bytes of the results that the server keeps in memory."""
    app: Any = client.app
    return app.sessions.results.bytes_in_memory


async def without_maintenance(client: Client) -> None:
    """End the runs of maintenance, which would do late what has to happen at once."""
    app: Any = client.app
    app.sessions._maintainer.cancel()
    await asyncio.wait((app.sessions._maintainer,))


async def test_results_over_the_bound_are_on_disk_at_once(serve: Serve, disk: Path) -> None:
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=50_000)
    sid = await client.open()
    task_ids = await lose(client, sid, *range(1, 9))
    await without_maintenance(client)
    proceed.set()
    await until(lambda: on_disk(disk) >= 6 * 20_000 and in_memory(client) <= 50_000)
    for number, task_id in enumerate(task_ids, 1):
        assert await fetched(client, sid, task_id) == f"{number} " * 10_000
    await client.post("/delete", sid=sid)
    assert files(disk) == []
    assert in_memory(client) == 0


async def test_results_within_the_bound_stay_in_memory(serve: Serve, disk: Path) -> None:
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=200_000)
    sid = await client.open()
    task_ids = await lose(client, sid, 1, 2, 3)
    proceed.set()
    await until(lambda: in_memory(client) > 60_000)
    await asyncio.sleep(0.1)
    assert files(disk) == []
    assert await fetched(client, sid, task_ids[0]) == "1 " * 10_000


async def test_the_session_may_end_while_its_results_are_written(serve: Serve, disk: Path) -> None:
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=1)
    sid = await client.open()
    await lose(client, sid, *range(20))
    proceed.set()
    await asyncio.sleep(0)
    await client.post("/delete", sid=sid)
    await asyncio.sleep(0.2)
    assert files(disk) == []
    assert in_memory(client) == 0


@pytest.mark.parametrize("trouble", ["nowhere", "a file"])
async def test_without_a_disk_results_stay_in_memory_and_the_log_says_so(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    unusable = tmp_path / "unusable"
    if trouble == "a file":
        unusable.write_text("in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(unusable))
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=1000, result_ttl=0.2)
    sid = await client.open()
    with caplog.at_level(logging.WARNING, logger="ors_server"):
        task_ids = await lose(client, sid, 1, 2)
        proceed.set()
        await until(lambda: any(record.levelno >= logging.WARNING for record in caplog.records), "no warning")
        await asyncio.sleep(0.4)  # maintenance has run
    assert len(caplog.records) < 20, "one warning after another"
    for number, task_id in enumerate(task_ids, 1):
        assert await fetched(client, sid, task_id) == f"{number} " * 10_000
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"


async def test_results_go_to_disk_once_it_can_be_written_again(serve: Serve, disk: Path) -> None:
    disk.rmdir()
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=1000, result_ttl=0.2)
    sid = await client.open()
    task_ids = await lose(client, sid, 1, 2)
    proceed.set()
    await until(lambda: in_memory(client) > 40_000)
    disk.mkdir()
    await until(lambda: in_memory(client) == 0)
    for number, task_id in enumerate(task_ids, 1):
        assert await fetched(client, sid, task_id) == f"{number} " * 10_000


async def test_beyond_twice_the_bound_calls_wait_for_a_disk_that_fails(serve: Serve, disk: Path) -> None:
    """Nothing is lost: calls with a result are answered, and new ones are asked to retry."""
    disk.rmdir()
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=20_000, result_ttl=0.2)
    sid = await client.open()
    task_ids = await lose(client, sid, 1, 2, 3)
    assert (await client.call(sid, "echo", {"text": "on"})).text == "on"
    proceed.set()
    await until(lambda: in_memory(client) > 60_000)
    await asyncio.sleep(0.3)  # maintenance has found the disk failing
    response = await client.call_response(sid, "echo", {"text": "on"})
    assert response.status_code == 503
    assert "cannot go to disk: No such file or directory" in response.json()["detail"]
    assert await fetched(client, sid, task_ids[0]) == "1 " * 10_000
    disk.mkdir()
    await until(lambda: on_disk(disk) >= 40_000)
    async with asyncio.timeout(PATIENCE):  # the files are there before the server has noticed
        while (await client.call_response(sid, "echo", {"text": "on"})).status_code == 503:  # noqa: ASYNC110 - as clients
            await asyncio.sleep(0.01)
    assert (await client.call(sid, "echo", {"text": "on again"})).text == "on again"
    assert environment.runs == [1, 2, 3]
    assert await fetched(client, sid, task_ids[1]) == "2 " * 10_000


async def test_a_disk_that_fails_later_costs_no_new_result(serve: Serve, disk: Path) -> None:
    environment, proceed = verbose()
    client = serve(environment, stream_after=0.001, result_memory=1000)
    sid = await client.open()
    await lose(client, sid, 1)
    proceed.set()
    await until(lambda: files(disk) != [])
    folder = files(disk)[0].parent
    files(disk)[0].unlink()
    folder.rmdir()
    folder.write_text("in the way")
    proceed.clear()
    task_ids = await lose(client, sid, 2)
    proceed.set()
    await asyncio.sleep(0.3)
    assert await fetched(client, sid, task_ids[0]) == "2 " * 10_000


async def test_nothing_is_left_on_disk_when_the_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with live_server(result_memory=1) as server:
        await open_session(server, "s")
        async with server.connect() as connection:
            step = {"name": "step", "input": {"text": "x", "size": 1000, "milliseconds": 1500}}
            await connection.request("POST", "/call", step, "s")
            await connection.until(b"event: task_id\r\n")
        await until(lambda: files(tmp_path) != [], "nothing was written")
        await asyncio.wait_for(asyncio.to_thread(server.stop), PATIENCE)
    assert list(tmp_path.iterdir()) == []
