"""Folders of Terminal-Bench 1 written as folders of Harbor, as Harbor's own mapper does.

Invariant: a folder that is written is complete: it gets its name when its last file is there. A source is not changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ors_server import DefinitionError

from ...task import FolderProblem
from ..files import check_tree, exists, read_text
from .compose import ComposeService, read_compose
from .documents import TaskDocument, read_task_document

__all__ = ["Converted", "convert_tasks"]

#: Added to the script of the tests: its exit status is the reward.
_REWARD = """
_EXIT_CODE=$?
if [ $_EXIT_CODE -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
exit $_EXIT_CODE
"""
#: Files with a place of their own in Harbor's format. What is left belongs to the image's context.
_PLACED = ("task.yaml", "docker-compose.yaml", "solution.sh", "run-tests.sh", "tests")


@dataclass
class Converted:
    """The folders that were written, the problems of those that were not, and remarks."""

    written: list[Path] = field(default_factory=list[Path])
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


def convert_tasks(source: Path, output: Path) -> Converted:
    """Convert a task's folder, or each of the tasks in a folder, into a folder of its name in ``output``.

    A folder that exists there is kept and reported. Raises ``DefinitionError`` where there is no task.
    """
    folders = [source] if exists(source / "task.yaml") else []
    if not folders and source.is_dir():
        folders = sorted(path for path in source.iterdir() if exists(path / "task.yaml"))
    if not folders:
        raise DefinitionError(
            f"{source} has no task of Terminal-Bench", "Name a folder with a task.yaml, or a folder of such folders."
        )
    if any(output.resolve().is_relative_to(folder.resolve()) for folder in folders):
        raise DefinitionError(f"{output} is in a task's own folder", "Name a folder outside of it.")
    done = Converted()
    for folder in folders:
        target = output / folder.absolute().name
        try:
            done.notes += [f"{folder}: {note}" for note in _convert(folder, target)]
        except FolderProblem as problem:
            done.problems.append(str(problem))
        except (OSError, UnicodeEncodeError) as error:  # half of a surrogate pair in YAML
            done.problems.append(f"{target}: it cannot be written: {error}")
        else:
            done.written.append(target)
    return done


def _convert(folder: Path, target: Path) -> Sequence[str]:
    """Write one task; return remarks. Raises ``FolderProblem`` and ``OSError``."""
    if exists(target):
        raise FolderProblem(target, "it exists already")
    document = read_task_document(folder)
    if exists(folder / "solution.yaml"):
        raise FolderProblem(folder / "solution.yaml", "keys typed into a terminal are not supported; write solution.sh")
    check_tree(folder, folder)
    service = read_compose(folder)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(folder, partial, document, service)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return list(_notes(document))


def _write(folder: Path, target: Path, document: TaskDocument, service: ComposeService) -> None:
    for part in ("environment", "tests"):
        (target / part).mkdir(parents=True)
    (target / "task.toml").write_text(_settings(document), "utf-8")
    instruction = document.instruction
    (target / "instruction.md").write_text(instruction + ("" if instruction.endswith("\n") else "\n"), "utf-8")
    _copy_context(folder, target / "environment", service)
    if exists(folder / "tests"):
        shutil.copytree(folder / "tests", target / "tests", dirs_exist_ok=True, ignore_dangling_symlinks=True)
    script = read_text(folder / "run-tests.sh", folder)
    script += ("" if script.endswith("\n") else "\n") + _REWARD
    _write_script(target / "tests" / "test.sh", script.replace("$TEST_DIR", "/tests"))
    if exists(folder / "solution.sh"):
        (target / "solution").mkdir()
        _write_script(target / "solution" / "solve.sh", read_text(folder / "solution.sh", folder))


def _copy_context(folder: Path, target: Path, service: ComposeService) -> None:
    """Copy what the image is built from, and the Dockerfile with what the compose file says."""
    original = read_text(folder / service.context / "Dockerfile", folder)
    if service.context != ".":
        shutil.copytree(folder / service.context, target, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    apart = service.context.split("/")[0]
    for path in sorted(folder.iterdir()):
        if path.name in (*_PLACED, apart) or (service.context == "." and path.name == "Dockerfile"):
            continue
        if path.is_dir():
            shutil.copytree(path, target / path.name, dirs_exist_ok=True, ignore_dangling_symlinks=True)
        elif path.exists():
            shutil.copy(path, target / path.name)
    # A few images include the tests or the solution.
    if _copies(original, "tests") and exists(folder / "tests"):
        shutil.copytree(folder / "tests", target / "tests", dirs_exist_ok=True, ignore_dangling_symlinks=True)
    if _copies(original, "solution.sh") and exists(folder / "solution.sh"):
        shutil.copy(folder / "solution.sh", target / "solution.sh")
    (target / "Dockerfile").write_text(service.dockerfile(original), "utf-8")


def _copies(dockerfile: str, name: str) -> bool:
    return any(f"{word} {place}{name}" in dockerfile for word in ("COPY", "ADD") for place in ("", "./"))


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(path.stat().st_mode | 0o111)


def _settings(document: TaskDocument) -> str:
    """Return the text of ``task.toml``."""
    facts = document.model_dump(
        include={
            "author_name",
            "author_email",
            "difficulty",
            "category",
            "tags",
            "estimated_duration_sec",
            "expert_time_estimate_min",
            "junior_time_estimate_min",
        },
        exclude_none=True,
    )
    lines = ['schema_version = "1.4"', "", "[metadata]", *(f"{key} = {_toml(value)}" for key, value in facts.items())]
    lines += ["", "[verifier]", f"timeout_sec = {document.max_test_timeout_sec!r}"]
    lines += ["", "[agent]", f"timeout_sec = {document.max_agent_timeout_sec!r}"]
    return "\n".join(lines) + "\n"


def _toml(value: str | float | list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # A text of JSON is one of TOML, except for DEL and halves of surrogate pairs, which are not written as escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def _notes(document: TaskDocument) -> Iterator[str]:
    if document.parser_name != "pytest":
        yield f"parser_name is {document.parser_name}: the exit status of its tests is the reward"
    if document.run_tests_in_same_shell:
        yield "its tests ran in the agent's shell, and run in one of their own"
