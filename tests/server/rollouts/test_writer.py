"""The writer of rollouts under fast uploads, and with a file that cannot be used."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from ors_server.rollouts.errors import StoreBusy, StoreUnavailable
from ors_server.rollouts.location import FILE_NAME, Location, data_directory
from ors_server.rollouts.storing import database
from ors_server.rollouts.storing.writer import RolloutWriter
from tests.server.rollouts.support import at, body, message, rollout, rows, stored, update
from tests.support.paths import ROOT


async def test_nothing_is_started_or_made_before_the_first_upload(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    writer = RolloutWriter(at(tmp_path / "data"))
    assert not (tmp_path / "data").exists()
    assert set(threading.enumerate()) <= before
    assert await writer.store(body()) == 0
    assert not (tmp_path / "data").exists()
    assert await writer.store(body(rollout("r"))) == 1
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert "ors-rollouts" in {thread.name for thread in set(threading.enumerate()) - before}
    await writer.close()
    assert "ors-rollouts" not in {thread.name for thread in set(threading.enumerate()) - before}
    # Closed properly, it is one file.
    assert [path.name for path in (tmp_path / "data").iterdir()] == [FILE_NAME]


@pytest.mark.usefixtures("database")
async def test_many_uploads_at_once_are_all_stored(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    await asyncio.gather(*(writer.store(body(rollout(f"r{n}"), message(f"r{n}", 0))) for n in range(300)))
    await writer.close()
    assert len(stored(tmp_path)) == 300


async def test_uploads_beyond_the_queues_limit_are_asked_to_retry(tmp_path: Path) -> None:
    """Another process locks the file, so nothing is written; memory is bounded, and no waiting event is lost."""
    large = [body(rollout(f"r{n}"), message(f"r{n}", 0, "x" * 100_000)) for n in range(5)]
    writer = RolloutWriter(at(tmp_path), limit=300_000)
    await writer.store(body(rollout("first")))
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = [asyncio.create_task(writer.store(each)) for each in large[:2]]
    await asyncio.sleep(0.05)
    with pytest.raises(StoreBusy) as raised:
        await writer.store(large[2])
    assert raised.value.status == 503
    assert ("Retry-After", "1") in raised.value.headers
    other.execute("ROLLBACK")
    other.close()
    assert await asyncio.gather(*waiting) == [2, 2]
    assert await writer.store(large[2]) == 2
    await writer.close()
    assert {each["id"] for each in stored(tmp_path)} == {"first", "r0", "r1", "r2"}


async def test_an_upload_larger_than_the_limit_is_taken_when_nothing_waits(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path), limit=10)
    assert await writer.store(body(rollout("r"))) == 1
    await writer.close()


@pytest.mark.usefixtures("database")
async def test_a_disconnected_client_affects_no_other(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    leaving = asyncio.create_task(writer.store(body(rollout("left"))))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await writer.store(body(rollout("stayed"))) == 1
    await writer.close()
    assert {each["id"] for each in stored(tmp_path)} == {"left", "stayed"}


@pytest.mark.usefixtures("database")
async def test_a_server_that_stops_stores_what_waits_and_takes_no_more(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    waiting = [asyncio.create_task(writer.store(body(rollout(f"r{n}")))) for n in range(50)]
    await asyncio.sleep(0)
    await writer.close()
    assert await asyncio.gather(*waiting) == [1] * 50
    with pytest.raises(StoreUnavailable, match="being stopped"):
        await writer.store(body(rollout("late")))
    await writer.close()


# --- the file cannot be used ---------------------------------------------------------------------


async def test_a_data_directory_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each upload tries again, so the server need not be restarted; the log has the error once."""
    place = tmp_path / "data"
    place.write_text("a file")
    writer = RolloutWriter(at(place))
    with caplog.at_level(logging.INFO, "ors_server.rollouts"):
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"directory ORS_DATA_DIR cannot be used: File exists\. Make"):
                await writer.store(body(rollout("r", metadata={"key": "a-secret"})))
        place.unlink()
        assert await writer.store(body(rollout("r"))) == 1
    await writer.close()
    assert [record.message for record in caplog.records] == [
        "rollouts cannot be stored",
        "rollouts are stored again",
    ]
    assert "a-secret" not in caplog.text


async def test_a_user_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user id of its own: the server starts, and an upload names the missing setting."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)
    monkeypatch.chdir(tmp_path)
    writer = RolloutWriter(Location(data_directory(Path("~/rollouts"))))
    with pytest.raises(StoreUnavailable, match=r"no home directory to keep rollouts in\. Set ORS_DATA_DIR"):
        await writer.store(body(rollout("r")))
    await writer.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database " * 1000)
    writer = RolloutWriter(at(tmp_path))
    with pytest.raises(StoreUnavailable, match=r"damaged or no SQLite file\. Move it away"):
        await writer.store(body(rollout("r")))
    (tmp_path / FILE_NAME).rename(tmp_path / "damaged")
    assert await writer.store(body(rollout("r"))) == 1
    await writer.close()


async def test_a_file_that_is_damaged_while_it_is_open(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    await writer.store(body(rollout("r"), *(message("r", n, "x" * 5000) for n in range(50))))
    await writer.close()
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    writer = RolloutWriter(at(tmp_path))
    with pytest.raises(StoreUnavailable, match="damaged"):
        await writer.store(body(rollout("s"), message("r", 60)))
    await writer.close()


async def test_a_file_of_a_later_version(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    await writer.store(body(rollout("r")))
    await writer.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    writer = RolloutWriter(at(tmp_path))
    with pytest.raises(StoreUnavailable, match="version 99"):
        await writer.store(body(rollout("s")))
    await writer.close()


async def test_a_file_that_is_removed_while_it_is_open(tmp_path: Path) -> None:
    """Later uploads are in a file with a name."""
    writer = RolloutWriter(at(tmp_path / "data"))
    await writer.store(body(rollout("before")))
    shutil.rmtree(tmp_path / "data")
    assert await writer.store(body(rollout("after"))) == 1
    assert [each["id"] for each in stored(tmp_path / "data")] == ["after"]
    await writer.close()


async def test_another_process_holds_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE", 0.1)
    writer = RolloutWriter(at(tmp_path))
    await writer.store(body(rollout("r")))
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another process has held it") as raised:
        await writer.store(body(rollout("s")))
    assert ("Retry-After", "5") in raised.value.headers
    other.execute("ROLLBACK")
    other.close()
    assert await writer.store(body(rollout("s"))) == 1
    await writer.close()


@pytest.mark.usefixtures("database")
async def test_two_servers_share_a_data_directory(tmp_path: Path) -> None:
    """Two servers on two ports both store, nothing is lost, and an event that both received is stored once."""
    one, other = RolloutWriter(at(tmp_path)), RolloutWriter(at(tmp_path))
    same = message("shared", 0, eventId="same")
    uploads = [
        writer.store(body(rollout(f"{name}{n}", name), message("shared", n + 1), same))
        for n in range(40)
        for name, writer in (("one", one), ("other", other))
    ]
    assert await asyncio.gather(*uploads) == [3] * 80
    await asyncio.gather(one.close(), other.close())
    found = {each["id"]: each for each in stored(tmp_path)}
    assert len(found) == 81
    assert found["shared"]["num_messages"] == 81


def test_a_full_disk(tmp_path: Path) -> None:
    """A real disk of 2 MiB: an upload that does not fit is refused, and earlier uploads are intact."""
    place = tmp_path / "small"
    place.mkdir()
    script = textwrap.dedent(
        f"""
        import asyncio, pathlib, sys
        from ors_server.rollouts.errors import StoreUnavailable
        from ors_server.rollouts.storing.writer import RolloutWriter
        from tests.server.rollouts.support import at, body, message, rollout, stored

        async def main():
            folder = pathlib.Path({str(place)!r})
            writer = RolloutWriter(at(folder))
            answered = 0
            try:
                for number in range(100):
                    await writer.store(body(rollout(f"r{{number}}"), message(f"r{{number}}", 0, "x" * 60_000)))
                    answered += 1
            except StoreUnavailable as error:
                print(error.text)
            assert [each["num_messages"] for each in stored(folder)] == [1] * answered, answered
            assert answered > 3
            await writer.close()

        asyncio.run(main())
        """
    )
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=2M tmpfs {place}"
    if subprocess.run([*mounted, mount], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace to mount a small disk in")
    done = subprocess.run(
        [*mounted, f'{mount} && exec "$0" -c "$1"', sys.executable, script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "the disk is full. Free space there" in done.stdout


async def test_a_file_that_another_process_makes_just_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait for that lock by itself: the first uploads of two servers would be refused at once."""
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer = RolloutWriter(at(tmp_path))
    upload = asyncio.create_task(writer.store(body(rollout("r"))))
    await asyncio.sleep(0.2)
    assert not upload.done()
    monkeypatch.setattr("ors_server.rollouts.storing.database.PATIENCE", 0.2)
    with pytest.raises(StoreUnavailable, match="another process has held it"):
        await RolloutWriter(at(tmp_path)).store(body(rollout("s")))
    other.execute("COMMIT")
    other.close()
    assert await upload == 1
    await writer.close()
    assert [each["id"] for each in stored(tmp_path)] == ["r"]


@pytest.mark.usefixtures("database")
async def test_numbers_that_json_does_not_have_are_kept_as_texts(tmp_path: Path) -> None:
    writer = RolloutWriter(at(tmp_path))
    odd = {"a": float("nan"), "b": [float("inf"), -float("inf")], "c": 0.5}
    await writer.store(body(rollout("r", metadata=odd), update("r", loss=float("nan"))))
    await writer.close()
    (found,) = stored(tmp_path)
    assert found["metadata"] == {"a": "nan", "b": ["inf", "-inf"], "c": 0.5}
    assert found["rollout_info"] == {"loss": "nan"}


async def test_messages_long_before_their_rollout(tmp_path: Path, database: str) -> None:
    """They are stored at once, in a rollout that belongs to no run yet."""
    writer = RolloutWriter(at(tmp_path))
    await writer.store(body(message("r", 0, reward=0.5)))
    assert [(each["id"], each["run_name"], each["max_reward"]) for each in stored(tmp_path)] == [("r", None, 0.5)]
    await writer.store(body(rollout("r", "late")))
    await writer.close()
    assert [(each["id"], each["run_name"], each["max_reward"]) for each in stored(tmp_path)] == [("r", "late", 0.5)]
    if database == "sqlite":
        assert rows(tmp_path, "PRAGMA integrity_check") == [("ok",)]
