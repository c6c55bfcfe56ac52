"""A terminal task, whatever its source, and the interface of a source of tasks.

Invariant: what a client sees of a task is its name and its prompt. Everything else stays in this process: a task's
specification on the wire is ``{"id": name}``, so there is no field that could leak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from ors_server import Split

if TYPE_CHECKING:
    from .families.task import GeneratedFile
    from .states.program import State

__all__ = ["BuiltImage", "FolderProblem", "PreparedImage", "TaskSource", "TerminalTask", "TestsImportCode"]

Grading = Literal["frozen", "live"]
TestsImportCode = Literal["refuse", "flag"]


#: The kind of task that a source has.
Task = TypeVar("Task", covariant=True)


class FolderProblem(Exception):
    """A task folder that cannot be used: the file and the problem."""

    def __init__(self, file: Path, cause: str, line: int | None = None) -> None:
        self.file = file
        place = f"{file}, line {line}" if line else str(file)
        super().__init__(f"{place}: {cause}")


@dataclass(frozen=True)
class PreparedImage:
    """An image made of a plain one by adding files and running a script as the user: a generated task's."""

    files: Mapping[str, GeneratedFile]
    setup: str


@dataclass(frozen=True)
class BuiltImage:
    """An image that is included in the task: an Apptainer definition, or the archive built from one."""

    definition: Path | None
    archive: Path | None
    #: Size and time of the archive, or else of the definition, when the task was read.
    stamp: tuple[int, int]


@dataclass(frozen=True)
class TerminalTask:
    """One task, ready to be played and graded."""

    #: Unique in its source; ``id`` on the wire.
    name: str
    prompt: str
    image: PreparedImage | BuiltImage
    #: pytest source; the reward. With ``state``, it is complete with the state that the solution leaves.
    final_tests: str
    #: pytest source: tests that hold before the agent starts.
    initial_tests: str
    #: Facts for graders, never shown. Kept so that a task can be written as a folder again.
    truth: str = ""
    grading: Grading = "frozen"
    #: Whether the final tests may run the agent's code in their own process; a verdict is marked then.
    tests_import_code: TestsImportCode = "refuse"
    #: Bash, run as the user when an episode starts.
    start: str = ""
    #: Bash that solves the task; None if the task has no solution file.
    solution: str | None = None
    #: Bash that nearly solves it and earns nothing.
    near_miss: str | None = None
    #: Rules of the comparison with the solution's state (``reference_states``); None where the tests are complete.
    state: State | None = None
    #: The task's source, for messages.
    origin: str = ""


class TaskSource(Protocol[Task]):
    """Tasks by split and index, and by name."""

    @property
    def splits(self) -> Sequence[Split]:
        """Return the splits; none is empty."""
        ...

    def count(self, split: str) -> int:
        """Return the number of tasks of a split."""
        ...

    def name(self, split: str, index: int) -> str:
        """Return a task's name. Raises ``IndexError`` outside of the split; a negative index counts from the end."""
        ...

    def find(self, name: str) -> Task:
        """Find a task by name. Raises ``InvalidTask``, and ``InfrastructureFailure`` if it can no longer be read."""
        ...
