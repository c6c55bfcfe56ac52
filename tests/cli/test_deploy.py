"""``ors-server deploy space``: the content of a Hugging Face Space."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ors_cli.authoring.deploy import with_front_matter

from ors_server.hosting.loading.targets import bundled_environments

Command = Callable[..., Any]
WriteEnvironment = Callable[..., Path]

WHEEL = "orsd-1.0-py3-none-any.whl"
HEAD = "---\ntitle: x\nsdk: docker\napp_port: 7860\n---\n"


@pytest.mark.parametrize(
    "line",
    [
        "from ors_server.sandboxes import sandbox_service",
        "import ors_containers",
        "from ors_containers.limits import Limits as L",
        "from openreward import AsyncOpenReward, SandboxSettings",
        "from openreward.toolsets import SandboxToolset",
    ],
)
def test_an_environment_with_sandboxes_is_told_of(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path, line: str
) -> None:
    folder = write_environment("talk")
    outcome = command("deploy", "space", folder)
    assert "sandboxes" not in outcome.out
    (folder / "tools").mkdir()
    (folder / "tools" / "shell.py").write_text(f"def late():\n    {line}\n")
    outcome = command("deploy", "space", folder, "--force")
    assert "tools/shell.py: uses sandboxes, which a Space does not have" in outcome.out
    assert content(tmp_path / "talk-space")


@pytest.fixture(autouse=True)
def _quick_wheel(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr("ors_cli.authoring.deploy.wheel", lambda: (WHEEL, b"wheel"))


def content(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_a_folder_with_only_an_environment(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path
) -> None:
    folder = write_environment("talk")
    outcome = command("deploy", "space", folder)
    assert outcome.code == 0, outcome.err
    space = tmp_path / "talk-space"
    assert content(space) == [
        ".dockerignore",
        ".gitattributes",
        "Dockerfile",
        "README.md",
        "environment.py",
        WHEEL,
    ]
    assert (space / "environment.py").read_bytes() == (folder / "environment.py").read_bytes()
    readme = (space / "README.md").read_text()
    assert readme.startswith("---\ntitle: talk\n")
    assert "\nsdk: docker\napp_port: 7860\n" in readme
    dockerfile = (space / "Dockerfile").read_text()
    assert "useradd --uid 1000" in dockerfile
    assert "USER 1000" in dockerfile
    assert "EXPOSE 7860" in dockerfile
    assert '"--port", "7860"' in dockerfile
    assert "*.whl filter=lfs" in (space / ".gitattributes").read_text()
    for step in (f"cd {space}", "git push --force space main", "OPENREWARD_SESSION_URL=https://OWNER-SPACE.hf.space"):
        assert step in outcome.out
    # The environment's own folder is unchanged.
    assert content(folder) == ["environment.py"]


def test_the_bundled_echo_is_a_space_already(command: Command, tmp_path: Path) -> None:
    """Its own README and Dockerfile are kept byte for byte."""
    folder = bundled_environments()["echo"]
    outcome = command("deploy", "space", folder, "--output", tmp_path / "space")
    assert outcome.code == 0
    assert "README.md:" not in outcome.out
    assert "Dockerfile:" not in outcome.out
    for name in ("README.md", "Dockerfile", "environment.py"):
        assert (tmp_path / "space" / name).read_bytes() == (folder / name).read_bytes()


def test_files_are_copied_except_caches(command: Command, write_environment: WriteEnvironment, tmp_path: Path) -> None:
    folder = write_environment("talk")
    for name in ("data/tasks.json", ".git/config", "__pycache__/x.pyc", "venv/bin/python", "data/__pycache__/y.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for name in ("ors_server-0.1-py3-none-any.whl", "other-1.0-py3-none-any.whl", "run.sh"):
        (folder / name).touch()
    (folder / "run.sh").chmod(0o755)
    outcome = command("deploy", "space", folder, "--output", tmp_path / "space")
    own = set(content(tmp_path / "space")) - {".dockerignore", ".gitattributes", "Dockerfile", "README.md", WHEEL}
    assert own == {"environment.py", "data/tasks.json", "other-1.0-py3-none-any.whl", "run.sh"}
    assert os.access(tmp_path / "space" / "run.sh", os.X_OK)
    assert "Left out" not in outcome.out


def test_secrets_and_hidden_files_are_left_out_and_listed(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path
) -> None:
    folder = write_environment("talk")
    hidden = (".env", ".env.local", ".envrc", ".git-credentials", "data/.netrc")
    hidden_folders = (".ssh/id_rsa", ".aws/credentials", "data/.hidden/notes.txt")
    secret = ("prod.env", "prod.env.bak", "server.pem", "Server.KEY", "id_deploy", "id_deploy.pub", "data/id_rsa.old")
    wanted = ("environments.txt", "id_map.json", "keys.json", "tokenizer.json", "data/key", ".gitignore")
    for name in (*hidden, *hidden_folders, *secret, *wanted):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    outcome = command("deploy", "space", folder, "--output", tmp_path / "space")
    assert outcome.code == 0
    own = set(content(tmp_path / "space")) - {".dockerignore", ".gitattributes", "Dockerfile", "README.md", WHEEL}
    assert own == {"environment.py", *wanted}
    lines = [line.strip() for line in outcome.out.splitlines()]
    (dots,) = [line for line in lines if line.startswith("Left out (the name begins with a dot): ")]
    (secrets,) = [line for line in lines if line.startswith("Left out (such files usually hold secrets): ")]
    assert set(dots.removesuffix(".").partition(": ")[2].split(", ")) == {*hidden, ".ssh/", ".aws/", "data/.hidden/"}
    assert set(secrets.removesuffix(".").partition(": ")[2].split(", ")) == set(secret)


def test_a_link_is_followed_only_to_what_would_be_published(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path
) -> None:
    folder = write_environment("talk")
    (folder / "tasks.json").write_text("[]")
    (folder / "same.json").symlink_to("tasks.json")
    (folder / ".env").write_text("KEY=1")
    (folder / "settings.txt").symlink_to(".env")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").touch()
    (folder / "config.txt").symlink_to(".git/config")
    os.mkfifo(folder / "pipe")
    outcome = command("deploy", "space", folder)
    assert outcome.code == 0
    space = tmp_path / "talk-space"
    assert (space / "same.json").read_text() == "[]"
    assert not (space / "same.json").is_symlink()
    for name in ("settings.txt", "config.txt", "pipe"):
        assert not (space / name).exists()
    assert "Left out (the name begins with a dot): .env, settings.txt." in outcome.out
    assert "Left out (a link into what is left out): config.txt." in outcome.out
    assert "Left out (neither a file nor a folder): pipe." in outcome.out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/etc/passwd", "data.txt is a link out of the folder, to /etc/passwd"),
        ("../secret.txt", "data.txt is a link out of the folder"),
        ("nowhere.txt", "which does not exist"),
        ("data.txt", "which does not exist"),
    ],
)
def test_a_link_that_leads_elsewhere_is_refused(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path, target: str, message: str
) -> None:
    folder = write_environment("talk")
    (tmp_path / "secret.txt").touch()
    (folder / "data.txt").symlink_to(target)
    outcome = command("deploy", "space", folder)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "talk-space").exists()


@pytest.mark.parametrize(
    ("dockerfile", "kept", "note"),
    [
        ('FROM x\nEXPOSE 7860\nCMD ["ors-server", "serve", "."]\n', True, ""),
        ('FROM x\nCMD ["ors-server", "serve", "."]\n', True, "Dockerfile: kept, but 7860 is not in it"),
        ('FROM x\n# once it was ors-server\nCMD ["python", "server.py"]\n', False, "Dockerfile: written again"),
    ],
)
def test_a_dockerfile_is_kept_where_it_starts_the_server(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path, dockerfile: str, kept: bool, note: str
) -> None:
    folder = write_environment("talk")
    (folder / "Dockerfile").write_text(dockerfile)
    outcome = command("deploy", "space", folder)
    assert ((tmp_path / "talk-space" / "Dockerfile").read_text() == dockerfile) is kept
    assert note in outcome.out
    assert ("Dockerfile:" in outcome.out) is bool(note)


@pytest.mark.parametrize(
    ("readme", "expected", "changes"),
    [
        ("# Mine\n\nText.\n", f"{HEAD}\n# Mine\n\nText.\n", ["front matter added"]),
        ("", f"{HEAD}\n", ["front matter added"]),
        (f"{HEAD}# Mine\n", f"{HEAD}# Mine\n", []),
        (
            "---\ntitle: Own: title\nlicense: mit\n---\n\n# Mine\n---\n",
            "---\ntitle: Own: title\nlicense: mit\nsdk: docker\napp_port: 7860\n---\n\n# Mine\n---\n",
            ["front matter got sdk, app_port"],
        ),
        (
            "---\r\nsdk: gradio\r\nsdk_version: 5\r\n---\r\nText\n",
            "---\nsdk: docker\nsdk_version: 5\ntitle: x\napp_port: 7860\n---\nText\n",
            ["changed to sdk: docker", "front matter got title, app_port"],
        ),
        (
            '---\ntitle: x\nsdk: "docker"\napp_port: 8000\n---\n',
            '---\ntitle: x\nsdk: "docker"\napp_port: 8000\n---\n',
            [],
        ),
        ("---\n---\nText\n", f"{HEAD}Text\n", ["front matter got title, sdk, app_port"]),
        ("Text\n---\nmore\n---\n", f"{HEAD}\nText\n---\nmore\n---\n", ["front matter added"]),
    ],
)
def test_front_matter_is_completed_and_the_rest_is_kept(readme: str, expected: str, changes: list[str]) -> None:
    assert with_front_matter(readme, f"{HEAD}\nTemplate\n") == (expected, changes)


def test_git_attributes_are_added_to(command: Command, write_environment: WriteEnvironment, tmp_path: Path) -> None:
    folder = write_environment("talk")
    (folder / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    command("deploy", "space", folder)
    lines = (tmp_path / "talk-space" / ".gitattributes").read_text().splitlines()
    assert lines[0].startswith("*.bin")
    assert lines[-1].startswith("*.whl")


def test_an_output_folder_that_is_not_empty(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path
) -> None:
    """A clone of the Space has a README; its repository is kept, and an older wheel is removed."""
    folder = write_environment("talk")
    space = tmp_path / "clone"
    (space / ".git").mkdir(parents=True)
    (space / "README.md").write_text("theirs")
    (space / "ors_server-0.1-py3-none-any.whl").touch()
    outcome = command("deploy", "space", folder, "--output", space)
    assert outcome.code == 2
    assert "it would overwrite README.md" in outcome.err
    outcome = command("deploy", "space", folder, "--output", space, "--force")
    assert outcome.code == 0
    assert "Overwritten: README.md." in outcome.out
    assert f"ors_server-0.1-py3-none-any.whl: removed, {WHEEL} takes its place." in outcome.out
    assert [file.name for file in space.glob("*.whl")] == [WHEEL]
    assert (space / ".git").is_dir()


def test_folders_that_are_not_environments_are_refused(
    command: Command, write_environment: WriteEnvironment, tmp_path: Path
) -> None:
    assert "There is no folder" in command("deploy", "space", tmp_path / "nothing").err
    assert f"{tmp_path} has no environment.py" in command("deploy", "space", tmp_path).err
    folder = write_environment("talk")
    for output in (folder, folder / "inside", tmp_path):
        outcome = command("deploy", "space", folder, "--output", output)
        assert outcome.code == 2
        assert "lie in each other" in outcome.err
    (folder / "linked").symlink_to(tmp_path, target_is_directory=True)
    assert "linked is a link to a folder" in command("deploy", "space", folder).err
