"""Folders of Endless Terminals tasks, exactly as they are published.

The folder contains one folder for each task. The splits are those of the published code: names sorted, shuffled with
seed 42, the last 100 for evaluation; the training split keeps the tasks that were solved (pass@16 above 0), according
to the folder. A folder that cannot be used is left out and reported with folder, file and line; it still takes its
place in the shuffle, so the splits of a damaged copy are those of a complete one.

Two optional keys of ``task.json`` and two optional files are ours: ``grading`` (``frozen`` or ``live``), ``start``,
``solution.sh`` and ``near_miss.sh``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ors_containers import SandboxError
from ors_containers.errors import StoreFailed

from ors_server import DefinitionError, InfrastructureFailure, Split
from ors_server.hosting.errors import InvalidTask

from ..harbor.discovery import is_harbor_folder
from ..task import BuiltImage, FolderProblem, Grading, TerminalTask, TestsImportCode
from ..tests_code.imported_code import imported_code
from ..tests_code.parsing import parse

if TYPE_CHECKING:
    from ors_containers.images import ImageStore

__all__ = ["EndlessSource", "find_task_folders", "is_task_folder", "log_problems", "read_task"]

logger = logging.getLogger("ors_server.terminal")

_SEED = 42
#: Tasks of the published evaluation split. A collection of less than twice that many gives a tenth.
_EVALUATION = 100
_REPORTED = 20
_FILES = ("task.json", "container.def", "container.sif", "test_initial_state.py", "test_final_state.py")
_OPTIONAL = ("solution.sh", "near_miss.sh")
#: Tasks that are kept in memory: a group's sessions, and those of some other groups, begin within a short time.
_KNOWN = 256
_TEST = re.compile(r"^\s*(async\s+)?def\s+test", re.MULTILINE)
_SUMMARIES = ("o3_summary.json", "summary.json")
_FLAG = "code of the agent would run in the tests' process, which --tests-import-code flag allows"


@dataclass(frozen=True)
class _Entry:
    folder: Path
    solvable: bool


class EndlessSource:
    """The tasks of one or more folders.

    Raises ``DefinitionError`` for a folder that does not exist, and where no task can be used. ``problems`` lists what
    was left out.
    """

    def __init__(
        self, folders: Sequence[Path], *, solvable_only: bool = True, tests_import_code: TestsImportCode = "refuse"
    ) -> None:
        self._tests_import_code: TestsImportCode = tests_import_code
        #: Folders that were left out, and the reason.
        self.problems: list[str] = []
        found = self._find(folders)
        names = sorted(found)
        random.Random(_SEED).shuffle(names)  # noqa: S311 - the published order, no secret
        evaluation = _EVALUATION if len(names) >= 2 * _EVALUATION else len(names) // 10
        training = names[: len(names) - evaluation]
        self._entries: dict[str, _Entry] = {}
        with _image_store() as store:
            for name in names:
                try:
                    self._entries[name] = _check(found[name], store, tests_import_code)
                except (FolderProblem, SandboxError) as problem:
                    self.problems.append(str(problem))
        kept = [name for name in training if name in self._entries]
        if solvable_only:
            kept = [name for name in kept if self._entries[name].solvable]
        parts = {"train": kept, "test": [name for name in names[len(training) :] if name in self._entries]}
        self._names = {split: part for split, part in parts.items() if part}
        if not self._names:
            raise DefinitionError(
                f"{_join(folders)} holds no task that can be used" + (f": {self.problems[0]}" if self.problems else ""),
                "Name a folder with one folder a task in --tasks or ORS_TERMINAL_TASKS"
                + (", or set ORS_TERMINAL_SOLVABLE_ONLY=false." if self._entries else "."),
            )
        log_problems(self.problems, len(names))

    @property
    def splits(self) -> Sequence[Split]:
        return [Split(name=name, type="train" if name == "train" else "test") for name in self._names]

    def count(self, split: str) -> int:
        return len(self._names[split])

    def name(self, split: str, index: int) -> str:
        return self._names[split][index]

    def find(self, name: str) -> TerminalTask:
        entry = self._entries.get(name)
        if entry is None:
            raise InvalidTask(f"There is no task {name!r} here", "Fetch the tasks again.")
        try:
            return _known_task(entry.folder, self._tests_import_code, _stamp(entry.folder))
        except FolderProblem as problem:
            raise InfrastructureFailure(
                f"The task {name!r} can no longer be read: {problem}", "Put the folder back."
            ) from problem

    @property
    def names(self) -> Sequence[str]:
        """Return the names of all usable tasks, including those the training split leaves out."""
        return list(self._entries)

    def _find(self, folders: Sequence[Path]) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in folders:
            if not folder.is_dir():
                raise DefinitionError(
                    f"The task folder {folder} does not exist", "Correct --tasks or ORS_TERMINAL_TASKS."
                )
        for task in find_task_folders(folders):
            if task.name in found:
                self.problems.append(f"{task}: {found[task.name]} has this name already")
            else:
                found[task.name] = task
        return found


def log_problems(problems: Sequence[str], total: int) -> None:
    """Log the first of the folders that were left out, and the number of the others."""
    for problem in problems[:_REPORTED]:
        logger.warning("task left out: %s", problem)
    if len(problems) > _REPORTED:
        logger.warning("%d more of %d tasks left out", len(problems) - _REPORTED, total)


def find_task_folders(folders: Iterable[Path]) -> list[Path]:
    """Return the tasks' folders: those of ``folders`` that are tasks, and the tasks in the others."""
    found: list[Path] = []
    for folder in folders:
        if is_task_folder(folder):
            found.append(folder)
        elif folder.is_dir():
            found += [task for task in sorted(folder.iterdir()) if is_task_folder(task)]
    return found


def is_task_folder(folder: Path) -> bool:
    """Return whether a folder is meant to be a task: by its name, or by a file that only a task has."""
    if not folder.is_dir():
        return False
    named = folder.name.startswith("task_") and not is_harbor_folder(folder)
    return named or any((folder / name).exists() for name in _FILES)


def read_task(folder: Path, tests_import_code: TestsImportCode = "refuse") -> TerminalTask:
    """Read the task of a folder. Raises ``FolderProblem``, ``refuse`` also for tests that import code."""
    words = _json(folder / "task.json")
    definition, archive = (_found(folder / name) for name in ("container.def", "container.sif"))
    source = archive or definition
    if source is None:
        raise FolderProblem(folder / "container.def", "the folder has neither this file nor container.sif")
    try:
        status = source.stat()
    except OSError as error:
        raise FolderProblem(source, f"it cannot be read: {error.strerror}") from error
    return TerminalTask(
        name=folder.name,
        prompt=_text(words, "description", folder),
        truth=_text(words, "truth", folder, needed=False),
        image=BuiltImage(definition=definition, archive=archive, stamp=(status.st_size, status.st_mtime_ns)),
        initial_tests=_tests(folder / "test_initial_state.py", "flag"),
        final_tests=_tests(folder / "test_final_state.py", tests_import_code),
        tests_import_code=tests_import_code,
        grading=_grading(words, folder),
        start=_text(words, "start", folder, needed=False),
        solution=_optional(folder / _OPTIONAL[0]),
        near_miss=_optional(folder / _OPTIONAL[1]),
        origin=str(folder),
    )


@lru_cache(maxsize=_KNOWN)
def _known_task(
    folder: Path, tests_import_code: TestsImportCode, stamp: tuple[tuple[int, int, int], ...]
) -> TerminalTask:
    """Read a task that a group of sessions plays once for all of them, as long as its files are the same."""
    return read_task(folder, tests_import_code)


def _stamp(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """Return what changes with a task's files."""
    found: list[tuple[int, int, int]] = []
    for name in (*_FILES, *_OPTIONAL):
        try:
            status = os.stat(f"{folder}/{name}")  # noqa: PTH116 - a third of the time
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)


@contextlib.contextmanager
def _image_store() -> Generator[ImageStore]:
    from ors_containers.images import ImageStore

    try:
        store = ImageStore()
    except StoreFailed as error:
        raise DefinitionError(error.cause, error.remedy) from error
    try:
        yield store
    finally:
        store.close()


def _check(folder: Path, store: ImageStore, tests_import_code: TestsImportCode) -> _Entry:
    """Check that a folder can be used. Raises ``FolderProblem``, and ``SandboxError`` for its image."""
    from ors_containers.images.importers import check_image

    image = read_task(folder, tests_import_code).image
    assert isinstance(image, BuiltImage)
    if image.archive is not None:
        if check_image(image.archive) != "sif":
            raise FolderProblem(image.archive, "it is no SIF, Apptainer's image file")
    elif image.definition is not None:
        store.check_definition(image.definition)
    return _Entry(folder, _is_solvable(folder / "solutions"))


def _is_solvable(solutions: Path) -> bool:
    """Return whether the task was solved, according to its folder. Raises ``FolderProblem``."""
    for name in _SUMMARIES:
        file = solutions / name
        if file.is_file():
            rates: Any = _json(file).get("pass_at_k")
            rate: Any = cast("dict[str, Any]", rates).get("16") if isinstance(rates, dict) else None
            if isinstance(rate, bool) or not isinstance(rate, (int, float)):
                raise FolderProblem(file, 'it has no number at "pass_at_k", "16"')
            return rate > 0
    return True


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(file))
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise FolderProblem(file, f"it is no JSON ({error})", line) from error
    except RecursionError as error:
        raise FolderProblem(file, "it is nested too deeply") from error
    if not isinstance(value, dict):
        raise FolderProblem(file, "it is no JSON object")
    return cast("dict[str, Any]", value)


def _text(words: dict[str, Any], key: str, folder: Path, *, needed: bool = True) -> str:
    value = words.get(key, None if needed else "")
    if not isinstance(value, str) or (needed and not value.strip()):
        raise FolderProblem(folder / "task.json", f'its "{key}" is {"missing" if value is None else "no text"}')
    return value


def _grading(words: dict[str, Any], folder: Path) -> Grading:
    value = words.get("grading", "frozen")
    if value not in ("frozen", "live"):
        raise FolderProblem(folder / "task.json", f'its "grading" is {value!r}, neither "frozen" nor "live"')
    return value


def _tests(file: Path, import_code: TestsImportCode) -> str:
    text = _read(file)
    try:
        module = parse(text)
    except SyntaxError as error:
        raise FolderProblem(file, f"it is no Python: {error.msg}", error.lineno) from error
    except (ValueError, RecursionError) as error:  # NUL characters, or nested beyond the parser's depth
        raise FolderProblem(file, f"it is no Python: {error}") from error
    if _TEST.search(text) is None:
        raise FolderProblem(file, "it has no test")
    if import_code == "refuse" and (found := imported_code(module)):
        line, what = found[0]
        raise FolderProblem(file, f"{what}; {_FLAG}", line)
    return text


def _found(file: Path) -> Path | None:
    """Return a file that may be missing. Raises ``FolderProblem`` if the path is not a file."""
    if file.exists() and not file.is_file():  # opening a pipe waits for a writer
        raise FolderProblem(file, "it is no regular file")
    return file if file.exists() else None


def _optional(file: Path) -> str | None:
    return _read(file) if _found(file) is not None else None


def _read(file: Path) -> str:
    _found(file)
    try:
        return file.read_text("utf-8")
    except FileNotFoundError as error:
        raise FolderProblem(file, "the file is missing") from error
    except UnicodeDecodeError as error:
        raise FolderProblem(file, "it is no UTF-8 text") from error
    except OSError as error:
        raise FolderProblem(file, f"it cannot be read: {error.strerror}") from error


def _join(folders: Iterable[Path]) -> str:
    return " and ".join(str(folder) for folder in folders)
