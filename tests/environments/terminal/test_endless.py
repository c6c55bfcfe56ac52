"""Folders of Endless Terminals tasks: splits and filters as published, and the report of broken folders."""

from __future__ import annotations

import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ors_containers.images import ImageRecord

from ors_server import DefinitionError, InfrastructureFailure
from ors_server.hosting.errors import InvalidTask

from .folders import FINAL, write_folder
from .parts import endless, task


def names(count: int) -> list[str]:
    return [f"task_{number:06d}_{number:08x}" for number in range(count)]


def members(source: endless.EndlessSource, split: str) -> list[str]:
    return [source.name(split, index) for index in range(source.count(split))]


def test_splits_are_the_published_ones(tmp_path: Path) -> None:
    for name in names(230):
        write_folder(tmp_path, name)
    source = endless.EndlessSource([tmp_path])
    # As in the published code.
    expected = sorted(os.listdir(tmp_path))  # noqa: PTH208
    random.seed(42)
    random.shuffle(expected)
    assert members(source, "train") == expected[:-100]
    assert members(source, "test") == expected[-100:]
    assert [(split.name, split.type) for split in source.splits] == [("train", "train"), ("test", "test")]
    assert source.name("test", -1) == expected[-1]
    with pytest.raises(IndexError):
        source.name("test", 100)


@pytest.mark.parametrize(("count", "evaluation"), [(1, 0), (9, 0), (10, 1), (55, 5), (199, 19)])
def test_a_small_collection_gives_a_tenth(tmp_path: Path, count: int, evaluation: int) -> None:
    for name in names(count):
        write_folder(tmp_path, name)
    source = endless.EndlessSource([tmp_path])
    assert source.count("train") == count - evaluation
    assert [split.name for split in source.splits] == (["train", "test"] if evaluation else ["train"])


def test_a_damaged_copy_has_the_splits_of_a_whole_one(tmp_path: Path) -> None:
    for name in names(20):
        write_folder(tmp_path / "whole", name)
        write_folder(tmp_path / "damaged", name, files={"test_final_state.py": None} if name.endswith("3") else {})
    whole, damaged = (endless.EndlessSource([tmp_path / name]) for name in ("whole", "damaged"))
    for split in ("train", "test"):
        assert members(damaged, split) == [name for name in members(whole, split) if not name.endswith("3")]
    assert len(damaged.problems) == 2


def test_training_keeps_solved_tasks(tmp_path: Path) -> None:
    rates = [None, 0.0, 0.25, 0, 1]
    for index, name in enumerate(names(30)):
        write_folder(tmp_path, name, rate=rates[index % 5])
    source = endless.EndlessSource([tmp_path])
    everything = endless.EndlessSource([tmp_path], solvable_only=False)
    kept = members(source, "train")
    assert kept == [name for name in members(everything, "train") if int(name[5:11]) % 5 not in (1, 3)]
    assert members(source, "test") == members(everything, "test")
    # It can still be played by its name.
    assert source.find(next(name for name in members(everything, "train") if name not in kept)).prompt


def test_the_newer_summary_wins(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "task_a", rate=0.0)
    write_folder(tmp_path, "task_b", rate=0.0)
    (folder / "solutions" / "o3_summary.json").write_text('{"pass_at_k": {"1": 0.0, "16": 0.5}}')
    assert members(endless.EndlessSource([tmp_path]), "train") == ["task_a"]


def test_a_task_is_read_whole(tmp_path: Path) -> None:
    write_folder(
        tmp_path,
        "task_a",
        words={"grading": "live", "start": "sleep 100 &"},
        files={"solution.sh": "true", "near_miss.sh": "false", "container.sif": "image"},
    )
    found = endless.read_task(tmp_path / "task_a")
    assert (found.name, found.grading, found.start) == ("task_a", "live", "sleep 100 &")
    assert (found.solution, found.near_miss, found.truth) == ("true", "false", "SECRET-TRUTH")
    assert found.final_tests == FINAL
    definition, archive = tmp_path / "task_a" / "container.def", tmp_path / "task_a" / "container.sif"
    assert found.image == task.BuiltImage(definition, archive, (5, archive.stat().st_mtime_ns))


BROKEN: dict[str, tuple[dict[str, Any], dict[str, str | None], str]] = {
    "no task.json": ({}, {"task.json": None}, "task.json: the file is missing"),
    "no JSON": ({}, {"task.json": '{\n"description": '}, "task.json, line 2: it is no JSON"),
    "a list": ({}, {"task.json": "[]"}, "task.json: it is no JSON object"),
    "deep JSON": ({}, {"task.json": "[" * 100_000}, "task.json"),
    "no description": ({"description": None}, {}, 'task.json: its "description" is missing'),
    "a number for a description": ({"description": 3}, {}, 'task.json: its "description" is no text'),
    "an empty description": ({"description": " "}, {}, 'task.json: its "description" is no text'),
    "unknown grading": ({"grading": "warm"}, {}, "task.json: its \"grading\" is 'warm'"),
    "no image": ({}, {"container.def": None}, "container.def: the folder has neither this file nor container.sif"),
    "an empty definition": ({}, {"container.def": ""}, "container.def: It says no `Bootstrap:`"),
    "no bootstrap": ({}, {"container.def": "From: host\n"}, "container.def: It says no `Bootstrap:`"),
    "an unknown section": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: host\n%pots\n"},
        "container.def, line 3: The section %pots is not known",
    ),
    "a set-up on this machine": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: host\n%setup\n  true\n"},
        "container.def, line 3: %setup runs on the machine that builds",
    ),
    "no base": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: ./nowhere.sif\n"},
        "container.def, line 2: The base ./nowhere.sif is neither at",
    ),
    "a text for a base": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: ./base.sif\n", "base.sif": "text"},
        "container.def, line 2: ",
    ),
    "a base of this machine": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: /\n"},
        "container.def, line 2: The base / is outside of the definition's folder",
    ),
    "no source": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: host\n%files\n  nothing /x\n"},
        "container.def, line 4: %files names nothing, which is not there",
    ),
    "a file of this machine": (
        {},
        {"container.def": "Bootstrap: localimage\nFrom: host\n%files\n  /etc/shadow /x\n"},
        "container.def, line 4: %files names /etc/shadow, which is outside",
    ),
    "a root file system by debootstrap": (
        {},
        {"container.def": "Bootstrap: debootstrap\nOSVersion: bookworm\n"},
        "container.def, line 2: debootstrap works as root of this machine",
    ),
    "a text for a SIF": ({}, {"container.sif": "text"}, "container.sif is not an image"),
    "no initial tests": ({}, {"test_initial_state.py": None}, "test_initial_state.py: the file is missing"),
    "no final tests": ({}, {"test_final_state.py": None}, "test_final_state.py: the file is missing"),
    "a syntax error": (
        {},
        {"test_final_state.py": "def test_a():\n  )"},
        "test_final_state.py, line 2: it is no Python",
    ),
    "no test": ({}, {"test_final_state.py": "import os"}, "test_final_state.py: it has no test"),
    "NUL": ({}, {"test_final_state.py": "def test_a(): '\0'"}, "test_final_state.py: it is no Python"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_folder_is_reported_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    words, files, expected = BROKEN[how]
    write_folder(tmp_path, "task_broken", words=words, files=files)
    write_folder(tmp_path, "task_good")
    source = endless.EndlessSource([tmp_path])
    assert members(source, "train") == ["task_good"]
    (problem,) = source.problems
    assert problem.startswith(f"{tmp_path}/task_broken/{expected}"), problem
    assert problem in caplog.text
    with pytest.raises(InvalidTask):
        source.find("task_broken")
    with pytest.raises(DefinitionError, match="task_broken"):
        endless.EndlessSource([tmp_path / "task_broken"])


def test_an_archive_is_not_a_sif(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "task_a")
    with tarfile.open(folder / "container.sif", "w") as archive:
        archive.add(folder / "task.json", "bin/task.json")
    write_folder(tmp_path, "task_b")
    (problem,) = endless.EndlessSource([tmp_path]).problems
    assert problem == f"{folder}/container.sif: it is no SIF, Apptainer's image file"


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    names = ("task.json", "container.def", "container.sif", "test_initial_state.py", "test_final_state.py")
    for name in (*names, "solution.sh", "near_miss.sh"):
        folder = write_folder(tmp_path, f"task_{name}", files={name: None})
        os.mkfifo(folder / name)
    based = write_folder(tmp_path, "task_base", files={"container.def": "Bootstrap: localimage\nFrom: ./base.sif\n"})
    os.mkfifo(based / "base.sif")
    write_folder(tmp_path, "task_good")
    source = endless.EndlessSource([tmp_path])
    assert source.names == ["task_good"]
    assert len(source.problems) == 8
    assert all("regular file" in problem for problem in source.problems)


def test_a_base_may_be_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORS_IMAGES", str(tmp_path / "store"))
    definition = "Bootstrap: localimage\nFrom: ./ubuntu_22.04.sif\n"
    write_folder(tmp_path / "tasks", "task_a", files={"container.def": definition})
    with pytest.raises(DefinitionError, match=r"ors-server image import FILE --name ubuntu_22\.04"):
        endless.EndlessSource([tmp_path / "tasks"])
    (tmp_path / "store/images").mkdir(parents=True)
    ImageRecord("ubuntu:22.04", ("0" * 64,)).save(tmp_path / "store/images")
    assert endless.EndlessSource([tmp_path / "tasks"]).problems == []


@pytest.mark.parametrize("rate", ['"high"', "null", "true", "{}"])
def test_a_summary_that_says_nothing_is_reported(tmp_path: Path, rate: str) -> None:
    folder = write_folder(tmp_path, "task_a", rate=0.5)
    (folder / "solutions" / "summary.json").write_text(f'{{"pass_at_k": {{"16": {rate}}}}}')
    write_folder(tmp_path, "task_b")
    (problem,) = endless.EndlessSource([tmp_path]).problems
    assert problem.startswith(f"{folder}/solutions/summary.json")


def test_files_that_are_not_text_are_reported(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "task_a")
    (folder / "test_final_state.py").write_bytes(b"def test_a(): '\xff'")
    write_folder(tmp_path, "task_b")
    (problem,) = endless.EndlessSource([tmp_path]).problems
    assert problem == f"{folder}/test_final_state.py: it is no UTF-8 text"


def test_other_folders_and_files_are_not_tasks(tmp_path: Path) -> None:
    write_folder(tmp_path, "task_a")
    (tmp_path / "README.md").write_text("")
    (tmp_path / ".git").mkdir()
    source = endless.EndlessSource([tmp_path])
    assert (source.names, source.problems) == (["task_a"], [])


def test_several_folders_and_one_task_alone(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name in ((first, "task_a"), (second, "task_b"), (second, "task_a")):
        write_folder(folder, name)
    source = endless.EndlessSource([first, second / "task_b", second])
    assert sorted(source.names) == ["task_a", "task_b"]
    assert [problem.partition(":")[0] for problem in source.problems] == [f"{second}/task_a", f"{second}/task_b"]
    assert source.find("task_a").origin == str(first / "task_a")


@pytest.mark.parametrize("make", ["nothing", "file", "empty"])
def test_a_folder_without_tasks_keeps_the_server_from_starting(tmp_path: Path, make: str) -> None:
    folder = tmp_path / "tasks"
    if make == "file":
        folder.write_text("")
    elif make == "empty":
        folder.mkdir()
    with pytest.raises(DefinitionError, match=str(folder)) as raised:
        endless.EndlessSource([folder])
    assert "ORS_TERMINAL_TASKS" in raised.value.remedy


def test_nothing_solvable_says_so(tmp_path: Path) -> None:
    write_folder(tmp_path, "task_a", rate=0.0)
    with pytest.raises(DefinitionError, match="SOLVABLE_ONLY"):
        endless.EndlessSource([tmp_path])


def test_a_folder_that_goes_away_is_the_machines_failure(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "task_a")
    source = endless.EndlessSource([tmp_path])
    (folder / "task.json").write_text(json.dumps({"description": ""}))
    with pytest.raises(InfrastructureFailure, match="task_a"):
        source.find("task_a")


def test_a_task_is_read_again_when_a_file_of_it_changes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "task_a")
    source = endless.EndlessSource([tmp_path])
    first = source.find("task_a")
    assert source.find("task_a") is first
    (folder / "solution.sh").write_text("true\n")
    second = source.find("task_a")
    assert second.solution == "true\n"
    (folder / "solution.sh").unlink()
    assert source.find("task_a") == first
