"""A PostgreSQL that goes away, refuses, or is of another version: nothing is lost and nothing is stored twice."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ors_server import Server, Settings
from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.location import Location
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import at, body, message, rollout, rows, stored
from tests.server.rollouts.test_recording import Played
from tests.support.http_client import Client
from tests.support.postgresql import Postgresql
from tests.support.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture
def away(postgresql: Postgresql, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgresql]:
    """Use a new database of a server that the test may stop."""
    monkeypatch.setenv("ORS_ROLLOUTS", postgresql.create())
    monkeypatch.setattr("ors_server.rollouts.storing.writer.RETRY", 0.2)
    yield postgresql
    postgresql.stop()
    postgresql.start()


def events(name: str) -> bytes:
    return body(rollout(name), *(message(name, index, eventId=f"{name}-{index}", reward=0.5) for index in range(3)))


async def test_uploads_while_it_is_away(away: Postgresql, tmp_path: Path) -> None:
    """They are answered, wait on the disk, and are stored when it is back; some were sent twice."""
    writer = RolloutWriter(at(tmp_path))
    await writer.store(events("before"))
    away.stop()
    names = [f"r{number}" for number in range(40)]
    assert await asyncio.gather(*(writer.store(events(name)) for name in (*names, *names[:7]))) == [4] * 47
    with pytest.raises(StoreUnavailable, match="it cannot be reached"), RolloutStore(at(tmp_path)).reading():
        pass
    away.start()
    assert await writer.store(events("after")) == 4
    await until_stored(tmp_path)
    await writer.close()
    found = {each["id"]: each for each in stored(tmp_path)}
    assert set(found) == {"before", "after", *names}
    assert {(each["num_messages"], each["total_reward"]) for each in found.values()} == {(3, 1.5)}


async def until_stored(folder: Path) -> None:
    """Wait until nothing waits on the disk."""

    def waiting() -> int:
        with closing(sqlite3.connect(folder / "rollouts-waiting.sqlite3")) as connection:
            return connection.execute("SELECT count(*) FROM waiting").fetchone()[0]

    await until(lambda: waiting() == 0)


async def test_a_process_that_ends_while_it_is_away(away: Postgresql, tmp_path: Path) -> None:
    """The next process with its data directory stores what it left, and so it does where it was stored already."""
    writer = RolloutWriter(at(tmp_path))
    await writer.store(events("before"))
    away.stop()
    await writer.store(events("left"))
    await writer.close()
    left = (tmp_path / "rollouts-waiting.sqlite3").read_bytes()
    for _ in range(2):
        away.start()
        following = RolloutWriter(at(tmp_path))
        following.resume()
        await until_stored(tmp_path)
        await following.close()
        assert [(each["id"], each["num_messages"]) for each in stored(tmp_path)] == [("before", 3), ("left", 3)]
        (tmp_path / "rollouts-waiting.sqlite3").write_bytes(left)
        away.stop()


async def test_sessions_are_recorded_while_it_is_away(
    away: Postgresql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ors_server.rollouts.recorder.INTERVAL", 0.02)
    server = Server([Played], settings=Settings(data_dir=tmp_path, record=True))
    app = server.app
    client = Client(app)
    assert app.recorder is not None
    sids = [await client.open() for _ in range(4)]
    for number in range(30):
        if number == 10:
            away.stop()
        if number == 20:
            away.start()
        for sid in sids:
            assert (await client.call(sid, "echo", {"text": str(number)})).text == str(number)
        await asyncio.sleep(0.02)
    for sid in sids:
        await client.call(sid, "win")
        await client.post("/delete", sid=sid)
    await client.close()
    await app.sessions.close()
    app.recorder.close()
    await until(lambda: app.rollouts.waiting == 0)
    await until_stored(tmp_path)
    await app.rollouts.close()
    found = stored(tmp_path)
    assert {each["metadata"]["session"] for each in found} == set(sids)
    for each in found:
        results = [said["content"] for said in each["messages"] if said["type"] == "tool_result"]
        assert results == [*map(str, range(30)), "won"]
        assert (each["outcome"], each["max_reward"], each["dropped"]) == ("finished", 1.0, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (partial(re.sub, r"/[^/]*$", "/none"), "it does not exist"),
        (partial(re.sub, r"127\.0\.0\.1:", "127.0.0.1:1"), "it cannot be reached"),
    ],
)
def test_errors_name_the_cause_and_no_password(postgresql: Postgresql, tmp_path: Path, change: Any, said: str) -> None:
    url = change(postgresql.create()).replace("ors@", "ors:pass-word@")
    with pytest.raises(StoreUnavailable, match=said) as raised, RolloutStore(Location(tmp_path, url)).reading():
        pass
    assert "pass-word" not in raised.value.text
    assert "127.0.0.1" not in raised.value.text


async def test_a_database_of_a_later_version(away: Postgresql, tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    await writer.store(events("r"))
    await writer.close()
    rows(tmp_path, "UPDATE alembic_version SET version_num = '0099' RETURNING version_num")
    with (
        pytest.raises(StoreUnavailable, match=r"is of version 99.*\(ORS_ROLLOUTS\)"),
        RolloutStore(at(tmp_path)).reading(),
    ):
        pass
    writer = RolloutWriter(at(tmp_path))
    with pytest.raises(StoreUnavailable, match="version 99"):
        await writer.store(events("s"))
    await writer.close()
