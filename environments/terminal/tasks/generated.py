"""The generated tasks: the source that needs no download.

Invariants: a task follows from its name. ``csv_join-000017`` is the same task in every split, process and release that
has the family. The name at an index of a split follows from the settings, not from the machine: the tasks of a family
whose programs are missing here keep their indices, and are refused when they are to be played.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence

from ors_server import DefinitionError, Split
from ors_server.errors import InfrastructureFailure
from ors_server.hosting.errors import InvalidTask

from ..families.family import HELD_OUT_SEEDS
from ..states.program import state_tests
from ..task import PreparedImage, TerminalTask
from .generation import FAMILIES, generate

__all__ = ["GeneratedSource", "ProgramMissing", "generated_task", "task_name", "usable_families"]

logger = logging.getLogger("ors_server.terminal")

_NAME = re.compile(r"([A-Za-z0-9_]+)-([0-9]{6,9})")


class ProgramMissing(InfrastructureFailure):
    """A task cannot be played here, because the image lacks programs that its family needs."""

    def __init__(self, task: str, programs: Sequence[str]) -> None:
        super().__init__(
            f"The task {task!r} needs {', '.join(programs)}, which the image of the sandboxes lacks",
            "Install it where the server runs, or in the image that ORS_TERMINAL_IMAGE names.",
        )


class GeneratedSource:
    """Tasks of the families, round robin: neighbours in a split are of different families.

    ``has_program`` says whether the image has a command. Raises ``DefinitionError`` for families that do not exist and
    where none is left.
    """

    def __init__(
        self, has_program: Callable[[str], bool], *, families: Sequence[str] = (), train_tasks: int, test_tasks: int
    ) -> None:
        self._families, self._missing = _families(has_program, families, "refused")
        if train_tasks > HELD_OUT_SEEDS * len(self._families):
            raise DefinitionError(
                f"ORS_TERMINAL_TRAIN_TASKS is {train_tasks}",
                f"With {len(self._families)} families it is at most {HELD_OUT_SEEDS * len(self._families)}.",
            )
        self._counts = {"train": train_tasks, "test": test_tasks}

    @property
    def splits(self) -> Sequence[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    def count(self, split: str) -> int:
        return self._counts[split]

    def name(self, split: str, index: int) -> str:
        index = range(self._counts[split])[index]
        round_, family = divmod(index, len(self._families))
        return task_name(self._families[family], round_ + (HELD_OUT_SEEDS if split == "test" else 0))

    def find(self, name: str) -> TerminalTask:
        matched = _NAME.fullmatch(name)
        # Only one spelling names a task: a trainer would count another spelling as a different task.
        if matched is None or matched[1] not in self._families or task_name(matched[1], int(matched[2])) != name:
            raise InvalidTask(f"There is no task {name!r} here", "Fetch the tasks again.")
        if programs := self._missing.get(matched[1]):
            raise ProgramMissing(name, programs)
        return generated_task(matched[1], int(matched[2]))


def usable_families(has_program: Callable[[str], bool], wanted: Sequence[str] = ()) -> list[str]:
    """Return the names of the families whose programs exist; the log names those that are left out.

    Raises ``DefinitionError`` for an unknown one and where none is left.
    """
    names, missing = _families(has_program, wanted, "left out")
    return [name for name in names if name not in missing]


def _families(
    has_program: Callable[[str], bool], wanted: Sequence[str], outcome: str
) -> tuple[list[str], Mapping[str, Sequence[str]]]:
    """Return the wanted families, or those of the default, and by their names the programs that some of them lack.

    Logs the ``outcome`` for their tasks. Raises ``DefinitionError`` for an unknown family and where each lacks some.
    """
    for name in wanted:
        if name not in FAMILIES:
            raise DefinitionError(f"There is no family of tasks {name!r}", f"Known are {', '.join(sorted(FAMILIES))}.")
    names = sorted(set(wanted) or (name for name, family in FAMILIES.items() if family.by_default))
    lacking = {name: [each for each in FAMILIES[name].programs if not has_program(each)] for name in names}
    missing = {name: programs for name, programs in lacking.items() if programs}
    for name, programs in missing.items():
        logger.warning("tasks of the family %s are %s: the image has no %s", name, outcome, ", ".join(programs))
    if len(missing) == len(names):
        needed = sorted({program for programs in missing.values() for program in programs})
        raise DefinitionError("No family of generated tasks works here", f"Install {', '.join(needed)}.")
    return names, missing


def task_name(family: str, seed: int) -> str:
    """Return the name of a generated task."""
    return f"{family}-{seed:06d}"


def generated_task(family: str, seed: int) -> TerminalTask:
    """Generate the task of a family and a seed."""
    made = generate(family, seed)
    return TerminalTask(
        name=task_name(family, seed),
        prompt=made.prompt,
        truth=made.truth,
        image=PreparedImage(made.files, made.setup),
        initial_tests=made.initial_tests,
        final_tests=state_tests(made.state, made.final_tests),
        grading=made.grading,
        start=made.start,
        solution=made.oracle,
        near_miss=made.near_miss,
        state=made.state,
        origin=f"family {family}, seed {seed}",
    )
