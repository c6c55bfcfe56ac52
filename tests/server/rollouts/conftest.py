"""Servers with a data directory for each test, the databases that tests run on, and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import command as command
from tests.support.postgresql import Postgresql, running_postgresql
from tests.support.servers import StartServer, starting


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgresql]:
    """Run a PostgreSQL server for all tests that want one."""
    with running_postgresql() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on both databases; servers, commands and ``support.at`` use the one that is set."""
    if request.param == "postgresql":
        server: Postgresql = request.getfixturevalue("postgresql")
        monkeypatch.setenv("ORS_ROLLOUTS", server.create())
    return request.param


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the directory where servers and commands of this test keep rollouts; it does not exist yet."""
    folder = tmp_path / "data"
    monkeypatch.setenv("ORS_DATA_DIR", str(folder))
    return folder


@pytest.fixture
def start_server(tmp_path: Path, data_dir: Path) -> Iterator[StartServer]:
    """Return a starter of real servers, each a process of its own."""
    with starting(tmp_path) as start:
        yield start
