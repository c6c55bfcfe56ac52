"""The tasks of Harbor folders as a source: one split, sorted by name.

Invariant: a task that is not prepared is in the split and is refused by name when it is to be played, so indices do not
depend on what is prepared.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from ors_containers.images.storing.store_folder import default_root

from ors_server import InfrastructureFailure, Split
from ors_server.hosting.errors import InvalidTask

from ..task import FolderProblem
from .discovery import FoundFolder
from .folder import HarborTask, read_harbor_task
from .playing.task import PreparedTask
from .record import Record, content_digest, records_folder
from .templates import VariableMissing, filled

__all__ = ["HarborSource", "NotPrepared"]

#: Harbor has no splits.
_SPLIT = "train"


class NotPrepared(InfrastructureFailure):
    """A Harbor task cannot be played: it was not prepared, has changed since, or preparing it has failed."""

    def __init__(self, task: HarborTask, problem: str = "", record: Record | None = None) -> None:
        self.task = task
        #: The results until now; None where there are none.
        self.record = record
        why = f": {problem}" if problem else ""
        super().__init__(
            f"The Harbor task {task.name!r} in {task.folder} is not prepared{why}",
            f"Prepare it: ors-server tasks prepare {task.folder}",
        )


class HarborSource:
    """The tasks of Harbor folders; ``variables`` are those that their templates may use, ``taken`` names of others.

    With ``flag``, tasks whose verdict an agent could write are played, and their verdicts are marked.
    ``problems`` lists the folders that were left out, ``notes`` remarks on the others.
    """

    def __init__(
        self,
        found: Iterable[FoundFolder],
        variables: Mapping[str, str],
        taken: Iterable[str] = (),
        *,
        flag: bool = False,
    ) -> None:
        self._variables = variables
        self._flag = flag
        #: Folders that were left out, and the reason.
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._found: dict[str, FoundFolder] = {}
        places = {_compared(name): "another task" for name in taken}
        for each in found:
            try:
                task = read_harbor_task(each.folder, each.package)
            except FolderProblem as problem:
                self.problems.append(str(problem))
                continue
            place = places.setdefault(_compared(task.name), str(each.folder))
            if place != str(each.folder):
                self.problems.append(f"{each.folder}: {place} has the name {task.name!r} already")
                continue
            self._found[task.name] = each
            self.notes += [f"{each.folder}: {note}" for note in task.notes]
        self._names = sorted(self._found)

    @property
    def splits(self) -> Sequence[Split]:
        return [Split(name=_SPLIT, type="train")] if self._names else []

    def count(self, split: str) -> int:
        return len(self._names) if split == _SPLIT else 0

    def name(self, split: str, index: int) -> str:
        return (self._names if split == _SPLIT else [])[index]

    def find(self, name: str) -> PreparedTask:
        task = self.read(name)
        self._check_variables(task)
        record = Record.load(records_folder(default_root()), content_digest(task.folder))
        if record is None or not record.ready:
            raise NotPrepared(task, "" if record is None else record.problem, record)
        if record.mark and not self._flag:
            raise NotPrepared(task, record.mark, record)
        return PreparedTask(task, record, self._variables)

    def read(self, name: str) -> HarborTask:
        """Read a task by name, prepared or not. Raises ``InvalidTask`` and ``InfrastructureFailure``."""
        each = self._found.get(name)
        if each is None:
            raise InvalidTask(f"There is no task {name!r} here", "Fetch the tasks again.")
        try:
            return read_harbor_task(each.folder, each.package)
        except FolderProblem as problem:
            raise InfrastructureFailure(
                f"The task {name!r} can no longer be read: {problem}", "Put the folder back."
            ) from problem

    @property
    def names(self) -> Sequence[str]:
        """Return the names of all tasks."""
        return self._names

    def _check_variables(self, task: HarborTask) -> None:
        """Check that the templates of a task's phases can be filled. Raises ``InfrastructureFailure``."""
        verifier = task.config.verifier
        tables = [task.config.environment.env, verifier.env]
        tables += [verifier.environment.env] if verifier.environment is not None else []
        for env in tables:
            try:
                filled(env, self._variables)
            except VariableMissing as missing:
                raise InfrastructureFailure(
                    f"The Harbor task {task.name!r} cannot be played: {missing}",
                    "Set them where the server runs, and name them in ORS_TERMINAL_TASK_VARIABLES.",
                ) from missing


def _compared(name: str) -> str:
    """Return a name as file systems compare it that ignore case."""
    return unicodedata.normalize("NFC", name).casefold()
