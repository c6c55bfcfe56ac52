"""The list that `make test` ends with: the tests that did not run in any of its processes, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

#: Stand-in for the programs in `.venv/bin` and for Python: its tests of sandboxes leave some out, and fail.
STUB = """#!/bin/sh
case "$*" in
tests/benchmarks*) echo "some are left out" >> "$NOT_RUN"; exit 1 ;;
tests/environments*) echo "a few are left out" >> "$NOT_RUN" ;;
--ignore=*) echo "others are left out" >> "$NOT_RUN" ;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_one_place_lists_what_all_processes_left_out(tmp_path: Path) -> None:
    """At the end, also after failed tests; and without entries from an earlier run."""
    for folder in ("scripts", "bin", ".venv"):
        (tmp_path / folder).mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    programs = ("python", "pip", "ruff", "lint-imports", "mkdocs", "pyright", "pytest")
    for name in ("scripts/debian-packages", *(f"bin/{program}" for program in programs)):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "BIN=bin", "PYTHON=bin/python", "test"]
    for _ in range(2):
        ended = subprocess.run(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True, timeout=60)
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
