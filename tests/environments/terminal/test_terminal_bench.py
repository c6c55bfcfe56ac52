"""Folders of Terminal-Bench 1 become folders of Harbor, or are left out by name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ors_server import DefinitionError

from .folders import run_tasks
from .parts import harbor_folder, terminal_bench
from .terminal_bench_folders import CONVERTED, LEFT_OUT, write_terminal_bench_folder


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_folder_is_read(tmp_path: Path, name: str) -> None:
    write_terminal_bench_folder(tmp_path / "in", "task", CONVERTED[name])
    done = terminal_bench.convert_tasks(tmp_path / "in", tmp_path / "out")
    assert (done.written, done.problems, done.notes) == ([tmp_path / "out" / "task"], [], [])
    found = harbor_folder.read_harbor_task(tmp_path / "out" / "task")
    assert (found.solution is None) == (name == "no solution")
    assert sorted(os.listdir(tmp_path / "out")) == ["task"]  # noqa: PTH208


def test_the_files_of_a_converted_task(tmp_path: Path) -> None:
    folder = write_terminal_bench_folder(tmp_path, "task")
    terminal_bench.convert_tasks(folder, tmp_path / "out")
    made = tmp_path / "out" / "task"
    assert sorted(path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()) == [
        "environment/Dockerfile",
        "environment/data/numbers.txt",
        "instruction.md",
        "solution/solve.sh",
        "task.toml",
        "tests/test.sh",
        "tests/test_outputs.py",
    ]
    assert (
        (made / "environment" / "Dockerfile")
        .read_text()
        .endswith("WORKDIR /app\n\n# Mapped from docker-compose.yaml\nENV TEST_DIR=/tests\n")
    )
    script = (made / "tests" / "test.sh").read_text()
    assert "pytest /tests/test_outputs.py -rA\n\n_EXIT_CODE=$?\n" in script
    assert (made / "tests" / "test.sh").stat().st_mode & stat.S_IXUSR
    config = harbor_folder.read_harbor_task(made).config
    assert (config.agent.timeout_sec, config.verifier.timeout_sec) == (900, 60)
    assert config.metadata["tags"] == ["a", 'b "c"']


def test_variables_get_the_places_of_the_harness_and_quotes(tmp_path: Path) -> None:
    compose = (
        "services:\n  client:\n    build: .\n    environment:\n"
        '      LOG: ${T_BENCH_CONTAINER_LOGS_PATH}/x\n      WORDS: a "b"\n      TEST_DIR: ${T_BENCH_TEST_DIR}\n'
    )
    folder = write_terminal_bench_folder(tmp_path, "task", {"docker-compose.yaml": compose})
    terminal_bench.convert_tasks(folder, tmp_path / "out")
    text = (tmp_path / "out" / "task" / "environment" / "Dockerfile").read_text()
    assert text.endswith('ENV TEST_DIR=/tests\nENV LOG=/logs/x\nENV WORDS="a \\"b\\""\n')


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_folder_that_cannot_be_converted_is_left_out_by_name(tmp_path: Path, name: str) -> None:
    changes, words = LEFT_OUT[name]
    write_terminal_bench_folder(tmp_path / "in", "bad", changes)
    write_terminal_bench_folder(tmp_path / "in", "good")
    done = terminal_bench.convert_tasks(tmp_path / "in", tmp_path / "out")
    assert done.written == [tmp_path / "out" / "good"]
    assert len(done.problems) == 1
    assert done.problems[0].startswith(f"{tmp_path}/in/bad/")
    assert words in done.problems[0]
    assert sorted(os.listdir(tmp_path / "out")) == ["good"]  # noqa: PTH208


def test_a_link_that_leads_out_is_not_copied(tmp_path: Path) -> None:
    folder = write_terminal_bench_folder(tmp_path, "task")
    (folder / "data" / "secret").symlink_to("/etc/passwd")
    done = terminal_bench.convert_tasks(folder, tmp_path / "out")
    assert done.problems == [f"{folder}/data/secret: its link leads out of the task's folder"]
    (folder / "data" / "secret").unlink()
    (folder / "data" / "nothing").symlink_to("missing")
    assert terminal_bench.convert_tasks(folder, tmp_path / "out").problems == []


def test_a_task_that_was_written_is_kept(tmp_path: Path) -> None:
    write_terminal_bench_folder(tmp_path / "in", "task")
    (tmp_path / "out" / "task").mkdir(parents=True)
    # What a conversion left that was killed does not count.
    (tmp_path / "out" / ".other.partial").mkdir()
    write_terminal_bench_folder(tmp_path / "in", "other")
    done = terminal_bench.convert_tasks(tmp_path / "in", tmp_path / "out")
    assert done.problems == [f"{tmp_path}/out/task: it exists already"]
    assert (tmp_path / "out" / "other" / "task.toml").is_file()
    assert list((tmp_path / "out" / "task").iterdir()) == []


def test_a_verdict_that_may_differ_is_said(tmp_path: Path) -> None:
    facts = "instruction: a\nparser_name: swebench\nrun_tests_in_same_shell: true\n"
    folder = write_terminal_bench_folder(tmp_path, "task", {"task.yaml": facts})
    notes = terminal_bench.convert_tasks(folder, tmp_path / "out").notes
    assert [note.removeprefix(f"{folder}: ")[:11] for note in notes] == ["parser_name", "its tests r"]


def test_no_task_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="has no task of Terminal-Bench"):
        terminal_bench.convert_tasks(tmp_path, tmp_path / "out")
    folder = write_terminal_bench_folder(tmp_path, "task")
    with pytest.raises(DefinitionError, match="is in a task's own folder"):
        terminal_bench.convert_tasks(folder, folder / "out")


def test_the_command_says_what_it_wrote_and_left_out(tmp_path: Path, images: Path) -> None:
    write_terminal_bench_folder(tmp_path / "in", "good")
    write_terminal_bench_folder(tmp_path / "in", "bad", {"Dockerfile": None})
    done = run_tasks(images, "convert", tmp_path / "in", tmp_path / "out")
    assert done.returncode == 1
    assert "left out: " in done.stdout
    assert f"Wrote 1 tasks to {tmp_path}/out." in done.stdout
    done = run_tasks(images, "convert", tmp_path / "out", tmp_path / "out2")
    assert done.returncode == 2
    assert "has no task of Terminal-Bench" in done.stderr
