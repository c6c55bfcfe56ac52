"""Programs that `make serve`, `venv` and `test` run, and their order, in a clone whose path has spaces and a quote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: Stand-in for Python and for the programs in `.venv/bin`: records its arguments.
STUB = """#!/bin/sh
echo "${0##*/} $*" >> "$CALLS"
case "$*" in
"-m venv"*)
    for last in "$@"; do :; done
    mkdir -p "$last/bin"
    for program in pip python ors-server ruff lint-imports mkdocs pyright pytest; do
        cp "$0" "$last/bin/$program"
    done ;;
bubblewrap*) exit 1 ;;
tests/benchmarks*) echo "some are left out" >> "$NOT_RUN"; exit 1 ;;
tests/environments*) echo "a few are left out" >> "$NOT_RUN" ;;
--ignore=*) echo "others are left out" >> "$NOT_RUN" ;;
"-m long") echo "more are left out" >> "$NOT_RUN" ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy the Makefile beside stand-ins for every program that it runs."""
    folder = tmp_path / "a place with spaces" / "the clone's"
    (folder / "scripts").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for program in (folder / "scripts" / "debian-packages", folder / "python"):
        program.write_text(STUB)
        program.chmod(0o755)
    return folder


def made(clone: Path, target: str) -> list[str]:
    """Return the programs that `make TARGET` runs, each with its arguments."""
    calls = clone / "calls"
    calls.write_text("")
    assert make(clone, target).returncode == 0
    # Calls that only query its version and modules change nothing.
    return [call for call in calls.read_text().splitlines() if not call.startswith(("python --", "python -c"))]


def make(clone: Path, target: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    variables["CALLS"] = str(clone / "calls")
    command = ["make", "PYTHON=./python", target]
    return subprocess.run(command, cwd=clone, env=variables, stdout=subprocess.PIPE, text=True, timeout=60)


def installed(extra: str) -> str:
    return f"pip install --quiet --no-compile --disable-pip-version-check --editable .[{extra}]"


# the stub fails, because not every user may install packages
SANDBOXES = "debian-packages bubblewrap uidmap git sqlite3"
SERVED = "ors-server serve echo terminal"


def test_serving_installs_what_it_needs_and_no_more(clone: Path) -> None:
    assert made(clone, "serve") == ["python -m venv --clear .venv", installed("openreward"), SANDBOXES, SERVED]
    assert made(clone, "serve") == [SANDBOXES, SERVED]


def test_the_tools_of_development_come_on_top(clone: Path) -> None:
    made(clone, "serve")
    assert made(clone, "venv") == [installed("dev")]
    assert made(clone, "venv") == []
    assert made(clone, "serve") == [SANDBOXES, SERVED]


def test_other_metadata_make_the_environment_again(clone: Path) -> None:
    made(clone, "venv")
    with (clone / "pyproject.toml").open("a") as metadata:
        metadata.write("\n")
    assert made(clone, "venv") == ["python -m venv --clear .venv", installed("openreward"), installed("dev")]


def test_one_place_lists_what_all_processes_left_out(clone: Path) -> None:
    """At the end, also after failed tests; and without entries from an earlier run."""
    for _ in range(2):
        ended = make(clone, "test")
        assert ended.returncode != 0
        listed = ended.stdout.partition("Not run, of all processes:\n")[2].splitlines()
        assert sorted(listed) == ["a few are left out", "others are left out", "some are left out"]


def test_the_list_of_a_run(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\ndef test_a(): pytest.skip('no such machine')\n\ndef test_b(): pass\n"
    )
    listed = tmp_path / "new folder" / "not run"
    for selected in ("", "test_a"):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", selected, str(tmp_path)]
        variables = {**os.environ, "NOT_RUN": str(listed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=True)
    skipped = "1 skipped: no such machine\n    test_it.py::test_a\n"
    assert listed.read_text() == f"{skipped}1 tests were not selected; `make test-all` runs every test.\n{skipped}"


def test_every_folder_of_tests_is_run_by_one_process(clone: Path) -> None:
    """New folders included: they are run by the process whose command lists the folders to leave out."""
    calls = clone / "calls"
    make(clone, "test")
    *named, ignoring = sorted(
        (call.split()[1:] for call in calls.read_text().splitlines() if call.startswith("pytest ")),
        key=lambda arguments: arguments[0].startswith("--ignore="),
    )
    elsewhere = [folder for folders in named for folder in folders]
    assert len(elsewhere) == len(set(elsewhere))
    assert {f"--ignore={folder}" for folder in elsewhere} == set(ignoring)
    assert all((ROOT / folder).is_dir() for folder in elsewhere)
