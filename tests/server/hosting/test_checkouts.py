"""Checkouts: their program, requirements and names, and the one error that each kind of broken checkout gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ors_server.checkouts.checkout import find_checkout, refuse_same_names
from ors_server.checkouts.errors import HostError
from ors_server.checkouts.requirements import find_requirements
from ors_server.checkouts.serving import link_packages
from ors_server.checkouts.sources import Sources
from ors_server.checkouts.virtualenv import own_requirements, provide_virtualenv
from ors_server.worker import PROGRAM

SERVER = "from openreward.environments import Server\nfrom env import Walk\n"


def checkout(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", "/").replace("_py", ".py").replace("_txt", ".txt")).write_text(text)
    return folder


def program_of(folder: Path) -> str:
    return find_checkout(str(folder), folder).program.relative_to(folder).as_posix()


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ('CMD ["uv", "run", "python", "/srv/app/start.py"]', "start.py"),
        ("CMD python -m start", "start.py"),
        ('ENTRYPOINT ["uvicorn", "start:app", "--port", "8080"]', "start.py"),
        ('CMD ["/srv/app/entrypoint.sh"]', "server.py"),
        ('CMD ["python", "/elsewhere/start.py"]', "server.py"),
    ],
)
def test_the_program_is_what_the_dockerfile_starts(tmp_path: Path, command: str, program: str) -> None:
    folder = checkout(tmp_path / "walk", server_py="", start_py="")
    (folder / "Dockerfile").write_text(f"FROM python\n# CMD python other.py\nWORKDIR /srv/app\n{command}\n")
    assert program_of(folder) == program


def test_without_a_dockerfile_the_program_is_named_server_or_app(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "walk", app_py="", environment_py="")
    assert program_of(folder) == "app.py"
    (folder / "app.py").unlink()
    assert program_of(folder) == "environment.py"
    (folder / "environment.py").rename(folder / "walk.py")
    with pytest.raises(HostError, match=r"no server\.py or app\.py.*ors-server host .*walk\.py"):
        program_of(folder)


def test_a_target_may_name_the_file_and_the_class(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "walk", server_py="", other_py="")
    found = find_checkout(f"{folder}/other.py:Walk", tmp_path)
    assert (found.program, found.class_name, found.names) == (folder / "other.py", "Walk", ["walk"])
    assert find_checkout(f"{folder}:Walk", tmp_path).class_name == "Walk"
    with pytest.raises(HostError, match="There is no checkout"):
        find_checkout(str(tmp_path / "none"), tmp_path)


def test_checkouts_of_one_name_are_refused(tmp_path: Path) -> None:
    """Each has a data folder, whose name is in lower case."""
    (tmp_path / "other").mkdir()
    folders = [checkout(tmp_path / name, server_py="") for name in ("Walk", "swim", "other/walk")]
    walk, swim, other = (find_checkout(str(folder), tmp_path) for folder in folders)
    refuse_same_names([walk, swim])
    with pytest.raises(HostError, match=r"Walk/server\.py and .*other/walk/server\.py are .* the same name, walk"):
        refuse_same_names([walk, swim, other])


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *identity, "-C", folder, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_commit_of_a_repository_is_fetched_once(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "Walk", server_py="first = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    commit = git(folder, "rev-parse", "HEAD")
    (folder / "server.py").write_text("second = 2\n")
    git(folder, "commit", "-qam", "second")
    repositories = tmp_path / "repositories"

    found = find_checkout(f"file://{folder}@{commit}", repositories)
    assert found.program.read_text() == "first = 1\n"
    assert (found.name, found.commit) == ("Walk", commit)
    assert find_checkout(f"file://{folder}@{commit}", repositories) == found

    (folder / "server.py").write_text("changed = 3\n")
    git(folder, "remote", "add", "origin", "git@host.example:Owner/Walk.git")
    local = find_checkout(str(folder), repositories)
    assert local.commit.endswith("+")
    assert local.names == ["Walk", "Owner/Walk"]

    with pytest.raises(HostError, match="cannot be fetched"):
        find_checkout(f"file://{folder}@{'0' * 40}", repositories)
    with pytest.raises(HostError, match="names no commit"):
        find_checkout(f"file://{folder}", repositories)


def test_a_checkout_without_requirements_says_what_it_imports(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "walk", server_py=SERVER, env_py="import json, pandas\nclass Walk: ...\n")
    sources = Sources(folder, folder / "server.py")
    assert [file.name for file in sources.trees] == ["server.py", "env.py"]
    with pytest.raises(HostError, match=r"says nowhere which packages.*server\.py imports: openreward pandas"):
        find_requirements(folder, folder / "server.py", sources.installed)


def test_requirements_are_found_in_three_places(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "walk", server_py="")

    def found() -> tuple[str, tuple[str, ...]]:
        requirements = find_requirements(folder, folder / "server.py", [])
        return requirements.source.name, requirements.arguments

    dockerfile = "FROM python\nRUN pip install --upgrade -i somewhere \\\n  'numpy>=2' ./here && pip install pandas\n"
    (folder / "Dockerfile").write_text(dockerfile)
    assert found() == ("Dockerfile", ("numpy>=2", "pandas"))
    (folder / "pyproject.toml").write_text('[project]\nname = "walk"\ndependencies = ["numpy"]\n')
    assert found() == ("pyproject.toml", ("numpy",))
    (folder / "requirements.txt").write_text("-r more.txt\n")
    (folder / "more.txt").write_text("numpy\n")
    first = find_requirements(folder, folder / "server.py", [])
    assert first.arguments == ("-r", str(folder / "requirements.txt"))
    (folder / "more.txt").write_text("pandas\n")
    assert find_requirements(folder, folder / "server.py", []).digest != first.digest


def test_a_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "walk", server_py=SERVER, env_py="class Walk:\n  def\n", test_agent_py="also wrong(")
    with pytest.raises(HostError, match=r"env\.py, line 2, is not valid Python"):
        Sources(folder, folder / "server.py")


def wheel(folder: Path, name: str, version: str) -> None:
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        info = f"{name}-{version}.dist-info"
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.long
def test_requirements_that_exclude_each_other_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # pip, also where uv is installed
    for version in ("1", "2"):
        wheel(tmp_path, "walking", version)
    folder = checkout(tmp_path / "walk", server_py="")
    (folder / "requirements.txt").write_text(f"--no-index\n--find-links {tmp_path}\nwalking==1\nwalking==2\n")
    requirements = find_requirements(folder, folder / "server.py", [])
    said: list[str] = []
    with pytest.raises(HostError, match=r"exclude each other: The user requested walking==1; .*walking==2") as error:
        provide_virtualenv("walk", requirements, tmp_path / "virtualenvs", said.append)
    assert f"Correct {folder / 'requirements.txt'}" in error.value.remedy
    assert said[0].startswith("making the virtual environment")


_UV = """#!/bin/sh
[ "$1" = venv ] && exit 0
cat <<'END'
  × No solution found when resolving dependencies:
  ╰─▶ Because {reasons}, we can
      conclude that your requirements are unsatisfiable.
END
exit 1
"""


@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        ("you require a==1 and a==2", "walk exclude each other: you require a==1 and a==2"),
        (
            "b==0.50.0 depends on a<2 and you require a>=2, we can conclude that\n      your requirements and b==0.50.0"
            " are incompatible. And because you require b==0.50.0",
            "walk exclude each other: b==0.50.0 depends on a<2 and you require a>=2, so your requirements and b==0.50.0"
            " are incompatible; and you require b==0.50.0",
        ),
        ("a was not found in the package registry and you require a", "cannot be installed: a was not found in the"),
        ("only a>=1.3.0 is available and you require a<1.0", "cannot be installed: only a>=1.3.0 is available"),
        ("there is no version of a==99 and you require a==99", "cannot be installed: there is no version of a==99"),
    ],
)
def test_what_uv_says_is_told(reasons: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "uv"
    program.write_text(_UV.format(reasons=reasons))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    folder = checkout(tmp_path / "walk", server_py="", requirements_txt="a\n")
    requirements = find_requirements(folder, folder / "server.py", [])
    with pytest.raises(HostError, match=re.escape(message)):
        provide_virtualenv("walk", requirements, tmp_path / "virtualenvs", lambda _: None)


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_makes_a_virtual_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ors_server.checkouts.virtualenv.own_requirements", lambda: ["running"])
    for name in ("walking", "running"):
        wheel(tmp_path, name, "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    folder = checkout(tmp_path / "walk", server_py="", requirements_txt="walking\n")
    requirements = find_requirements(folder, folder / "server.py", [])
    python = provide_virtualenv("walk", requirements, tmp_path / "virtualenvs", lambda _: None)
    assert subprocess.run([python, "-c", "import walking, running"], check=False).returncode == 0
    assert provide_virtualenv("walk", requirements, tmp_path / "virtualenvs", pytest.fail) == python


def test_a_virtual_environment_without_ors_server_runs_its_command_line(tmp_path: Path) -> None:
    linked = link_packages(tmp_path)
    (tmp_path / "own.py").write_text("from ors_server import Environment\nraise SystemExit('loaded')\n")
    # -S: the site-packages give requirements only, as nothing in them says where a checkout of ors-server lies.
    command = [sys.executable, "-S", "-m", PROGRAM, "serve", "own.py"]
    path = os.pathsep.join([str(linked), sysconfig.get_path("purelib")])
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True, check=False
    )
    assert "own.py cannot be imported: SystemExit: loaded" in done.stderr


def test_another_python_is_asked_for(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "walk", server_py="")
    project = '[project]\nname = "walk"\nrequires-python = ">=3.99"\ndependencies = []\n'
    (folder / "pyproject.toml").write_text(project)
    requirements = find_requirements(folder, folder / "server.py", [])
    with pytest.raises(HostError, match=r"walk needs Python >=3\.99"):
        provide_virtualenv("walk", requirements, tmp_path, lambda _: None)


def test_the_packages_of_the_server_come_without_its_extras() -> None:
    names = [requirement.partition(">")[0] for requirement in own_requirements()]
    assert "fastapi" in names
    assert "pyright[nodejs]" not in names


def test_packages_of_a_checkout_are_not_those_of_another(tmp_path: Path) -> None:
    def digest(name: str, text: str) -> str:
        folder = checkout(tmp_path / f"{name}-{len(text)}", server_py=SERVER, requirements_txt=text)
        return find_requirements(folder, folder / "server.py", []).digest

    for text in ("openreward\n-e .\n", "./package\n"):
        assert digest("one", text) != digest("another", text)
    assert digest("one", "openreward\n") == digest("another", "openreward\n")


def test_hosted_processes_get_the_packages_of_metrics_and_pages() -> None:
    names = {re.split(r"[^\w-]", text)[0] for text in own_requirements()}
    assert {"fastapi", "prometheus-client", "jinja2", "sqlalchemy"} <= names
