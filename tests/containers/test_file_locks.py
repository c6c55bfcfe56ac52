"""File locks: held, free, and of a removed file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ors_containers.linux.file_locks import create_lock, locked, try_lock, try_locked


def test_a_lock_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = create_lock(path)
    assert lock is not None
    assert create_lock(path) is None
    with try_locked(path) as is_free:
        assert not is_free
    os.close(lock)
    with try_locked(path) as is_free:
        assert is_free
        assert create_lock(path) is None


def test_the_lock_of_a_removed_file_is_not_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"

    def lock_after_removal(descriptor: int) -> bool:
        path.unlink()
        return try_lock(descriptor)

    monkeypatch.setattr("ors_containers.linux.file_locks.try_lock", lock_after_removal)
    assert create_lock(path) is None


def test_shared_locks_exclude_an_exclusive_lock_only(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, shared=True), locked(path, shared=True), try_locked(path) as is_free:
        assert not is_free
    with locked(path), try_locked(path) as is_free:
        assert not is_free


def test_a_folder_can_be_locked(tmp_path: Path) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY
    with try_locked(tmp_path, flags) as first, try_locked(tmp_path, flags) as second:
        assert (first, second) == (True, False)
    with pytest.raises(FileNotFoundError), try_locked(tmp_path / "missing"):
        pass
