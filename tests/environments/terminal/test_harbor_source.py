"""Harbor tasks beside those of Endless Terminals: where folders are found, names, and why a session is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ors_clients import Client
from ors_clients import InfrastructureFailure as ClientFailure

from ors_server import DefinitionError, InfrastructureFailure
from ors_server.hosting.errors import InvalidTask

from .folders import run_tasks, write_folder
from .harbor_folders import GOOD, write_harbor_folder
from .parts import endless, harbor_discovery, harbor_source, settings, task_folders
from .server import serving

ID = "32jwhKUpinr5p6FTd8JQkm"
DIGEST = "0123456789abcdef" * 4


def found(parent: Path) -> list[str]:
    return [each.folder.relative_to(parent).as_posix() for each in harbor_discovery.find_harbor_folders(parent)]


def source(folder: Path, **changes: Any) -> Any:
    return task_folders.FolderSource([folder], settings.TerminalSettings(**changes))


def names(tasks: Any, split: str = "train") -> list[str]:
    return [tasks.name(split, index) for index in range(tasks.count(split))]


def test_a_task_and_a_folder_of_tasks_are_found(tmp_path: Path) -> None:
    write_harbor_folder(tmp_path, "b")
    write_harbor_folder(tmp_path, "a")
    write_harbor_folder(tmp_path, "deeper/c")
    write_harbor_folder(tmp_path, ".hidden")
    (tmp_path / "notes").mkdir()
    assert found(tmp_path) == ["a", "b"]
    assert found(tmp_path / "a") == ["."]


def test_the_cache_of_downloads_is_found(tmp_path: Path) -> None:
    tasks = tmp_path / "harbor" / "tasks"
    write_harbor_folder(tasks, f"{ID}/from-git")
    write_harbor_folder(tasks, f"packages/org/packed/{DIGEST}")
    write_harbor_folder(tasks, "packages/org/packed/latest")
    write_harbor_folder(tasks, "packages/org/other/" + DIGEST.replace("0", "1"), config='[task]\nname = "org/Other"')
    places = [
        f"{ID}/from-git",
        f"packages/org/other/{DIGEST.replace('0', '1')}",
        f"packages/org/packed/{DIGEST}",
    ]
    assert found(tasks) == places
    assert found(tmp_path / "harbor") == [f"tasks/{place}" for place in places]
    assert names(source(tasks)) == ["from-git", "org/Other", "org/packed"]


def test_both_formats_lie_beside_each_other(tmp_path: Path) -> None:
    for number in range(20):
        write_folder(tmp_path, f"task_{number:06d}")
    alone = endless.EndlessSource([tmp_path])
    write_harbor_folder(tmp_path, "task_z")
    write_harbor_folder(tmp_path, "a")
    both = source(tmp_path)
    assert names(both) == [*names(alone), "a", "task_z"]
    assert names(both, "test") == names(alone, "test")
    assert [split.name for split in both.splits] == ["train", "test"]
    assert both.name("train", -1) == "task_z"
    with pytest.raises(IndexError):
        both.name("train", 20)
    assert both.problems == []
    assert both.find(names(both)[0]).prompt
    with pytest.raises(InvalidTask, match="no task 'b'"):
        both.find("b")


def test_a_task_that_is_not_prepared_is_refused_by_name(tmp_path: Path) -> None:
    write_harbor_folder(tmp_path, "a")
    with pytest.raises(harbor_source.NotPrepared) as refused:
        source(tmp_path).find("a")
    assert isinstance(refused.value, InfrastructureFailure)
    assert refused.value.cause == f"The Harbor task 'a' in {tmp_path / 'a'} is not prepared"
    assert refused.value.remedy == f"Prepare it: ors-server tasks prepare {tmp_path / 'a'}"


def test_a_broken_folder_is_left_out_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_harbor_folder(tmp_path, "broken", config="[agent]\ntimeout_sec = 0")
    write_harbor_folder(tmp_path, "capitals", {"task.toml": None, "TASK.toml": ""})
    write_harbor_folder(tmp_path, "good", config=GOOD["unknown keys"])
    with caplog.at_level("INFO", logger="ors_server.terminal"):
        tasks = source(tmp_path)
    assert names(tasks) == ["good"]
    assert len(tasks.problems) == 2
    assert f"{tmp_path}/broken/task.toml: agent.timeout_sec is 0" in caplog.text
    assert "TASK.toml is there, and case counts" in caplog.text
    assert f"{tmp_path}/good: keys without a meaning: environment.image" in caplog.text


def test_two_folders_of_one_name(tmp_path: Path) -> None:
    write_harbor_folder(tmp_path, "one", config='[task]\nname = "org/task"')
    write_harbor_folder(tmp_path, "two", config='[task]\nname = "Org/Task"')
    write_folder(tmp_path, "task_a")
    write_harbor_folder(tmp_path, "TASK_A")
    tasks = source(tmp_path)
    assert names(tasks) == ["task_a", "org/task"]
    assert sorted(tasks.problems) == [
        f"{tmp_path}/TASK_A: another task has the name 'TASK_A' already",
        f"{tmp_path}/two: {tmp_path}/one has the name 'Org/Task' already",
    ]


def test_a_folder_without_a_usable_task_is_an_error(tmp_path: Path) -> None:
    write_harbor_folder(tmp_path, "broken", config="steps = 3")
    with pytest.raises(DefinitionError, match=r"No Harbor task of 1 can be used: .*task.toml: steps is 3"):
        source(tmp_path)
    with pytest.raises(DefinitionError, match="does not exist"):
        source(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DefinitionError, match="holds no task"):
        source(tmp_path / "empty")


def test_a_task_that_changes_is_read_again(tmp_path: Path) -> None:
    folder = write_harbor_folder(tmp_path, "a")
    tasks = source(tmp_path)
    (folder / "task.toml").write_text("x")
    with pytest.raises(InfrastructureFailure, match=r"can no longer be read: .*task\.toml, line 1"):
        tasks.find("a")


def test_only_variables_that_the_operator_names_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_harbor_folder(tmp_path, "a", config='[environment.env]\nX = "${MY_KEY}"\n[solution.env]\nY = "${OTHER}"')
    monkeypatch.setenv("MY_KEY", "secret")
    with pytest.raises(InfrastructureFailure, match="the variables MY_KEY are missing") as refused:
        source(tmp_path).find("a")
    assert "ORS_TERMINAL_TASK_VARIABLES" in refused.value.remedy
    # The solution's variables are needed by the solution alone.
    with pytest.raises(harbor_source.NotPrepared):
        source(tmp_path, task_variables="OTHER, MY_KEY").find("a")


def test_verify_names_tasks_that_are_not_prepared(tmp_path: Path) -> None:
    folder = write_harbor_folder(tmp_path / "tasks", "a")
    done = run_tasks(tmp_path / "images", "verify", folder)
    assert done.returncode == 2
    assert f"left out: The Harbor task 'a' in {folder} is not prepared" in done.stdout
    assert f"Prepare it: ors-server tasks prepare {folder}" in done.stdout
    assert not (tmp_path / "images").exists()


def test_a_session_is_refused_with_the_reason_and_the_remedy(tmp_path: Path, images: Path, isolated: None) -> None:
    write_harbor_folder(tmp_path / "tasks", "hello")
    write_harbor_folder(tmp_path / "tasks", "broken", config="[agent")
    with (
        serving(tmp_path / "server", images, "terminal", "--tasks", tmp_path / "tasks") as url,
        Client(url) as client,
    ):
        environment = client.environment("terminalenvironment")
        (task,) = environment.tasks("train")
        with (
            pytest.raises(ClientFailure, match=r"The Harbor task 'hello' in .* is not prepared") as refused,
            environment.session(task=task) as session,
        ):
            session.prompt()
        assert "ors-server tasks prepare" in str(refused.value)
    log = (tmp_path / "server" / "log").read_text()
    assert "broken/task.toml, line 1: it is not TOML" in log
