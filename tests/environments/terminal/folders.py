"""Task folders in the published form, written for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["DEFINITION", "FINAL", "INITIAL", "SOLUTION", "run_tasks", "tasks_command", "write_folder"]

DEFINITION = (
    "Bootstrap: localimage\nFrom: host\n\n%post\n    mkdir -p /home/user\n    echo 41 > /home/user/number.txt\n"
)
INITIAL = """
import os

def test_number_is_there():
    assert open("/home/user/number.txt").read() == "41\\n"

def test_answer_is_not():
    assert not os.path.exists("/home/user/answer.txt")
"""
FINAL = """
def test_answer():
    assert open("/home/user/answer.txt").read() == "42\\n"
"""
SOLUTION = "echo $(($(cat /home/user/number.txt) + 1)) > /home/user/answer.txt\n"


def write_folder(
    parent: Path,
    name: str,
    *,
    words: Mapping[str, Any] | None = None,
    files: Mapping[str, str | None] | None = None,
    rate: float | None = None,
) -> Path:
    """Write one task; ``words`` override those of task.json, ``files`` the files. None leaves a file out."""
    folder = parent / name
    folder.mkdir(parents=True)
    description = {
        "description": "Write the number after the one in number.txt.",
        "truth": "SECRET-TRUTH",
        "name": name,
    }
    content: dict[str, str | None] = {
        "task.json": json.dumps({**description, **(words or {})}),
        "container.def": DEFINITION,
        "test_initial_state.py": INITIAL,
        "test_final_state.py": FINAL,
        **(files or {}),
    }
    for file, text in content.items():
        if text is not None:
            (folder / file).write_text(text)
    if rate is not None:
        (folder / "solutions").mkdir()
        (folder / "solutions" / "summary.json").write_text(json.dumps({"pass_at_k": {"16": rate}}))
    return folder


def tasks_command(images: Path, *arguments: str | Path) -> tuple[list[str], dict[str, str]]:
    """Return the program ``ors-server tasks`` with its arguments, and its variables, for a store of images."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ORS_")}
    command = [sys.executable, "-m", "ors_cli", "tasks", *map(str, arguments)]
    return command, clean | {"ORS_IMAGES": str(images), "COLUMNS": "200"}


def run_tasks(images: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``ors-server tasks`` with a store of images."""
    command, variables = tasks_command(images, *arguments)
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
