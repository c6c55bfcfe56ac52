"""The task that every candidate plays: its files, eight light commands with their output, its solution and its tests.

It is one of the published form, with tests that are functions and do not need pytest.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["COMMANDS", "SOLUTION", "SOLVED", "fill", "write_folder"]

_HOME = "/home/user"
_LOG = f"{_HOME}/access.log"
_REPORT = f"{_HOME}/report.json"
_LINES = [f"10.0.{each % 7}.{each % 5} {each} {200 + each % 11 * 30} /page/{each % 13}" for each in range(300)]
_TEXT = "".join(f"{line}\n" for line in _LINES)
_FAILED = [line for line in _LINES if int(line.split()[2]) >= 500]
#: Commands of an agent that looks around, with the line that each prints: a shell by hand answers with a line.
COMMANDS: tuple[tuple[str, str], ...] = (
    (f"cd {_HOME} && pwd", _HOME),
    (f"ls {_HOME}", "access.log"),
    (f"wc -l < {_LOG}", str(len(_LINES))),
    (f"head -n 1 {_LOG}", _LINES[0]),
    (f"tail -n 1 {_LOG}", _LINES[-1]),
    (f"grep -c ' 500 ' {_LOG}", str(sum(" 500 " in line for line in _LINES))),
    (f"cut -d' ' -f1 {_LOG} | sort -u | wc -l", str(len({line.split()[0] for line in _LINES}))),
    (f"awk '$3 >= 500' {_LOG} | wc -l", str(len(_FAILED))),
)
#: Solves it, as the generated tasks are solved, and prints the line ``SOLVED``.
SOLUTION = f"""python3 - <<'END'
import csv, json
rows = list(csv.reader(open("{_LOG}"), delimiter=" "))
failed = sum(int(status) >= 500 for _, _, status, _ in rows)
json.dump({{"lines": len(rows), "failed": failed}}, open("{_REPORT}", "w"))
print("written")
END"""
SOLVED = "written"
_TESTS = f'''
import json
import os


def read():
    with open("{_REPORT}") as file:
        return json.load(file)


def test_the_report_is_there():
    assert os.path.isfile("{_REPORT}")


def test_it_counts_lines():
    assert read()["lines"] == {len(_LINES)}


def test_it_counts_failed_requests():
    assert read()["failed"] == {len(_FAILED)}


def test_the_log_is_unchanged():
    with open("{_LOG}") as file:
        assert file.read() == {_TEXT!r}
'''
_INITIAL = f"""
import os


def test_the_log_is_there():
    assert os.path.isfile("{_LOG}")
"""
#: Calls each test plainly; exit status 0 where all pass.
_PLAIN = """
import sys

names = {}
exec(compile(open("/tests/test_final_state.py").read(), "test_final_state.py", "exec"), names)
for name, test in list(names.items()):
    if name.startswith("test_"):
        test()
"""
_WORDS = {"name": "report", "description": f"Count lines and failed requests of {_LOG} into {_REPORT}.", "truth": ""}


def write_folder(parent: Path) -> None:
    """Write the task's folder into ``parent``, a folder of tasks."""
    folder = parent / "report"
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(_WORDS))
    (folder / "access.log").write_text(_TEXT)
    (folder / "container.def").write_text(f"Bootstrap: localimage\nFrom: host\n\n%files\n    access.log {_LOG}\n")
    (folder / "test_initial_state.py").write_text(_INITIAL)
    (folder / "test_final_state.py").write_text(_TESTS)
    (folder / "solution.sh").write_text(f"{SOLUTION}\n")


def fill(root: Path, tests: Path) -> None:
    """Put the task's files into the root of an image, and its tests into a folder, with a program that calls them."""
    log = root / _LOG.lstrip("/")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(_TEXT)
    (tests / "test_final_state.py").write_text(_TESTS)
    (tests / "plain.py").write_text(_PLAIN)
