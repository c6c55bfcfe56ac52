"""Sessions live until their user closes or drops them: busy loops, cancellations, forks and exits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from ors_clients.client.async_client import AsyncClient
from ors_clients.client.sessions import AsyncSession
from ors_clients.client.sync_client import Client
from ors_clients.errors import ConfigurationError, DeadlineExceeded, SessionLost

from tests.clients.workshop import JOURNAL, Site
from tests.support.servers import launched

TTL = 1.5


@contextlib.contextmanager
def serving(folder: Path, **settings: str) -> Generator[Site]:
    journal = folder / "journal"
    journal.touch()
    variables = {JOURNAL: str(journal), **settings}
    with launched("clients.workshop", folder / "own", "own", variables=variables) as running:
        yield Site("own", running, journal)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """Our server."""
    with serving(tmp_path_factory.mktemp("workshop")) as running:
        yield running


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """Our server, with sessions that live for a moment only."""
    with serving(tmp_path_factory.mktemp("brief"), ORS_SESSION_TTL=str(TTL)) as running:
        yield running


@pytest.fixture
def frequent_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_clients.client.keepalive._EVERY", 0.3)
    monkeypatch.setattr("ors_clients.client.keepalive._TICK", 0.1)


@pytest.fixture
def no_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_clients.client.keepalive._EVERY", 1000.0)


def session(client: AsyncClient, subject: str) -> AsyncSession:
    return client.environment("workshop").session(task={"subject": subject})


# --- staying alive -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.usefixtures("frequent_pings")
async def test_a_busy_event_loop_loses_no_session(brief: Site) -> None:
    await asyncio.sleep(1.1)  # the thread's last pause may have had its usual length
    async with (
        AsyncClient(brief.url) as client,
        session(client, "busy") as kept,
        session(client, "busy too") as another,
    ):
        time.sleep(3 * TTL)  # noqa: ASYNC251 - a batch is trained
        assert (await kept.call("work", {"text": "x"})).metadata == {"run": 1}
        assert (await another.call("work", {"text": "x"})).metadata == {"run": 1}
    assert brief.noted("torn-down")["busy"] == 1


@pytest.mark.long
@pytest.mark.usefixtures("no_pings")
async def test_without_pings_it_would_have_been_lost(brief: Site) -> None:
    async with AsyncClient(brief.url) as client, session(client, "unpinged") as lost:
        time.sleep(3 * TTL)  # noqa: ASYNC251
        with pytest.raises(SessionLost, match="no request or ping"):
            await lost.call("work")
        with pytest.raises(SessionLost):
            await lost.prompt()


@pytest.mark.usefixtures("frequent_pings")
async def test_a_closed_session_is_pinged_no_more(brief: Site) -> None:
    async with AsyncClient(brief.url) as client:
        async with session(client, "closed") as closed:
            pass
        with pytest.raises(SessionLost, match="closed"):
            await closed.call("work")
        with pytest.raises(ConfigurationError):
            await closed.open()
        await closed.close()
    assert brief.noted("torn-down")["closed"] == 1


# --- ending --------------------------------------------------------------------------------------


async def test_a_cancelled_rollout_ends_its_session(site: Site) -> None:
    async def rollout() -> None:
        async with session(client, "cancelled") as running:
            await running.call("work", {"milliseconds": 60_000})

    async with AsyncClient(site.url) as client:
        task = asyncio.create_task(rollout())
        await site.until("worked", "cancelled/")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert site.noted("torn-down")["cancelled"] == 1


@pytest.mark.parametrize("turns", range(1, 12))
async def test_cancelled_at_any_moment(site: Site, turns: int) -> None:
    """Also during opening or closing: everything that exists on the server is ended."""
    subject = f"early-{turns}"

    async def rollout() -> None:
        async with session(client, subject):
            pass

    async with AsyncClient(site.url) as client:
        await client.environments()  # there is a connection
        task = asyncio.create_task(rollout())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait((task,))
        await asyncio.sleep(0.2)  # requests on their way arrive
        if site.noted("constructed")[subject]:
            await site.until("torn-down", subject)
        assert site.noted("torn-down")[subject] == site.noted("constructed")[subject] <= 1


async def test_cancelled_again_while_it_ends(site: Site) -> None:
    """Its own event loop cannot end it; the background thread does."""

    async def rollout() -> None:
        async with session(client, "cancelled twice") as running:
            await running.call("work", {"milliseconds": 60_000})

    async with AsyncClient(site.url) as client:
        task = asyncio.create_task(rollout())
        await site.until("worked", "cancelled twice/")
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await site.until("torn-down", "cancelled twice")


def test_an_event_loop_that_ends_first(site: Site) -> None:
    async def main() -> None:
        client = AsyncClient(site.url)
        asyncio.create_task(forgotten(client))  # noqa: RUF006 - forgotten on purpose
        await site.until("worked", "forgotten/")

    async def forgotten(client: AsyncClient) -> None:
        async with session(client, "forgotten") as running:
            await running.call("work", {"milliseconds": 60_000})

    def run_and_forget() -> None:
        asyncio.run(main())
        gc.collect()

    with pytest.warns(ResourceWarning):  # the client, whose connections stay open
        run_and_forget()
    asyncio.run(site.until("torn-down", "forgotten"))


async def test_a_dropped_session_is_ended(site: Site) -> None:
    async with AsyncClient(site.url) as client:
        dropped = await session(client, "dropped").open()
        del dropped
        gc.collect()
        await site.until("torn-down", "dropped")


async def test_a_late_call(site: Site) -> None:
    async with AsyncClient(site.url) as client, session(client, "late") as running:
        with pytest.raises(DeadlineExceeded, match=r"'work' gave no result within 0\.1 s"):
            await running.call("work", {"milliseconds": 60_000}, timeout=0.1)
        assert (await running.call("work", {"text": "x"}, timeout=60)).text == " x\n"


# --- processes -----------------------------------------------------------------------------------


def run(tmp_path: Path, program: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_process_that_exits_ends_its_sessions(site: Site, tmp_path: Path, host: str) -> None:
    subject = f"left-{host}"
    program = f"""
import sys
from ors_clients.client.sync_client import Client
client = Client("http://{host}:{site.running.port}")
environment = client.environment("workshop")
sessions = [environment.session(task={{"subject": "{subject}"}}).open() for _ in range(3)]
print(sessions[0].call("work", {{"text": "x"}}).text)
sessions.pop()  # dropped at the last moment
sys.exit()
"""
    assert await asyncio.to_thread(run, tmp_path, program) == " x\n\n"
    assert site.noted("torn-down")[subject] == 3


async def test_forked_workers(site: Site, tmp_path: Path) -> None:
    """They use the inherited client for sessions of their own, and do not end their parent's sessions."""
    program = f"""
import os, sys, gc
from ors_clients.client.sync_client import Client
client = Client("{site.url}")
environment = client.environment("workshop")
mine = environment.session(task={{"subject": "parent"}}).open()
mine.call("work", {{"text": "before"}})
children = []
for number in range(3):
    child = os.fork()
    if not child:
        with environment.session(task={{"subject": f"child-{{number}}"}}) as own:
            assert own.call("work", {{"text": "x"}}).metadata == {{"run": 1}}
        mine.close()
        del mine
        gc.collect()
        sys.exit()  # its exit handlers run
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
print(mine.call("work", {{"text": "before"}}).metadata)
mine.close()
"""
    assert await asyncio.to_thread(run, tmp_path, program) == "{'run': 2}\n"
    torn_down = site.noted("torn-down")
    assert torn_down["parent"] == 1
    assert [torn_down[f"child-{number}"] for number in range(3)] == [1, 1, 1]


# --- event loops and threads ---------------------------------------------------------------------


def test_one_client_in_several_event_loops(site: Site) -> None:
    client = AsyncClient(site.url)

    async def main(number: int) -> None:
        async with client, session(client, f"loop-{number}") as own:
            assert (await own.call("work", {"text": "x"})).text == " x\n"

    for number in range(2):
        asyncio.run(main(number))
    threads = [
        threading.Thread(target=lambda: asyncio.run(main(2))),
        threading.Thread(target=lambda: asyncio.run(main(3))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torn_down = site.noted("torn-down")
    assert [torn_down[f"loop-{number}"] for number in range(4)] == [1, 1, 1, 1]


@pytest.mark.long
def test_one_synchronous_client_in_several_threads(site: Site) -> None:
    texts: list[str] = []

    def play(number: int) -> None:
        with client.environment("workshop").session(task={"subject": f"thread-{number}"}) as own:
            texts.append(own.call("work", {"text": str(number), "milliseconds": 100}).text)

    with Client(site.url) as client:
        threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(texts) == [f" {number}\n" for number in range(8)]
    assert time.monotonic() - started < 20
