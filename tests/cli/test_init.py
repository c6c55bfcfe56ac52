"""``ors-server init``: the folder it writes works without changes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from ors_cli.authoring.init import class_name_of

from tests.support.servers import StartServer

Command = Callable[..., Any]

FILES = [
    ".dockerignore",
    ".gitattributes",
    ".gitignore",
    "Dockerfile",
    "README.md",
    "environment.py",
    "requirements.txt",
    "test_environment.py",
]


@pytest.fixture(autouse=True)
def quick_wheel(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Replace the wheel's slow build by a stand-in, except in tests that ask for the real wheel."""
    if "real_wheel" not in request.fixturenames:
        monkeypatch.setattr("ors_cli.authoring.init.wheel", lambda: ("orsd-1.0-py3-none-any.whl", b"wheel"))


@pytest.fixture
def real_wheel() -> None:
    """Request the real wheel."""


def test_the_folder_is_complete_tested_and_served(
    command: Command, start_server: StartServer, tmp_path: Path, real_wheel: None
) -> None:
    """The steps of a newcomer: init, pytest, serve."""
    folder = tmp_path / "order_desk"
    outcome = command("init", folder)
    assert outcome.code == 0, outcome.err
    wheels = [file.name for file in folder.glob("*.whl")]
    assert len(wheels) == 1
    assert sorted(file.name for file in folder.iterdir()) == sorted([*FILES, *wheels])
    assert f"ors-server serve {folder}" in outcome.out
    for file in (*FILES, *wheels):
        assert file in outcome.out
    texts = "".join((folder / file).read_text() for file in FILES)
    assert "template-environment" not in texts
    assert "TemplateEnvironment" not in texts
    assert "class OrderDeskEnvironment(Environment)" in texts

    tests = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert tests.returncode == 0, tests.stdout
    assert "5 passed" in tests.stdout

    served = start_server("order_desk", cwd=tmp_path)
    assert httpx.get(f"{served.url}/list_environments").json() == ["order_desk"]
    assert httpx.post(f"{served.url}/num_tasks", json={"split": "train"}).json() == {"num_tasks": 16}
    assert served.stop() == 0


def test_the_wheel_carries_the_command_the_templates_and_the_bundled_environments(
    command: Command, tmp_path: Path, real_wheel: None
) -> None:
    assert command("init", tmp_path / "my_env").code == 0
    (wheel,) = (tmp_path / "my_env").glob("orsd-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    for name in (
        "ors_cli/__init__.py",
        "ors_cli/templates/files/data/test/week-5.csv",
        "ors_cli/templates/frame/gitignore",
        "ors_cli/templates/shared/Dockerfile",
        "ors_server/_bundled/echo/environment.py",
        "ors_benchmarks/py.typed",
        "ors_cli/py.typed",
        "ors_clients/py.typed",
        "ors_containers/py.typed",
        "ors_server/py.typed",
    ):
        assert name in names
    assert any(name.endswith(".dist-info/entry_points.txt") for name in names)


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("my_env", "MyEnv"),
        ("wordle", "WordleEnvironment"),
        ("word-count", "WordCountEnvironment"),
        ("the_environment", "TheEnvironment"),
        ("env", "EnvEnvironment"),
        ("environment", "EnvironmentEnvironment"),
        ("none", "NoneEnvironment"),
        ("maze3d", "Maze3dEnvironment"),
    ],
)
def test_the_class_is_called_after_the_environment(name: str, class_name: str) -> None:
    """The class never has the name of a keyword or of something that the template imports."""
    assert class_name_of(name) == class_name


def test_a_name_of_its_own(command: Command, tmp_path: Path) -> None:
    assert command("init", tmp_path / "Some Folder", "--name", "my-env").code == 0
    assert 'return "my-env"' in (tmp_path / "Some Folder" / "environment.py").read_text()


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("My Env", ["'My Env' is not a name", "my_env"]),
        ("3d", ["'3d' is not a name", "Try --name my_environment."]),
        ("a/b", ["'a/b' is not a name", "a_b"]),
        ("a__b", ["'a__b' is not a name", "a_b"]),
        ("Tools", ["'Tools' is not a name", "Try --name my_environment."]),
        ("tools", ["the server answers that path itself", "tools_env"]),
        ("häuser", ["is not a name", "Try --name hauser."]),
        ("ünï", ["is not a name", "Try --name uni."]),
        ("Straße 7", ["is not a name", "Try --name strasse_7."]),
        # Without the letters that have no ASCII form, too little is left of these for a name.
        ("日本n", ["is not a name", "Try --name my_environment."]),
        ("øl", ["is not a name", "Try --name my_environment."]),
        ("--", ["is not a name", "Try --name my_environment."]),
    ],
)
def test_an_invalid_name_is_refused(command: Command, tmp_path: Path, name: str, messages: list[str]) -> None:
    outcome = command("init", tmp_path / "folder", "--name", name)
    assert outcome.code == 2
    for message in messages:
        assert message in outcome.err
    assert not (tmp_path / "folder").exists()


def test_a_folder_that_cannot_give_the_name_says_how(command: Command, tmp_path: Path) -> None:
    assert "--name my_dir" in command("init", tmp_path / "My Dir").err


def test_a_folder_that_is_not_empty_is_left_alone(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "my_env"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    outcome = command("init", folder)
    assert outcome.code == 2
    assert "it holds notes.txt" in outcome.err
    assert "would overwrite none of them" in outcome.err
    (folder / "environment.py").write_text("mine")
    (folder / "ors_server-0.9-py3-none-any.whl").write_text("old")
    outcome = command("init", folder)
    assert "would overwrite environment.py" in outcome.err
    assert (folder / "environment.py").read_text() == "mine"

    outcome = command("init", folder, "--force")
    assert outcome.code == 0
    assert "environment.py (overwritten)" in outcome.out
    assert "ors_server-0.9-py3-none-any.whl (removed)" in outcome.out
    assert (folder / "notes.txt").read_text() == "mine"
    assert "class MyEnv" in (folder / "environment.py").read_text()
    assert [file.name for file in folder.glob("*.whl")] == ["orsd-1.0-py3-none-any.whl"]


def test_the_current_folder_with_a_repository_counts_as_empty(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my_env"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert command("init", ".").code == 0
    assert "class MyEnv" in (folder / "environment.py").read_text()


def test_a_file_in_the_way(command: Command, tmp_path: Path) -> None:
    (tmp_path / "my_env").touch()
    assert "my_env is a file" in command("init", tmp_path / "my_env").err
    outcome = command("init", tmp_path / "my_env" / "deeper")
    assert outcome.code == 2
    assert "cannot be written" in outcome.err
