"""A store of an earlier version is migrated when it is first opened, and nothing in it is lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from ors_server.rollouts.errors import StoreUnavailable
from ors_server.rollouts.location import FILE_NAME, Location
from ors_server.rollouts.queries.listed import RolloutFilter, list_rollouts
from ors_server.rollouts.queries.runs import find_run
from ors_server.rollouts.queries.tasks import list_tasks
from ors_server.rollouts.store import RolloutStore
from ors_server.rollouts.storing import migrating
from ors_server.rollouts.storing.additions import run_id
from ors_server.rollouts.storing.database import open_to_write
from ors_server.rollouts.storing.writer import RolloutWriter
from ors_server.rollouts.tables import METADATA, VERSION
from tests.server.rollouts.support import at, body, message, record, rollout, rows, stored

#: The tables as 0.2.0 made them, and rows as it stored them.
SCHEMA = Path(__file__).with_name("version_1.sql")
RUN = run_id("my run")
ROLLOUTS = (
    (
        "r1",
        RUN,
        "first",
        "owner/env",
        None,
        "train",
        3,
        1000,
        1001,
        1003,
        3,
        1.0,
        1,
        '{"id": 7}',
        '{"a": "\u2028"}',
    ),
    ("r2", RUN, None, "owner/env", "hard", None, None, 2000, None, None, 0, None, 0, None, None),
    ("orphan", None, None, None, None, None, None, None, 3000, 3000, 1, -0.5, 0, None, None),
)
MESSAGES = (
    ("m1", "r1", 0, 1001, 0.25, 0, "user_message", None, None, None, None, None, "{}", None, "words \x00 \U0001f600"),
    ("m2", "r1", 1, 1002, None, 0, "tool_call", "bash", "c1", "s", "ref", "env", '{"n": 1}', '{"hue": "x"}', "{}"),
    ("m3", "r1", 2, 1003, 1.0, 1, "tool_result", None, "c1", None, None, None, None, None, None),
    ("m4", "orphan", 0, 3000, -0.5, 0, "assistant_message", None, None, None, None, None, None, None, "x"),
)
UPDATES = (
    ("r1", 1000, '{"task_index":5,"harness":"x"}'),
    ("r1", 1005, '{"task_index":7}'),
    ("r2", 2000, '{"outcome":"lost","outcome_reason":"no room"}'),
    ("never", 1, '{"big":"%s"}' % ("y" * 5000)),
)


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """Make a file of version 1 in a data directory."""
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA.read_text("utf-8"))
        connection.execute("INSERT INTO runs VALUES (?, ?)", (RUN, "my run"))
        columns = "id, run_id, name, environment, variant, split, step, started_at, first_message_at, last_message_at"
        columns += ", num_messages, max_reward, finished, task_spec, metadata"
        connection.executemany(f"INSERT INTO rollouts ({columns}) VALUES ({', '.join('?' * 15)})", ROLLOUTS)
        connection.executemany(f"INSERT INTO messages VALUES ({', '.join('?' * 15)})", MESSAGES)
        connection.executemany("INSERT INTO updates VALUES (?, ?, ?)", UPDATES)
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    return tmp_path


def content(folder: Path) -> dict[str, list[Any]]:
    """Return everything that version 1 knows of a file."""
    found = {name: rows(folder, f"SELECT * FROM {name} ORDER BY 1, 2") for name in ("runs", "messages")}
    columns = "id, run_id, name, environment, variant, split, step, started_at, first_message_at, last_message_at"
    columns += ", num_messages, max_reward, finished, created_at, task_spec, metadata, run_info, environment_id, other"
    found["rollouts"] = rows(folder, f"SELECT {columns} FROM rollouts ORDER BY id")
    found["updates"] = rows(folder, "SELECT rollout_id, sent_at, rollout_info FROM updates ORDER BY 1, 2")
    return cast("dict[str, list[Any]]", found)


def test_reading_migrates_and_loses_nothing(version_1: Path) -> None:
    before = content(version_1)
    found = {each["id"]: each for each in stored(version_1)}
    assert content(version_1) == before
    assert rows(version_1, "PRAGMA user_version") == [(VERSION,)]
    assert rows(version_1, "SELECT version_num FROM alembic_version") == [(migrating.revision(VERSION),)]
    assert rows(version_1, "PRAGMA integrity_check") == [("ok",)]
    assert found["r1"]["total_reward"] == 1.25
    assert found["r1"]["rollout_info"] == {"task_index": 7, "harness": "x"}
    assert [each["content"] for each in found["r1"]["messages"]] == ["words \x00 \U0001f600", "{}", None]
    assert (found["r2"]["outcome"], found["r2"]["outcome_reason"]) == ("lost", "no room")
    with RolloutStore(Location(version_1)).reading() as connection:
        assert connection is not None
        listed = {each.id: each for each in list_rollouts(connection, RolloutFilter()).rows}
        (task,) = list_tasks(connection, find_run(connection, "my run")).rows
    assert (listed["r1"].total_reward, listed["r1"].task_label, listed["r1"].source) == (1.25, "7", "upload")
    assert (task.label, task.num_rollouts, task.mean_reward) == ("7", 1, 1.25)


async def test_writing_migrates_and_goes_on(version_1: Path) -> None:
    writer = RolloutWriter(Location(version_1))
    known = message("r1", 0, "other words", eventId="m1")
    assert await writer.store(body(known, message("r1", 3, reward=0.5), message("orphan", 1))) == 3
    await writer.close()
    found = {each["id"]: each for each in stored(version_1)}
    assert (found["r1"]["num_messages"], found["r1"]["total_reward"]) == (4, 1.75)
    assert found["r1"]["messages"][0]["content"] == "words \x00 \U0001f600"
    assert found["orphan"]["num_messages"] == 2


def test_a_migrated_file_has_the_tables_of_a_new_one(version_1: Path) -> None:
    with closing(open_to_write(Location(version_1))) as connection, connection.begin():
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        differences: list[Any] = compare_metadata(context, METADATA)
    changes: list[Any] = [
        change for each in differences for change in (cast("list[Any]", each) if isinstance(each, list) else [each])
    ]
    # A run's name was unique by itself; it still is, because the id is made from it. A key of SQLite that is a text may
    # be NULL unless the table says otherwise.
    assert [change for change in changes if change[0] not in ("remove_constraint", "modify_nullable")] == []


def open_one(folder: Path) -> None:
    open_to_write(Location(folder)).close()


def test_several_processes_migrate_at_once(version_1: Path) -> None:
    before = content(version_1)
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=open_one, args=(version_1,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert content(version_1) == before


async def test_a_migration_that_fails_leaves_the_file_as_it_was(
    version_1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(version_1)
    with monkeypatch.context() as patch:

        def full(*arguments: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(migrating, "_set_user_version", full)
        writer = RolloutWriter(Location(version_1))
        with pytest.raises(StoreUnavailable):
            await writer.store(body(message("r1", 9)))
        await writer.close()
    assert content(version_1) == before
    assert rows(version_1, "PRAGMA user_version") == [(1,)]
    assert len(await asyncio.to_thread(stored, version_1)) == 3


#: From version 4 back to version 3, in both databases.
_BACK = (
    "DROP INDEX rollouts_by_session",
    "DROP INDEX rollouts_statistics",
    "ALTER TABLE rollouts DROP COLUMN session",
    "CREATE INDEX rollouts_statistics ON rollouts (run_id, task_key, step, max_reward, num_messages, outcome, "
    "created_at, started_at, last_message_at, owner, total_reward)",
    "ALTER TABLE batches RENAME TO pieces",
    "DROP TABLE regrades",
    "DROP TABLE reports",
    "UPDATE alembic_version SET version_num = '0003'",
)


@pytest.mark.usefixtures("database")
async def test_a_store_of_version_3_shows_what_it_showed(data_dir: Path) -> None:
    """Its rollouts name no session; those that come afterwards do."""

    async def add(session: str) -> str:
        writer = RolloutWriter(at(data_dir))
        await writer.store(body(rollout(f"upload of {session}", metadata={"session": session})))
        await writer.close()
        return await record(data_dir, session)

    former = await add("former")
    with closing(open_to_write(at(data_dir))) as connection, connection.begin():
        for statement in _BACK:
            connection.execute(text(statement))
        if connection.dialect.name == "sqlite":
            connection.execute(text("PRAGMA user_version = 3"))
        else:
            connection.execute(text("ALTER INDEX batches_pkey RENAME TO pieces_pkey"))
    assert {each["id"] for each in stored(data_dir)} == {"upload of former", former}
    assert rows(data_dir, "SELECT version_num FROM alembic_version") == [(migrating.revision(VERSION),)]
    assert rows(data_dir, "SELECT session FROM rollouts") == [(None,), (None,)]
    await add("later")
    assert {each["id"] for each in stored(data_dir)} == {"upload of former", former, "upload of later"}
