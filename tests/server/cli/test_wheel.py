"""The wheel in image folders: built from a checkout, or repacked where there is only an installation."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ors_server.cli.wheel import WheelError, wheel

#: Runs in the installation: writes its wheel into the given folder.
PACK = """
import sys
from pathlib import Path
from ors_server.cli.wheel import wheel
name, content = wheel()
Path(sys.argv[1], name).write_bytes(content)
print(name)
"""


@pytest.mark.long
def test_a_wheel_packed_again_is_the_wheel_that_was_installed(tmp_path: Path) -> None:
    """Built from the checkout, installed, repacked: the same files with the same content, and a valid record."""
    name, content = wheel()
    site = tmp_path / "site"
    built = tmp_path / name
    built.write_bytes(content)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, built],
        check=True,
    )
    # Without this interpreter's site packages first on the path: the checkout is installed there.
    packed = subprocess.run(
        [sys.executable, "-c", PACK, tmp_path / "site"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert packed.stdout.strip() == name
    with zipfile.ZipFile(io.BytesIO(content)) as first, zipfile.ZipFile(site / name) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        for entry in first.namelist():
            if not entry.endswith("/RECORD"):
                assert first.read(entry) == second.read(entry), entry
        record = next(entry for entry in second.namelist() if entry.endswith("/RECORD"))
        rows = list(csv.reader(second.read(record).decode().splitlines()))
        assert sorted(row[0] for row in rows) == sorted(second.namelist())
        for entry, digest, size in rows:
            if entry != record:
                data = second.read(entry)
                expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={expected}", len(data))


def test_a_package_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ors_server.cli.wheel._PACKAGE", tmp_path / "ors_server")
    with pytest.raises(WheelError, match="neither an installed wheel nor a checkout"):
        wheel()


def test_a_build_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("nonsense")
    monkeypatch.setattr("ors_server.cli.wheel._PACKAGE", tmp_path / "ors_server")
    with pytest.raises(WheelError) as caught:
        wheel()
    assert str(tmp_path) in caught.value.cause
    assert "hatchling" in caught.value.remedy
