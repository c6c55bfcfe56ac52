"""A folder of a Harbor task, read: its settings, its instruction, and the places of its scripts.

Invariant: a task that is returned is complete and needs nothing that is refused here, and each of its texts is inside
its folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..task import FolderProblem
from .files import check_place, check_tree, exists, has_name, read_text
from .refusals import unsupported
from .schema.reading import parse_config
from .schema.task_config import TaskConfig

__all__ = ["CONFIG", "HarborTask", "read_harbor_task"]

#: The file that makes a folder a Harbor task.
CONFIG = "task.toml"
#: A line that marks benchmark data, so that it can be found in training data; an agent does not see it.
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


@dataclass(frozen=True)
class HarborTask:
    """A task as its folder describes it."""

    #: The package's name, else the folder's.
    name: str
    folder: Path
    #: The text for the agent.
    instruction: str
    config: TaskConfig
    #: Remarks that keep no task from being used.
    notes: tuple[str, ...] = ()

    @property
    def dockerfile(self) -> Path | None:
        """The Dockerfile of the agent's environment; None where the folder names only an image."""
        file = self.folder / "environment" / "Dockerfile"
        return file if exists(file) else None

    @property
    def tests_dockerfile(self) -> Path | None:
        """The Dockerfile of a separate verifier, whose image includes the tests; None for the environment's."""
        verifier = self.config.verifier
        own_image = verifier.environment is not None and verifier.environment.docker_image
        file = self.folder / "tests" / "Dockerfile"
        return file if verifier.separate and not own_image and exists(file) else None

    @property
    def tests_in_image(self) -> bool:
        """True where the image of a separate verifier includes the tests, so that none are copied."""
        environment = self.config.verifier.environment
        return self.tests_dockerfile is not None or bool(environment is not None and environment.docker_image)

    @property
    def solution(self) -> Path | None:
        """The script that solves the task; None for a task without one."""
        file = self.folder / "solution" / "solve.sh"
        return file if exists(file) else None


def read_harbor_task(folder: Path, name: str = "") -> HarborTask:
    """Read the task of a folder; ``name`` is used where its settings have none, before the folder's own.

    Raises ``FolderProblem``, also for what is not supported.
    """
    try:
        return _read(folder, name)
    except OSError as error:
        raise FolderProblem(folder, f"it cannot be read: {error.strerror}") from error


def _read(folder: Path, name: str) -> HarborTask:
    if not has_name(folder):
        raise FolderProblem(folder, "the folder's name is not UTF-8, or has a control character")
    file = folder / CONFIG
    config, unknown = parse_config(file, read_text(file, folder))
    if missing := unsupported(folder, config):
        raise FolderProblem(file, f"not supported here: {', '.join(missing)}")
    task = HarborTask(
        name=config.task.name if config.task is not None else name or folder.name,
        folder=folder,
        instruction=without_canary(read_text(folder / "instruction.md", folder)),
        config=config,
        notes=tuple(_notes(folder, config, unknown)),
    )
    if not task.instruction.strip():
        raise FolderProblem(folder / "instruction.md", "it is empty")
    _check_files(task)
    return task


def without_canary(text: str) -> str:
    """Return an instruction without the canary lines at its beginning, and without the blank lines after them."""
    # Windows' line ends are read as Harbor does.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    start = 0
    while start < len(lines) and _CANARY.fullmatch(lines[start].strip()):
        start += 1
    while start < len(lines) and not lines[start].strip():
        start += 1
    return "\n".join(lines[start:])


def _check_files(task: HarborTask) -> None:
    """Check that images and scripts of a task are there. Raises ``FolderProblem``."""
    folder = task.folder
    environment = folder / "environment"
    if exists(environment) and not check_place(environment, folder).is_dir():
        raise FolderProblem(environment, "it is not a folder")
    if task.dockerfile is not None:
        read_text(task.dockerfile, folder)
    elif not task.config.environment.docker_image:
        raise FolderProblem(
            environment / "Dockerfile",
            f"the file is missing, and {CONFIG} names no image (environment.docker_image)",
        )
    for tree in (folder / "tests", folder / "solution"):
        check_tree(tree, folder)
    if task.tests_dockerfile is not None:
        read_text(task.tests_dockerfile, folder)
    elif not task.tests_in_image:
        read_text(folder / "tests" / "test.sh", folder)
    if task.solution is not None:
        read_text(task.solution, folder)


def _notes(folder: Path, config: TaskConfig, unknown: list[str]) -> list[str]:
    notes: list[str] = []
    if unknown:
        notes.append(f"keys without a meaning: {', '.join(sorted(unknown))}")
    if config.is_newer:
        notes.append(f"schema_version {config.schema_version} is newer than this reader")
    if config.environment.skills_dir is not None:
        notes.append("environment.skills_dir is for agents that read skills; its folder is in the image")
    if exists(folder / ".harborignore"):
        notes.append(".harborignore is not read: all files of tests and solution are copied")
    return notes
