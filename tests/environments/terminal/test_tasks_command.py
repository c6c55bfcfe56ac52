"""``ors-server tasks``: folders are written, loaded back and verified; unsound tasks are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Service
from .folders import SOLUTION, run_tasks, write_folder
from .parts import endless, generated, reference_states, settings, writing


def verified(images: Path, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Return exit code and report of ``verify --json``."""
    done = run_tasks(images, "verify", *arguments, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


FAMILIES = ("checksums", "csv_join", "links")


async def write(service: Service, out: Path, *families: str, count: int = 1, seed: int = 0) -> list[Path]:
    return await writing.write_tasks(
        service, settings.TerminalSettings(), out, families, count=count, seed=seed, jobs=2
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_written_folders_load_back_as_the_same_tasks(service: Service, tmp_path: Path) -> None:
    written = await write(service, tmp_path / "out", *FAMILIES, count=2, seed=40)
    assert len(written) == 2 * len(FAMILIES)
    source = endless.EndlessSource([tmp_path / "out"], solvable_only=False)
    assert source.problems == []
    for path in written:
        found = source.find(path.name)
        name = json.loads((path / "task.json").read_text())["name"]
        family, _, seed = name.rpartition("-")
        original = generated.generated_task(family, int(seed))
        for field in ("prompt", "truth", "initial_tests", "grading", "start", "solution", "near_miss"):
            assert getattr(found, field) == getattr(original, field), (name, field)
        graded = await reference_states.completed(service, original, settings.TerminalSettings())
        assert found.final_tests == graded.final_tests
        assert "REFERENCE = {" in graded.final_tests


@pytest.mark.asyncio(loop_scope="module")
async def test_the_same_command_writes_the_same_bytes(service: Service, tmp_path: Path) -> None:
    for out in ("one", "two"):
        await write(service, tmp_path / out, "csv_join", "links", count=2, seed=5)
        reference_states.forget()
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert len(files) == 4 * 7
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.usefixtures("isolated")
def test_generated_folders_are_sound(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "generated"
    done = run_tasks(images, "generate", "permissions", "services", "--count", "1", "--seed", "12", "--output", out)
    assert done.returncode == 0, done.stderr
    assert "Wrote 2 tasks" in done.stdout
    code, report = verified(images, out)
    assert (code, report["sound"], report["checked"], report["left_out"]) == (0, 2, 2, [])
    for task in report["tasks"]:
        assert {name: check["outcome"] for name, check in task["checks"].items()} == dict.fromkeys(
            ("initial", "nothing", "solution", "near_miss"), "holds"
        ), task


UNSOUND: dict[str, tuple[dict[str, str | None], dict[str, str], str]] = {
    "task_sound": ({"solution.sh": SOLUTION}, {"initial": "holds", "nothing": "holds", "solution": "holds"}, ""),
    "task_initial": (
        {"test_initial_state.py": "def test_a(): assert 0, 'never so'"},
        {"initial": "fails", "nothing": "holds", "solution": "absent"},
        "never so",
    ),
    "task_nothing": (
        {"test_final_state.py": "def test_a(): pass"},
        {"initial": "holds", "nothing": "fails"},
        "the tests pass",
    ),
    "task_solution": (
        {"solution.sh": "echo tried; exit 3"},
        {"solution": "fails", "near_miss": "absent"},
        "it ended with 3: tried",
    ),
    "task_near_miss": ({"near_miss.sh": SOLUTION}, {"near_miss": "fails"}, "the tests pass"),
    "task_network": (
        {"test_final_state.py": "import socket\ndef test_a(): socket.create_connection(('192.0.2.7', 80), 1)"},
        {"initial": "holds", "nothing": "error"},
        "need the network: 192.0.2.7",
    ),
    "task_import": (
        {"test_final_state.py": "import json.nothing\ndef test_a(): pass"},
        {"nothing": "error"},
        "cannot be imported",
    ),
    "task_running": (
        {
            "test_final_state.py": "import types\ndef test_a():\n"
            "  code = compile(open('/home/user/answer.txt').read(), '<answer>', 'exec')\n"
            "  types.FunctionType(code, {})()",
            "solution.sh": SOLUTION,
        },
        {"nothing": "holds", "solution": "error"},
        "run code of the sandbox inside the grader: a function made of code",
    ),
    "task_post": (
        {"container.def": "Bootstrap: localimage\nFrom: host\n\n%post\n    true\n    false\n"},
        {"initial": "error"},
        "container.def",
    ),
}


@pytest.mark.long
@pytest.mark.usefixtures("isolated")
def test_unsound_tasks_are_reported(images: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    for name, (files, _, _) in UNSOUND.items():
        write_folder(tasks, name, files=files)
    write_folder(tasks, "task_missing", files={"test_initial_state.py": None})
    broken = {
        "task_base": ("From: ./nowhere.sif\n", "line 2: The base ./nowhere.sif is neither at"),
        "task_files": ("From: host\n%files\n  ../task_sound/solution.sh /x\n", "line 4: %files names ../task_sound"),
        "task_section": ("From: host\n%pots\n", "line 3: The section %pots is not known"),
    }
    for name, (text, _) in broken.items():
        write_folder(tasks, name, files={"container.def": f"Bootstrap: localimage\n{text}"})
    code, report = verified(images, tasks, "--jobs", "3")
    assert (code, report["sound"], report["checked"]) == (1, 1, len(UNSOUND))
    left_out = sorted(report["left_out"])
    assert left_out.pop(2) == f"{tasks}/task_missing/test_initial_state.py: the file is missing"
    for problem, (name, (_, words)) in zip(left_out, broken.items(), strict=True):
        assert problem.startswith(f"{tasks}/{name}/container.def, {words}")
    by_name = {task["name"]: task for task in report["tasks"]}
    for name, (_, outcomes, words) in UNSOUND.items():
        checks = by_name[name]["checks"]
        for check, outcome in outcomes.items():
            assert checks[check]["outcome"] == outcome, (name, checks)
        assert words in json.dumps(checks), (name, checks)

    shown = run_tasks(images, "verify", tasks / "task_sound", tasks / "task_nothing")
    assert shown.returncode == 1
    assert "1 of 2 tasks are sound" in shown.stdout
    assert "doing nothing earns 0: the tests pass" in shown.stdout
    assert "task_sound" not in shown.stdout


IMPORTING = {
    "test_final_state.py": "import subprocess, sys\nsys.path.insert(0, '/home/user')\nfrom answer import answer\n"
    "def test_a():\n  assert answer() == 42\n"
    "  assert subprocess.run(['cat', '/home/user/answer.py']).returncode == 0\n",
    "solution.sh": "echo 'def answer(): return 42' > /home/user/answer.py\n",
    "near_miss.sh": "echo 'def answer(): return 41' > /home/user/answer.py\n",
}


@pytest.mark.long
@pytest.mark.usefixtures("isolated")
def test_tests_that_import_the_agents_code_are_left_out_or_marked(images: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "tasks", "task_importing", files=IMPORTING)
    write_folder(tmp_path / "tasks", "task_sound")
    code, report = verified(images, tmp_path / "tasks")
    assert (code, [task["name"] for task in report["tasks"]]) == (1, ["task_sound"])
    (left_out,) = report["left_out"]
    assert "line 3: the tests import answer" in left_out

    shown = run_tasks(images, "verify", tmp_path / "tasks", "--all", "--tests-import-code", "flag")
    assert (shown.returncode, "2 of 2 tasks are sound" in shown.stdout) == (0, True), shown.stdout + shown.stderr
    assert "task_importing: the agent's code ran in the tests' process" in shown.stdout
    assert "task_importing, test_a: cat reads /home/user/answer.py\n" in shown.stdout
    code, report = verified(images, tmp_path / "tasks" / "task_importing", "--tests-import-code", "flag")
    (task,) = report["tasks"]
    assert (code, task["verdict_mark"]) == (0, "the agent's code ran in the tests' process")
    assert task["programs"] == [
        {"test": "test_a", "program": "cat", "places": ["/home/user/answer.py"], "agents": False, "seen": True}
    ]
    assert {name: check["outcome"] for name, check in task["checks"].items()} == dict.fromkeys(
        ("initial", "nothing", "solution", "near_miss"), "holds"
    )


@pytest.mark.long
@pytest.mark.usefixtures("isolated")
def test_mistakes_are_reported_without_a_traceback(tmp_path: Path) -> None:
    for arguments in (
        ("verify", tmp_path / "nowhere"),
        ("verify", tmp_path),
        ("generate", "no_such_family", "--output", tmp_path / "out"),
    ):
        done = run_tasks(tmp_path, *arguments)
        assert done.returncode == 2
        assert "Error: " in done.stderr
        assert "Traceback" not in done.stderr
    folder = tmp_path / "out"
    first = run_tasks(tmp_path, "generate", "links", "--count", "1", "--output", folder)
    assert first.returncode == 0, first.stderr
    again = run_tasks(tmp_path, "generate", "links", "--count", "1", "--output", folder)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
