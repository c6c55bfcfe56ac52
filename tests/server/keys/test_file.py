"""The file of keys: written with care, read with suspicion."""

import asyncio
import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from ors_server import Settings
from ors_server.keys import file as file_module
from ors_server.keys.errors import KeysError
from ors_server.keys.exposure import add_key
from ors_server.keys.file import changed, keys_file, read_keys
from ors_server.keys.keys import SECRET_VARIABLE, Keys


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings whose data directory does not exist yet."""
    monkeypatch.setattr("ors_server.keys.keys.LOOK_EVERY", 0.0)
    return Settings(data_dir=tmp_path / "data")


def test_the_file_has_no_secret_and_is_private(settings: Settings) -> None:
    secret = add_key(settings, "me")
    path = keys_file(settings)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert secret not in path.read_text()
    assert secret.startswith("ors_")
    assert len(secret) == len("ors_") + 43  # 32 bytes
    keys = Keys(path)
    found = keys.find(secret)
    assert found is not None
    assert found.name == "me"
    assert secret not in repr(found)
    assert keys.find(secret[:-1]) is None
    assert keys.find(secret.encode() + b"\xff") is None
    assert keys.find("\udcff") is None


def test_a_name_is_used_once(settings: Settings) -> None:
    add_key(settings, "me")
    with pytest.raises(KeysError, match="already"):
        add_key(settings, "me")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"version": 2, "keys": []}',
        b'{"version": 1}',
        b'{"version": 1, "keys": [{"name": "a", "sha256": "00"}]}',
        b'{"version": 1, "keys": [{"name": "a b", "sha256": "' + b"0" * 64 + b'"}]}',
        b'{"version": 1, "keys": [{"name": "a", "sha256": "%b", "limits": {"rate": NaN}}]}' % (b"0" * 64),
        b'{"version": 1, "keys": [{"name": "a", "sha256": "%b", "limits": {"other": 1}}]}' % (b"0" * 64),
        b'{"version": 1, "keys": [%b, %b]}' % ((b'{"name": "a", "sha256": "%b"}' % (b"0" * 64),) * 2),
        b"[" * 100_000,
        b" " * (16 * 2**20 + 1),
    ],
    ids=range(14),
)
def test_garbage_is_refused_at_the_start_and_survived_later(
    settings: Settings, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    secret = add_key(settings, "me")
    path = keys_file(settings)
    keys = Keys(path)
    path.write_bytes(content)
    for _ in range(3):
        assert keys.find(secret) is not None
    assert [record.message for record in caplog.records] == ["the keys stay as they were"]
    with pytest.raises(KeysError, match="not a file of keys"):
        Keys(path)
    with pytest.raises(KeysError, match="not a file of keys"):
        add_key(settings, "other")  # it is not overwritten
    assert path.read_bytes() == content


@pytest.mark.parametrize(("mode", "accepted"), [(0o600, True), (0o440, True), (0o644, False), (0o660, False)])
def test_a_file_that_is_open_to_others_is_refused(settings: Settings, mode: int, accepted: bool) -> None:
    add_key(settings, "me")
    path = keys_file(settings)
    path.chmod(mode)
    if accepted:
        assert len(Keys(path)) == 1
    else:
        with pytest.raises(KeysError, match="chmod 600"):
            Keys(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(settings: Settings) -> None:
    add_key(settings, "me")
    os.chown(keys_file(settings), 4321, -1)
    with pytest.raises(KeysError, match="another user"):
        Keys(keys_file(settings))


def test_a_folder_is_not_a_file_of_keys(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="cannot be read"):
        Keys(tmp_path)
    assert not Keys(tmp_path / "none" / "keys.json").wanted


def test_a_locked_file_is_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(settings, "me")
    path = keys_file(settings)
    monkeypatch.setattr(file_module, "_PATIENCE", 0.1)
    with path.with_name("keys.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(KeysError, match="holds the lock"):
            add_key(settings, "other")
        assert len(Keys(path)) == 1  # readers need no lock
    add_key(settings, "other")


def test_a_failed_write_changes_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    add_key(settings, "me")
    path = keys_file(settings)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeysError, match="No space left"):
        add_key(settings, "other")
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["keys.json", "keys.json.lock"]


def test_a_link_stays_a_link(settings: Settings, tmp_path: Path) -> None:
    real = tmp_path / "real.json"
    link = tmp_path / "link.json"
    link.symlink_to(real)
    settings = Settings(keys_file=link)
    add_key(settings, "me")
    assert link.is_symlink()
    assert len(json.loads(real.read_text())["keys"]) == 1


def test_what_others_write_is_read_again(settings: Settings) -> None:
    keys = Keys(keys_file(settings))
    assert not keys.wanted
    secrets = [add_key(settings, f"key-{number}") for number in range(3)]
    assert all(keys.find(secret) for secret in secrets)
    gone: list[set[str]] = []
    keys.on_change.append(lambda names: gone.append(set(names)))
    with changed(keys_file(settings)) as found:
        del found[1]
    assert [keys.find(secret) is not None for secret in secrets] == [True, False, True]
    assert gone == [{"key-1"}]
    keys_file(settings).unlink()
    assert not any(keys.find(secret) for secret in secrets)
    assert keys.wanted
    assert read_keys(keys_file(settings)) is None


def test_a_key_in_a_variable(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "of-a-space-0123456789"
    monkeypatch.setenv(SECRET_VARIABLE, f" {secret}\n")
    keys = Keys(keys_file(settings))
    assert keys.wanted
    found = keys.find(secret)
    assert found is not None
    assert found.name == "server"
    # Processes that start later get its digest.
    assert secret not in os.environ[SECRET_VARIABLE]
    assert Keys(keys_file(settings)).find(secret) is not None
    assert keys.find(os.environ[SECRET_VARIABLE]) is None


@pytest.mark.parametrize(
    "secret", ["tiny", "with a space 0123456789", "grüße-0123456789-abc", "sha256:00", "sha256:xy"]
)
def test_a_variable_that_is_not_a_key(settings: Settings, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, secret)
    with pytest.raises(KeysError, match=SECRET_VARIABLE) as caught:
        Keys(keys_file(settings))
    assert secret not in str(caught.value)


def test_an_upload_ends_with_its_time_and_its_key(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = add_key(settings, "me")
    keys = Keys(keys_file(settings))
    me = keys.find(secret)
    assert me is not None
    query = keys.upload_query(me, "/v1/files/env/größe = 1", 60).encode()
    assert keys.find_upload("/v1/files/env/größe = 1", query) is me
    assert keys.find_upload("/v1/files/env/other", query) is None
    assert secret.encode() not in query
    for wrong in (
        b"",
        b"key=me",
        query.replace(b"key=me", b"key=you"),
        query + b"0",
        query.replace(b"expires=", b"expires=9"),
    ):
        assert keys.find_upload("/v1/files/env/größe = 1", wrong) is None
    later = time.time() + 61
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: later)
        assert keys.find_upload("/v1/files/env/größe = 1", query) is None
    with changed(keys_file(settings)) as found:
        del found[0]
    assert keys.find_upload("/v1/files/env/größe = 1", query) is None


def test_cookies_end_with_their_key(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, yours = add_key(settings, "me"), add_key(settings, "you")
    keys = Keys(keys_file(settings))
    me, you = keys.find(mine), keys.find(yours)
    assert me is not None
    assert you is not None
    cookie = keys.cookie(me, 60)
    assert keys.find_cookie(cookie) is me
    assert mine not in cookie
    name, expires, signature = cookie.split(":")
    forged = (
        f"you:{expires}:{signature}",
        f"{name}:{int(expires) + 1}:{signature}",
        f"{name}:{expires}:{'0' * 64}",
        f"{name}:{expires}:",
        f"{name}:{expires}",
        f"{name}:٣:{signature}",
        "",
        ":",
        "::",
        "é" * 5000,
    )
    for each in forged:
        assert keys.find_cookie(each) is None, each
    assert keys.find_cookie(keys.cookie(me, -1)) is None
    assert keys.csrf_token(me, cookie) != keys.csrf_token(you, cookie)
    assert keys.csrf_token(me, cookie) != signature
    with changed(keys_file(settings)) as found:
        del found[0]
    assert keys.find_cookie(cookie) is None


async def test_a_server_without_requests_notices_a_change(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_server.keys.keys._WATCH_EVERY", 0.01)
    keys = Keys(keys_file(settings))
    noticed = asyncio.Event()
    keys.on_change.append(lambda _: noticed.set())
    watching = asyncio.create_task(keys.watch())
    add_key(settings, "me")
    await asyncio.wait_for(noticed.wait(), 60)
    watching.cancel()
