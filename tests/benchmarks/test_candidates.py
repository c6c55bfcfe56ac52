"""The virtual environments of the foreign servers: made once, outside of the clone; errors name the remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ors_benchmarks.harness.candidates import OURS, Candidate, PeerUnavailable, packages
from ors_benchmarks.server.command import CANDIDATES
from ors_benchmarks.server.floor import FLOOR
from ors_containers.distribution import DISTRIBUTION


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty cache and no package index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path / "ors-server"


def test_installed_packages_need_no_environment(cache: Path) -> None:
    assert OURS.prepare() == FLOOR.prepare() == sys.executable
    assert not cache.exists()


@pytest.mark.long
def test_an_environment_is_made_once_and_again_if_pip_failed(cache: Path) -> None:
    missing = Candidate("missing", "missing", "missing", ("surely-there-is-no-such-package==1",))
    with pytest.raises(PeerUnavailable, match=r"missing cannot be made: ERROR: .*--candidates ours,floor"):
        missing.prepare()
    [folder] = [path for path in cache.iterdir() if path.is_dir()]
    assert not (folder / "complete").exists()  # so the next run tries again
    assert missing.prepared() is None
    (folder / "complete").touch()
    assert missing.prepared() == str(folder / "bin" / "python")
    assert missing.prepare() == str(folder / "bin" / "python")


def test_versions_of_packages() -> None:
    found = packages(sys.executable)
    assert "uvicorn" in found
    assert found[DISTRIBUTION]


def test_nothing_names_a_package_index() -> None:
    for candidate in CANDIDATES:
        assert not any("/" in requirement for requirement in candidate.requirements)
