"""Data folders on a machine that does not let a process have mounts of its own."""

import subprocess
from pathlib import Path

import pytest

from ors_server.checkouts import mounts
from ors_server.checkouts.checkout import Checkout
from ors_server.checkouts.loaded_checkouts import Failures, FoundCheckout
from ors_server.checkouts.mounts import mounted_data
from ors_server.checkouts.requirements import Requirements
from ors_server.checkouts.system_needs import Needs


def environment(folder: Path, name: str) -> FoundCheckout:
    data = folder / name
    data.mkdir()
    (data / "file").touch()
    checkout = Checkout(name, "", folder, "", folder / "server.py", "")
    return FoundCheckout(checkout, Needs(), Requirements(folder, (), folder, "", ""), data, True)


def test_the_second_environment_with_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.CompletedProcess((), 78, "", "unshare: Operation not permitted")

    def run(*_: object, **__: object) -> object:
        return refused

    monkeypatch.setattr("ors_server.checkouts.mounts.subprocess.run", run)
    monkeypatch.setattr(mounts, "DATA_MOUNT", str(tmp_path / "orwd_data"))
    walk, swim = environment(tmp_path, "walk"), environment(tmp_path, "swim")
    said: list[str] = []
    failures = Failures(said.append)
    assert mounted_data([walk], failures) == set()
    assert "walk wants" in said[0]
    assert "Operation not permitted" in said[0]
    assert f"`ln -s {walk.data}" in said[0]
    (tmp_path / "orwd_data").symlink_to(tmp_path / "walk")
    assert mounted_data([walk], Failures(said.append)) == set()
    assert len(said) == 1
    assert mounted_data([walk, swim], failures) == set()
    assert "swim and walk both want" in said[1]
    assert sorted(failures.errors) == ["swim", "walk"]
