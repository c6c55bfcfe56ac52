"""The mode of the data directory: private where it is made, reported where it exists and others may read it."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from ors_server.rollouts.location import make_folder, make_private


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_its_owners_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "data"
    make_folder(folder, folder / "missing")
    make_private(folder / "file")
    make_folder(folder, folder / "file")
    assert (_mode(folder), _mode(folder / "file")) == (0o700, 0o600)
    assert caplog.records == []


@pytest.mark.parametrize(("mode", "named"), [(0o755, True), (0o701, True), (0o770, False), (0o750, False)])
def test_an_existing_folder_keeps_its_mode(
    mode: int, named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING):
        make_folder(folder)
        make_folder(folder)
    assert _mode(folder) == mode
    assert [record.__dict__["remedy"] for record in caplog.records] == [f"chmod o-rwx {folder}"] * named


def test_a_file_that_others_may_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "rollouts.sqlite3"
    file.touch()
    file.chmod(0o644)
    make_folder(tmp_path, file)
    assert [record.__dict__["path"] for record in caplog.records] == [str(file)]
    assert _mode(file) == 0o644
