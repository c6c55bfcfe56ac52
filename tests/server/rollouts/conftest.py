"""Servers with a data directory for each test, and the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.cli.conftest import command as command
from tests.support.servers import StartServer, starting


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
