"""Folders of Harbor tasks: what is read, what is refused and where the error points."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harbor_folders import BROKEN, GOOD, write_broken, write_harbor_folder
from .parts import harbor_files, harbor_folder, harbor_templates, task


@pytest.mark.parametrize("name", GOOD)
def test_a_good_folder_is_read(tmp_path: Path, name: str) -> None:
    folder = write_harbor_folder(tmp_path, "hello", config=GOOD[name])
    found = harbor_folder.read_harbor_task(folder)
    assert found.name == ("org/the.task-1" if name == "a package" else "hello")
    assert found.instruction == "Write 42 to /app/answer.txt.\n"
    assert found.dockerfile == folder / "environment" / "Dockerfile"
    assert found.solution == folder / "solution" / "solve.sh"
    assert bool(found.notes) == (name in ("unknown keys", "skills"))


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_folder_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    folder = write_broken(tmp_path, fault)
    with pytest.raises(task.FolderProblem) as problem:
        harbor_folder.read_harbor_task(folder)
    assert str(folder) in str(problem.value)
    assert BROKEN[fault].words in str(problem.value)


def test_older_spellings_have_the_present_names(tmp_path: Path) -> None:
    text = '[environment]\nmemory = "4G"\nstorage = "1.5G"\nallow_internet = false\nos = "LINUX"\n'
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "a", config=text)).config.environment
    assert (found.memory_mb, found.storage_mb, found.network_mode, found.os) == (4096, 1536, "no-network", "linux")


def test_unknown_keys_are_named_with_their_path(tmp_path: Path) -> None:
    text = '[environment]\nimage = "x"\n[agent]\nspeed = 1\n[[verifier.collect]]\ncommand = "x"\nwhen = "y"\n'
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "a", config=text))
    assert found.notes == ("keys without a meaning: agent.speed, environment.image, verifier.collect[0].when",)


def test_a_list_of_ignored_files_is_remarked(tmp_path: Path) -> None:
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "a", {".harborignore": "*.log\n"}))
    assert found.notes == (".harborignore is not read: all files of tests and solution are copied",)


def test_a_newer_version_is_read_with_a_remark(tmp_path: Path) -> None:
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "a", config='schema_version = "1.10"'))
    assert found.notes == ("schema_version 1.10 is newer than this reader",)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Do it.\n", "Do it.\n"),
        ("\n\nDo it.", "Do it."),
        ("# canary\r\nDo\r\nit.\r", "Do\nit.\n"),
        ("<!-- harbor-canary GUID 1 -->\n# CANARY: x\n\n\nDo it.\n# canary\n", "Do it.\n# canary\n"),
        ("# A heading\nDo it.", "# A heading\nDo it."),
        ("text <!-- canary -->\nDo it.", "text <!-- canary -->\nDo it."),
    ],
)
def test_an_agent_does_not_see_the_canary(text: str, shown: str) -> None:
    assert harbor_folder.without_canary(text) == shown


def test_the_images_and_tests_of_a_separate_verifier(tmp_path: Path) -> None:
    own = {"tests/Dockerfile": "FROM x\n", "tests/test.sh": None}
    separate = '[verifier]\nenvironment_mode = "separate"'
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "a", own, separate))
    assert found.tests_dockerfile == tmp_path / "a" / "tests" / "Dockerfile"
    assert found.tests_in_image
    image = '[verifier.environment]\ndocker_image = "x"'
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "b", own, image))
    assert found.tests_dockerfile is None
    assert found.tests_in_image
    # Where the agent's environment is used, a Dockerfile among the tests is one of their files.
    found = harbor_folder.read_harbor_task(write_harbor_folder(tmp_path, "c", {"tests/Dockerfile": "FROM x\n"}))
    assert not found.tests_in_image


def test_an_image_alone_is_enough(tmp_path: Path) -> None:
    folder = write_harbor_folder(
        tmp_path, "a", {"environment/Dockerfile": None, "solution/solve.sh": None}, '[environment]\ndocker_image = "x"'
    )
    found = harbor_folder.read_harbor_task(folder)
    assert (found.dockerfile, found.solution) == (None, None)


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = write_harbor_folder(tmp_path, "a", {"shared/data.txt": "x"})
    (folder / "tests" / "shared").symlink_to("../shared")
    (folder / "tests" / "missing").symlink_to("nothing")
    assert harbor_folder.read_harbor_task(folder).name == "a"
    (folder / "shared" / "out").symlink_to(tmp_path)
    with pytest.raises(task.FolderProblem, match="tests/shared/out: its link leads out"):
        harbor_folder.read_harbor_task(folder)


@pytest.mark.parametrize(("limit", "words"), [("MOST_ENTRIES", "more than 2 entries"), ("MOST_BYTES", "larger than")])
def test_a_tree_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, words: str) -> None:
    folder = write_harbor_folder(tmp_path, "a", {"tests/b": "b", "tests/c/d": "d"})
    monkeypatch.setattr(harbor_files, limit, 2)
    with pytest.raises(task.FolderProblem, match=words):
        harbor_files.check_tree(folder / "tests", folder)


def test_variables_are_filled_from_the_named_ones_alone() -> None:
    named = harbor_templates.named_variables(["A", "C"], {"A": "a", "B": "secret"})
    env = {"W": "${A}", "X": "${B:-}", "Y": "${C:-${D}}", "Z": "http://${A}/"}
    assert harbor_templates.filled(env, named) == {"W": "a", "X": "", "Y": "${D}", "Z": "http://${A}/"}
    with pytest.raises(harbor_templates.VariableMissing) as missing:
        harbor_templates.filled({"X": "${B}", "Y": "${A}", "Z": "${C}"}, named)
    assert missing.value.names == ("B", "C")
