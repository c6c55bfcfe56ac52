"""``ors-server image`` as a user calls it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ors_cli.application import application
from ors_containers import BubblewrapRuntime, RuntimeUnavailable
from typer.testing import CliRunner

from ors_server.errors import OrsError
from ors_server.telemetry.console import print_error

Make = Callable[..., Any]
Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command line in this process, with a store of its own, and returns the output."""
    monkeypatch.setenv("ORS_IMAGES", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "250")  # a row for each image, however long the paths are

    def call(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(application, ["image", *arguments])
        if isinstance(done.exception, OrsError):
            print_error(done.exception)
            assert status == 2
            return capsys.readouterr().err
        assert done.exit_code == status, (done.output, done.exception)
        return done.output

    return call


@pytest.fixture(scope="module")
def builds() -> None:
    """Skip where this machine cannot isolate."""

    async def probe() -> None:
        async with BubblewrapRuntime():
            pass

    try:
        asyncio.run(probe())
    except RuntimeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def archive(make: Make, rootfs_tar: bytes, tmp_path: Path) -> Path:
    return make([rootfs_tar]).oci(tmp_path / "tiny.tar")


def test_from_import_to_prune(command: Command, archive: Path, builds: None, tmp_path: Path) -> None:
    assert "host" in command("list")
    said = command("import", str(archive), "--name", "base:1")
    assert "Unpacking layer 1 of 1" in said
    assert "Imported base:1" in said
    assert "user user (1000) in /home/user" in said
    definition = tmp_path / "x.def"
    definition.write_text("Bootstrap: localimage\nFrom: base_1.sif\n%post\n  echo post runs\n  touch /opt/made\n")
    said = command("build", str(definition))
    assert "post runs" in said
    assert "Built x" in said
    assert "post runs" not in command("build", str(definition), "--quiet", "--name", "y")

    listed = command("list")
    assert [line.split()[0] for line in listed.splitlines()[1:5]] == ["host", "base:1", "x", "y"]
    rows = json.loads(command("list", "--json"))
    assert [row["name"] for row in rows] == ["host", "base:1", "x", "y"]
    assert rows[2]["source"] == str(definition)
    assert set(rows[1]["layers"]) & set(rows[2]["layers"])
    assert rows[1]["size"] > 10**6

    assert "Removed y" in command("remove", "y")
    assert "Removed 0 images and 0 layers: 0 B" in command("prune", "--unused-days", "30")
    assert "Removed 2 images and" in command("prune", "--max-total", "1K")
    assert [row["name"] for row in json.loads(command("list", "--json"))] == ["host"]


def test_dockerfiles_and_the_map(
    command: Command, archive: Path, builds: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images.toml"
    monkeypatch.setenv("ORS_IMAGE_MAP", str(images))
    assert "(there is no such file)" in command("map")
    images.write_text(f'[images]\n"base:*" = {{archive = "{archive.name}"}}\n"made" = {{dockerfile = "Dockerfile"}}\n')
    said = command("map")
    assert "base:*" in said
    assert f"archive {archive.name}" in said
    (tmp_path / "Dockerfile").write_text("FROM base:1 AS one\nARG X=1\nRUN echo said $X\nFROM one\nRUN exit 1\n")
    said = command("build", str(tmp_path), "-t", "by:hand", "--target", "one", "--build-arg", "X=7")
    assert "said 7" in said
    assert "Built by:hand" in said
    said = command("build", "-f", str(tmp_path / "Dockerfile"), str(tmp_path), "--target", "one", "--build-arg", "X=7")
    assert "(made before)" in said
    assert "said 7" not in said
    assert "by:hand: the store, ready" in command("map", "by:hand", "base:1")
    assert "made: dockerfile Dockerfile, made at its first use" in command("map", "made")
    said = command("map", "made", "--make", status=2)
    assert f"Error: {tmp_path}/Dockerfile, line 5: `RUN exit 1` failed with 1" in said
    assert "nothing: the store, missing" in command("map", "nothing", status=2)
    for arguments, problem in {
        ("build", str(tmp_path), "--host-files"): "--host-files is for definition files",
        ("build", str(tmp_path / "x.def"), "--target", "one"): "are for Dockerfiles",
        ("build", str(tmp_path), "--build-arg", "X"): "'X' is not NAME=VALUE",
    }.items():
        assert problem in command(*arguments, status=2)


def test_errors_come_with_their_remedy(command: Command, archive: Path, tmp_path: Path) -> None:
    definition = tmp_path / "x.def"
    definition.write_text("Bootstrap: localimage\nFrom: nothing.sif\n%post\n")
    said = command("build", str(definition), status=2)
    assert said.startswith(f"Error: {definition}, line 2: The base nothing.sif is neither at")
    assert "ors-server image import FILE --name nothing" in said
    for arguments, problem in {
        ("import", str(tmp_path / "absent")): "cannot be read: No such file",
        ("import", str(archive), "--max-size", "much"): "--max-size 'much' is not a size",
        ("import", str(archive), "--max-size", "0"): "leaves nothing",
        ("import", str(archive), "--max-size", "10K"): "more than",
        ("import", str(archive), "--name", "host"): "cannot be called 'host'",
        ("remove", "nothing"): "There is no image 'nothing'",
        ("remove", "host"): "cannot be removed",
        ("prune", "--max-total", "x"): "is not a size",
    }.items():
        said = command(*arguments, status=2)
        assert said.startswith("Error: ")
        assert problem in said


def test_files_of_this_machine_take_a_flag(command: Command, archive: Path, builds: None, tmp_path: Path) -> None:
    command("import", str(archive), "--name", "base")
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "definitions").mkdir()
    definition = tmp_path / "definitions/x.def"
    definition.write_text("Bootstrap: localimage\nFrom: base\n%files\n  ../notes /opt/notes\n")
    said = command("build", str(definition), status=2)
    assert said.startswith(f"Error: {definition}, line 4: %files names ../notes, which is outside")
    assert "ors-server image build --host-files" in said
    assert "Built x" in command("build", str(definition), "--host-files")


def test_the_program_itself_shows_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ors_cli", "image", "remove", "nothing"]
    done = subprocess.run(
        command, env={"ORS_IMAGES": str(tmp_path), "HOME": "/"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: There is no image 'nothing'")
