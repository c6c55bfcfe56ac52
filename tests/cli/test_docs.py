"""The documentation names paths, modules and rooms that exist."""

from __future__ import annotations

import functools
import re
import runpy
import shlex
import subprocess
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
from ors_cli.application import application

from tests.support.paths import DOCS, ROOT

PACKAGES = {
    "ors_server": ROOT / "ors_server",
    "ors_containers": ROOT / "containers" / "ors_containers",
    "ors_clients": ROOT / "clients" / "ors_clients",
    "ors_benchmarks": ROOT / "benchmarks" / "ors_benchmarks",
    "ors_cli": ROOT / "cli" / "ors_cli",
}
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(DOCS.rglob("*.md"))]
#: Folders of the checkout: a path in the documentation that begins with one of them is a path of the checkout.
FOLDERS = (
    "benchmarks",
    "cli",
    "clients",
    "containers",
    "deploy",
    "docs",
    "environments",
    "examples",
    "ors_server",
    "scripts",
    "tests",
)

COMMAND_LINE: Any = typer.main.get_command(application)

#: Files of a terminal task rather than of the project's tests.
OF_TASKS = {"test_initial_state", "test_final_state"}


def words(page: Path) -> set[str]:
    """Return the texts between backticks outside of code blocks."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return set(re.findall(r"`([^`\n]+)`", text))


def names_something(dotted: str) -> bool:
    """Return whether a dotted name is one of our modules, or a name that a module defines."""
    first, *rest = dotted.split(".")
    place = PACKAGES[first]
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").is_file():
        place /= f"{rest.pop(0)}.py"
    source = (place / "__init__.py" if place.is_dir() else place).read_text("utf-8")
    return not rest or re.search(rf"\b{re.escape(rest[0])}\b", source) is not None


def exists(path: str) -> bool:
    return any(ROOT.glob(path.rstrip("/"))) if "*" in path else (ROOT / path).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_exist(page: Path) -> None:
    dotted = {word for word in words(page) if re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+", word)}
    assert {word for word in dotted if not names_something(word)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    paths = {word for word in words(page) if re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./*-]*", word)}
    assert {path for path in paths if not exists(path)} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_has_every_room(package: str) -> None:
    """Each room, and each module of a room that a table names, as a path below its package."""
    section = (DOCS / "architecture.md").read_text("utf-8").partition(f"\n## {package}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"`([^`]+)`", row)}
    folder = PACKAGES[package]
    missing = {word for word in named if not (folder / word).is_dir() and not (folder / f"{word}.py").is_file()}
    assert missing == set()
    rooms = {path.stem for path in chain(folder.glob("*.py"), folder.glob("*/")) if not path.stem.startswith("_")}
    assert rooms - {word.split("/")[0] for word in named} == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_has_the_layers_of_the_contract(package: str) -> None:
    """The row of a package lists its rooms as ``[tool.importlinter]`` does, from the top down."""
    metadata: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts: list[dict[str, Any]] = metadata["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract.get("containers") == [package])
    lines = [[room for room in layer.split(" | ") if not room.startswith("_")] for layer in layers]
    shown = " > ".join(", ".join(f"`{room}`" for room in line) for line in lines if line)
    assert f"| `{package}` | {shown} |" in (DOCS / "architecture.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_exist(page: Path) -> None:
    """Each test that a page names is a module or a function of the tests; ``…`` stands for the rest of a name."""
    named = {name for word in words(page) for name in re.findall(r"\btest_\w+…?", word)}
    files = sorted((ROOT / "tests").rglob("*.py")) if named else []
    known = {path.stem for path in files}
    known.update(chain.from_iterable(re.findall(r"def (test_\w+)", path.read_text("utf-8")) for path in files))
    whole = {name for name in named if not name.endswith("…")}
    begun = {name[:-1] for name in named - whole}
    missing = whole - known - OF_TASKS | {name for name in begun if not any(test.startswith(name) for test in known)}
    assert missing == set()


def commands(page: Path) -> set[str]:
    """Return the arguments of every ``ors-server`` command of a page, of blocks and between backticks."""
    text = page.read_text("utf-8").replace("\\\n", " ")
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    lines = [re.sub(r"(^| )#.*", "", line) for block in blocks for line in block.splitlines()]
    called = r"(?:(?<![/\w-])|(?<=bin/))ors-server ([a-z][^`;&|#)]*)"
    return {found.strip() for line in [*lines, *words(page)] for found in re.findall(called, line)}


@functools.cache
def child(group: Any, name: str) -> Any:
    """Return a command of a group; the first time imports it."""
    return group.resolve_command(typer.Context(group), [name])[1]


@functools.cache
def refused(line: str) -> str:
    """Return what the command line says of a command or an option that it does not know."""
    command, arguments = COMMAND_LINE, [word for word in shlex.split(line) if word != "--help"]
    try:
        while hasattr(command, "resolve_command") and arguments and arguments[0].islower():
            command, arguments = child(command, arguments[0]), arguments[1:]
        if arguments and not hasattr(command, "resolve_command"):
            command.make_context("ors-server", arguments)
    except Exception as error:  # of click, or of the copy of it that newer versions of typer have: compared by name
        names = {kind.__name__ for kind in type(error).__mro__}
        if not names & {"NoSuchOption", "UsageError", "Exit"}:
            raise
        # A page names files that are not here, and leaves arguments out.
        return "" if names & {"BadParameter", "Exit"} else str(getattr(error, "message", error))
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_known(page: Path) -> None:
    assert {found: problem for found in commands(page) if (problem := refused(found))} == {}


def test_an_unknown_command_is_noticed() -> None:
    assert "No such option: --nonsense" in refused("serve echo --nonsense")
    assert "No such command 'nonsense'" in refused("tasks nonsense")


def test_folders_of_tests_exist() -> None:
    section = (DOCS / "architecture.md").read_text("utf-8").partition("\n## Tests\n")[2]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    named = {folder for row in rows for folder in re.findall(r"`([^`]+)`", row)}
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert named == folders | {"tests/support"}


def test_the_changelog_has_an_entry_a_line() -> None:
    """For the newest version, which is the one of the metadata, or not released yet."""
    newest = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert newest.startswith((version, "Unreleased"))
    entries = newest.partition("\n### ")[2].splitlines()[1:]
    assert {line for line in entries if line and not line.startswith(("- ", "### "))} == set()
    assert {line for line in entries if len(line) > 160} == set()


def documented(root: Path, page: str) -> list[str]:
    """Return what `scripts/check-house` says of a checkout with a README of 32,990 words and a page with this text."""
    (root / "docs").mkdir(exist_ok=True)
    (root / "README.md").write_text("word " * 32_990)
    (root / "docs" / "more.md").write_text(page)
    found: list[str] = list(runpy.run_path(str(ROOT / "scripts" / "check-house"))["words"](root))
    return found


def test_the_pages_have_a_limit(tmp_path: Path) -> None:
    assert documented(tmp_path, "word " * 10) == []
    (problem,) = documented(tmp_path, "word " * 11)
    assert "have 33,001 words, at most 33,000. The longest: README.md 32,990, docs/more.md 11." in problem


def test_the_pages_that_grew_are_named(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    documented(tmp_path, "word " * 9)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "within the limit"], check=True)
    (problem,) = documented(tmp_path, "word " * 12)
    assert re.search(r"Grown since \w{7,}: docs/more\.md by 3\. ", problem)


def test_a_table_that_a_test_keeps_is_not_counted(tmp_path: Path) -> None:
    table = "\n| a | b |\n" * 20
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_table.py").write_text("")
    marked = f"<!-- kept by tests/test_table.py -->\n{table}<!-- end -->\n"
    (problem,) = documented(tmp_path, marked)
    assert problem == "docs/more.md: kept by tests/test_table.py, which is not a file of the tests that names this page"
    (tmp_path / "tests" / "test_table.py").write_text('PAGE = "more.md"')
    assert documented(tmp_path, marked) == []
    assert "33," in documented(tmp_path, marked.replace("<!-- end -->", ""))[-1]
    (tmp_path / "more.py").write_text('PAGE = "more.md"')
    (problem,) = documented(tmp_path, marked.replace("tests/test_table.py", "more.py"))
    assert "kept by more.py" in problem
