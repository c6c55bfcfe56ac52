"""TRL plays terminal tasks of both sources, on each runtime that the machine has."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from ors_containers import runtime_names

from ors_server import Settings
from ors_server.sandboxes import sandboxes_unavailable
from tests.environments.terminal.folders import run_tasks
from tests.environments.terminal.parts import endless, generated
from tests.environments.terminal.server import serving
from tests.long.test_trl import run_script, trl_python

__all__ = ["trl_python"]

pytestmark = pytest.mark.long

FAMILIES = ("csv_join", "links", "services")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one store for all servers, so that the graders' Python is made once."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(params=["bubblewrap", "apptainer"])
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param not in runtime_names():
        pytest.skip(f"there is no runtime {request.param}")
    if reason := asyncio.run(sandboxes_unavailable(Settings(sandbox_runtime=request.param))):
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("source", ["generated", "folders"])
def test_trl_plays_terminal_tasks(
    trl_python: Path,
    tmp_path: Path,
    images: Path,
    runtime: str,
    source: str,
) -> None:
    variables = {"ORS_SANDBOX_RUNTIME": runtime}
    arguments: list[str | Path] = []
    solutions: list[tuple[int, str | None]] = []
    names: list[str] = []
    if source == "generated":
        variables |= {"ORS_TERMINAL_FAMILIES": ",".join(FAMILIES), "ORS_TERMINAL_TRAIN_TASKS": "30"}
        made = generated.GeneratedSource(lambda program: True, families=FAMILIES, train_tasks=30, test_tasks=500)
        for index in (3, 4, 5):
            names.append(made.name("train", index))
            solutions.append((index, made.find(names[-1]).solution))
    else:
        done = run_tasks(images, "generate", *FAMILIES, "--count", "1", "--seed", "9", "--output", tmp_path / "tasks")
        assert done.returncode == 0, done.stderr
        folders = endless.EndlessSource([tmp_path / "tasks"])
        arguments = ["--tasks", tmp_path / "tasks"]
        for index in range(folders.count("train")):
            names.append(folders.name("train", index))
            solutions.append((index, folders.find(names[-1]).solution))
    (tmp_path / "solutions").write_text(json.dumps(solutions))

    with serving(tmp_path / "server", images, "terminal", "echo", *arguments, **variables) as url:
        report = run_script(trl_python, tmp_path / "report", "use_terminal.py", url, str(tmp_path / "solutions"))

    assert set(report["columns"]) == {"prompt", "task_index", "id"}
    expected = [{"task_index": index, "id": name} for (index, _), name in zip(solutions, names, strict=True)]
    assert report["rows"] == expected
    tools = {tool["name"]: tool["parameters"] for tool in report["tools"]}
    assert set(tools) == {"bash", "done"}
    assert tools["bash"]["required"] == ["command"]
    assert len(report["solved"]) == 2 * len(report["idle"]) == 2 * len(solutions)
    for played in report["solved"]:
        assert (played["rewards"], played["reward"], played["finished"]) == ([None, 1.0], 1.0, True), played
        assert "Call `done`" in played["prompt"]
        assert played["outputs"][-1] == "The task is solved."
    for played in report["idle"]:
        assert (played["rewards"], played["reward"], played["finished"]) == ([0.0], 0.0, True), played
