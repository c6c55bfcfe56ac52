"""Without sandboxes or a grader the terminal is not served, with the reason, and the other environments are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from ors_containers.errors import RuntimeUnavailable, StoreFailed
from ors_containers.graders import portable_python

from .folders import write_folder
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
    assert "Not served here: terminalenvironment" in (tmp_path / "server" / "log").read_text()


async def test_without_a_grader_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def fine() -> str:
        return ""

    async def missing(folder: Path, on_make: object) -> None:
        raise RuntimeUnavailable("This Python runs on no C library of its own", "Use a CPython for glibc")

    monkeypatch.setenv("ORS_IMAGES", str(tmp_path))
    monkeypatch.setattr(environment, "sandboxes_unavailable", fine)
    monkeypatch.setattr("ors_containers.graders.portable_python.python_toolset", missing)
    expected = "This Python runs on no C library of its own. Use a CPython for glibc"
    assert await preparation.grading_unavailable() == expected
    assert await environment.TerminalEnvironment.unavailable() == expected


@pytest.mark.parametrize("tasks", ["nowhere", "empty"])
def test_invalid_folders_are_reported_before_the_grader_is_made(tmp_path: Path, tasks: str) -> None:
    (tmp_path / "empty").mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    done = subprocess.run(
        [sys.executable, "-m", "ors_cli", "serve", "terminal", "--tasks", str(tmp_path / tasks), "--port", "0"],
        env=clean | {"ORS_IMAGES": str(tmp_path / "images")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert f"{tmp_path}/{tasks}" in done.stderr
    assert "preparing" not in done.stderr
    assert not (tmp_path / "images/toolsets").exists()


@pytest.mark.long
@pytest.mark.usefixtures("isolated")
def test_tests_that_import_the_agents_code_are_reported_unless_they_are_flagged(images: Path, tmp_path: Path) -> None:
    tests = "from answer import answer\ndef test_a(): assert answer() == 42\n"
    folder = write_folder(tmp_path / "tasks", "task_a", files={"test_final_state.py": tests})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    done = subprocess.run(
        [sys.executable, "-m", "ors_cli", "serve", "terminal", "--tasks", str(folder), "--port", "0"],
        env=clean | {"ORS_IMAGES": str(tmp_path / "images")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "line 1: the tests import answer" in done.stderr) == (2, True), done.stderr
    assert "--tests-import-code flag" in done.stderr
    arguments = ("terminal", "--tasks", tmp_path / "tasks", "--tests-import-code", "flag")
    with serving(tmp_path / "server", images, *arguments) as url:
        found = httpx.get(f"{url}/list_environments", timeout=30)
        assert found.status_code == 200


def test_a_full_disk_is_reported_in_a_sentence(tmp_path: Path) -> None:
    """A real disk: a small file system in a mount namespace of the test."""
    disk = tmp_path / "disk"
    disk.mkdir()
    program = (
        "import asyncio, sys; from pathlib import Path\n"
        "from ors_containers.graders.portable_python import python_toolset\n"
        "try: asyncio.run(python_toolset(Path(sys.argv[1])))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    mount = 'mount -t tmpfs -o size=4m none "$0" || exit 99; exec "$@"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, disk, sys.executable, "-c", program, disk / "toolsets"],
        env={**os.environ, "PYTHONPATH": str(Path(portable_python.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode in (1, 99):
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    if done.stdout.startswith("RuntimeUnavailable"):
        pytest.skip(done.stdout)
    assert done.stdout.startswith(f"StoreFailed There is no space left in {disk}/toolsets"), done.stdout[:500]
    assert "set ORS_IMAGES to a folder on another disk" in done.stdout
    assert len(done.stdout) < 500


async def test_a_store_that_cannot_be_written_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match=r"cannot be written to .*Set ORS_IMAGES"):
        await portable_python.python_toolset(tmp_path / "file" / "toolsets")
