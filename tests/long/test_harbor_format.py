"""Folders of Harbor tasks and reward files are read as Harbor reads them: equal field by field, and refused with it.

``ORS_HARBOR_PYTHON`` names a Python that has ``harbor`` 0.24 (it needs Python 3.12), ``ORS_HARBOR_TASKS`` folders of
published tasks, separated as in PATH: checkouts of env-skillsbench and harbor-cookbook, for example.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.environments.terminal.harbor_folders import BROKEN, GOOD, write_broken, write_harbor_folder
from tests.environments.terminal.harbor_rewards import REWARDS
from tests.environments.terminal.parts import harbor_folder, task, terminal_bench
from tests.environments.terminal.terminal_bench_folders import CONVERTED, write_terminal_bench_folder

pytestmark = pytest.mark.long

SCRIPTS = Path(__file__).resolve().parent / "harbor"
#: A published folder that is good for Harbor and refused here has one of these in its error.
NOT_SUPPORTED = ("compose files", "several steps", "MCP servers", "GPUs", "Windows")


@pytest.fixture(scope="module")
def python() -> str:
    """Return a Python that has Harbor, of the version that the format was taken from."""
    found = os.environ.get("ORS_HARBOR_PYTHON", "")
    if not found:
        pytest.skip("ORS_HARBOR_PYTHON names no Python that has the package harbor")
    code = "import importlib.metadata; print(importlib.metadata.version('harbor'))"
    shown = subprocess.run([found, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    if not shown.startswith("0.24."):
        pytest.skip(f"{found} has harbor {shown.strip()}, not 0.24")
    return found


def read_by_harbor(python: str, folders: Sequence[Path], script: str = "read_folders.py") -> list[Any]:
    given = json.dumps([str(folder) for folder in folders])
    done = subprocess.run(
        [python, SCRIPTS / script], input=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def problem_of(folder: Path) -> str:
    """Return the reason why a folder is refused here; empty where it is read."""
    try:
        harbor_folder.read_harbor_task(folder)
    except task.FolderProblem as problem:
        return str(problem)
    return ""


def compare(folder: Path, theirs: dict[str, Any]) -> None:
    """Check that a folder is read here, and to the same values."""
    found = harbor_folder.read_harbor_task(folder)
    assert "error" not in theirs, (folder, theirs)
    assert found.name == theirs["name"]
    assert found.instruction == theirs["instruction"]
    ours = found.config.model_dump(mode="json")
    assert ours.keys() == theirs["config"].keys()
    for key, value in ours.items():
        assert value == theirs["config"][key], (folder, key)


def test_good_folders_are_equal_field_by_field(python: str, tmp_path: Path) -> None:
    folders = [
        write_harbor_folder(tmp_path, f"task-{number}", config=text) for number, text in enumerate(GOOD.values())
    ]
    assert len(folders) >= 30
    for folder, theirs in zip(folders, read_by_harbor(python, folders), strict=True):
        compare(folder, theirs)


def test_broken_folders_are_refused_by_both(python: str, tmp_path: Path) -> None:
    faults = [fault for fault, broken in BROKEN.items() if broken.also_harbor is not None]
    assert len(faults) >= 40
    folders = [write_broken(tmp_path, fault) for fault in faults]
    read = read_by_harbor(python, folders)
    refused = {fault for fault, theirs in zip(faults, read, strict=True) if "error" in theirs}
    assert refused == {fault for fault in faults if BROKEN[fault].also_harbor}
    for folder in folders:
        with pytest.raises(task.FolderProblem):
            harbor_folder.read_harbor_task(folder)


def test_published_folders_are_equal_or_refused_by_name(python: str) -> None:
    parents = [Path(each) for each in os.environ.get("ORS_HARBOR_TASKS", "").split(os.pathsep) if each]
    if not parents:
        pytest.skip("ORS_HARBOR_TASKS names no folder of published tasks")
    folders = sorted(file.parent for parent in parents for file in parent.rglob("task.toml"))
    equal, refused = 0, list[str]()
    for folder, theirs in zip(folders, read_by_harbor(python, folders), strict=True):
        if problem := problem_of(folder):
            assert "error" in theirs or any(words in problem for words in NOT_SUPPORTED), problem
            refused.append(problem)
        else:
            compare(folder, theirs)
            equal += 1
    print(f"{equal} equal, {len(refused)} refused of {len(folders)}", *refused, sep="\n")
    assert equal > len(folders) / 2


#: Reward files that give no reward here, and one there: a limit, and rules for several numbers.
STRICTER = {"an empty object", "a number too large", "a text above the limit", "several keys, none of them the reward"}


def test_rewards_are_read_alike(python: str, tmp_path: Path) -> None:
    for name, (files, _) in REWARDS.items():
        (tmp_path / name).mkdir()
        for file, content in zip(("reward.json", "reward.txt"), files, strict=True):
            if content is not None:
                (tmp_path / name / file).write_bytes(content)
    read = read_by_harbor(python, [tmp_path / name for name in REWARDS], "read_rewards.py")
    for (name, (_, expected)), theirs in zip(REWARDS.items(), read, strict=True):
        refused = "error" in theirs
        assert refused == (isinstance(expected, str) and name not in STRICTER), (name, theirs)
        if isinstance(expected, float):
            assert expected in theirs.values(), (name, theirs)


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files of converted tasks, with content and mode, except for their settings."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "task.toml")
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode) for path in found}


def test_folders_of_terminal_bench_become_the_same_files(python: str, tmp_path: Path) -> None:
    for number, changes in enumerate(CONVERTED.values()):
        write_terminal_bench_folder(tmp_path / "in", f"task-{number}", changes)
    arguments = [python, SCRIPTS / "convert_folders.py", tmp_path / "in", tmp_path / "theirs"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == []
    ours = terminal_bench.convert_tasks(tmp_path / "in", tmp_path / "ours")
    assert ours.problems == []
    assert len(files(tmp_path / "ours")) > 5 * len(CONVERTED)
    assert files(tmp_path / "ours") == files(tmp_path / "theirs")
    names = [path.name for path in ours.written]
    assert read_by_harbor(python, [tmp_path / "ours" / name for name in names]) == read_by_harbor(
        python, [tmp_path / "theirs" / name for name in names]
    )
