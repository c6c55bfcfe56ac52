"""Where no sandbox or no grader can be had, the terminal is not served, with the reason, and the rest is."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from ors_containers.errors import RuntimeUnavailable

from .parts import environment, preparation
from .server import serving


def test_without_bubblewrap_the_rest_is_served(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    with (
        serving(tmp_path / "server", tmp_path / "images", "terminal", "echo", PATH=str(programs)) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        assert client.get("/list_environments").json() == ["echoenvironment"]
        refused = client.get("/tools", headers={"X-Deployment": "kanishk/EndlessTerminals"})
        assert refused.status_code == 404
        assert "apt install bubblewrap" in refused.json()["detail"]
    assert "Not served here: terminalenvironment" in (tmp_path / "server" / "output").read_text()


async def test_without_a_grader_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def fine() -> str:
        return ""

    async def missing(folder: Path) -> None:
        raise RuntimeUnavailable("This Python runs on no C library of its own", "Use a CPython for glibc")

    monkeypatch.setenv("ORS_IMAGES", str(tmp_path))
    monkeypatch.setattr(environment, "sandboxes_unavailable", fine)
    monkeypatch.setattr("ors_containers.toolset.python_toolset", missing)
    expected = "This Python runs on no C library of its own. Use a CPython for glibc"
    assert await preparation.grading_unavailable() == expected
    assert await environment.TerminalEnvironment.unavailable() == expected
