"""The templates of ``ors-server init``: each is complete and listed, and passes its own tests and the strict check."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from ors_cli.authoring import init, template_folders
from ors_cli.authoring.template_folders import TEMPLATES, Names, read_environment

from ors_server.hosting.loading.targets import load_targets
from ors_server.sandboxes import sandboxes_unavailable
from tests.support.paths import DOCS, ROOT
from tests.support.servers import served

Command = Callable[..., Any]

FOLDER = ROOT / "cli" / "ors_cli" / "templates"
NAMES = Names("my_env", "MyEnv")
#: Files of every written environment, and those of one template.
COMMON = {".dockerignore", ".gitattributes", ".gitignore", "Dockerfile", "README.md", "requirements.txt"}
CODE = {"environment.py", "test_environment.py"}
MORE = {
    "files": {f"data/{part}.csv" for part in ("train/week-1", "train/week-2", "train/week-3", "train/week-4")}
    | {"data/test/week-5.csv", "data/test/week-6.csv"},
    "judge": {"judge.py", "judge_stand_in.py"},
}


@pytest.fixture(autouse=True)
def _quick_wheel(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(init, "wheel", lambda: ("orsd-1.0-py3-none-any.whl", b"wheel"))


def test_every_template_is_in_the_table() -> None:
    assert {path.parent.name for path in FOLDER.glob("*/environment.py")} == set(TEMPLATES)
    assert next(iter(TEMPLATES)) == "basic"


def test_the_help_and_the_page_list_every_template(command: Command) -> None:
    shown = command("init", "--help").out
    missing = [name for name, shows in TEMPLATES.items() if not re.search(rf"{name} +{re.escape(shows)}", shown)]
    assert missing == []
    rows = "".join(f"| `{name}` | {shows} |\n" for name, shows in TEMPLATES.items())
    table = f"<!-- kept by tests/cli/test_templates.py -->\n\n| template | shows |\n|---|---|\n{rows}\n<!-- end -->"
    assert table in (DOCS / "environments.md").read_text("utf-8")


@pytest.mark.parametrize("template", ["docker", "Basic", "", "shared", "../judge"])
def test_an_unknown_template_is_refused(command: Command, tmp_path: Path, template: str) -> None:
    outcome = command("init", tmp_path / "my_env", "--template", template)
    assert outcome.code == 2
    assert f"There is no template {template!r}" in outcome.err
    assert f"There are: {', '.join(TEMPLATES)}." in outcome.err
    assert not (tmp_path / "my_env").exists()


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_is_complete(command: Command, tmp_path: Path, template: str) -> None:
    folder = tmp_path / "order_desk"
    assert command("init", folder, "--template", template).code == 0
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == COMMON | CODE | MORE.get(template, set()) | {"orsd-1.0-py3-none-any.whl"}

    texts = {name: (folder / name).read_text("utf-8") for name in files}
    assert [name for name, text in texts.items() if re.search(r"template[-_]\w+|TemplateEnv", text)] == []
    (episode,) = re.findall(r"```python\n(.*?)```", texts["README.md"], re.DOTALL)
    compile(episode, "README.md", "exec")
    assert episode.count("session.call_tool(") >= 1

    classes: list[Any] = list(load_targets([str(folder)]))
    (environment,) = classes
    assert environment.name() == "order_desk"
    assert environment.__name__ == "OrderDeskEnvironment"
    assert environment.list_splits() == ["train", "test"]


def test_compiled_files_are_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed template has been compiled by pip."""
    shutil.copytree(FOLDER, tmp_path / "templates", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(template_folders, "_TEMPLATES", tmp_path / "templates")
    before = {template: read_environment(template, NAMES) for template in TEMPLATES}
    for template in ("shared", "frame", *TEMPLATES):
        compiled = tmp_path / "templates" / template / "__pycache__"
        compiled.mkdir()
        (compiled / "environment.cpython-311.pyc").write_bytes(b"\xa7\r\r\n\xff")
    assert {template: read_environment(template, NAMES) for template in TEMPLATES} == before


@pytest.mark.long
@pytest.mark.parametrize("template", TEMPLATES)
def test_each_is_tested_checked_and_played(command: Command, tmp_path: Path, template: str) -> None:
    if template == "sandbox" and (reason := asyncio.run(sandboxes_unavailable())):
        pytest.skip(reason)
    folder = tmp_path / "my_env"
    assert command("init", folder, "--template", template).code == 0

    def run(*arguments: str | Path, **variables: str) -> str:
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", **variables}
        command = [sys.executable, *arguments]
        ran = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    tested = run("-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    assert re.search(r"^\d+ passed in", tested, re.MULTILINE), tested
    (episode,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL)
    with judge(folder) if template == "judge" else contextlib.nullcontext(dict[str, str]()) as variables:
        checked = run("-m", "ors_cli", "check", ".", "--strict", "--reward-range", "0", "1", **variables)
        assert "no required rule is broken" in checked
        with served(tmp_path, folder, **variables) as url:
            played = run("-c", episode, OPENREWARD_API_URL=url, OPENREWARD_SESSION_URL=url)
    assert re.search(r"reward=[01]\.", played)
    assert played.endswith("finished=True)\n")


@contextlib.contextmanager
def judge(folder: Path) -> Generator[dict[str, str]]:
    """Run the stand-in of a written folder on a free port; yield the variables that name it."""
    code = "from judge_stand_in import stand_in; s = stand_in(); print(s.server_port, flush=True); s.serve_forever()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            yield {"JUDGE_BASE_URL": f"http://127.0.0.1:{port}/v1", "JUDGE_MODEL": "stand-in"}
        finally:
            process.terminate()
