"""The tasks of folders, of whichever format: Endless Terminals and Harbor, beside each other.

Invariant: Harbor tasks come after those of Endless Terminals and do not change their splits and indices.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from ors_server import DefinitionError, Split
from ors_server.hosting.errors import InvalidTask

from ..harbor.discovery import FoundFolder, find_harbor_folders
from ..harbor.playing.task import PreparedTask
from ..harbor.source import HarborSource
from ..harbor.templates import named_variables
from ..settings import TerminalSettings
from ..task import TaskSource, TerminalTask
from .endless import EndlessSource, find_task_folders, log_problems

__all__ = ["FolderSource"]

logger = logging.getLogger("ors_server.terminal")


class FolderSource:
    """The tasks of folders, read as the settings say.

    Raises ``DefinitionError`` for a folder that does not exist, and where no task can be used. ``problems`` lists what
    was left out.
    """

    def __init__(self, folders: Sequence[Path], settings: TerminalSettings) -> None:
        self._sources: list[TaskSource[TerminalTask | PreparedTask]] = []
        #: Folders that were left out, and the reason.
        self.problems: list[str] = []
        #: Names of the tasks of Endless Terminals, and of Harbor.
        self.endless: Sequence[str] = ()
        self.harbor: Sequence[str] = ()
        found = _harbor_folders(folders)
        # Without any task, the source of Endless Terminals says so.
        if not found or find_task_folders(folders):
            endless = EndlessSource(
                folders, solvable_only=settings.solvable_only, tests_import_code=settings.tests_import_code
            )
            self._sources.append(endless)
            self.problems += endless.problems
            self.endless = endless.names
        if found:
            self._add_harbor(found, settings)

    def _add_harbor(self, found: Sequence[FoundFolder], settings: TerminalSettings) -> None:
        variables = named_variables(settings.variable_names, os.environ)
        source = HarborSource(found, variables, taken=self.endless, flag=settings.tests_import_code == "flag")
        self.problems += source.problems
        log_problems(source.problems, len(found))
        for note in source.notes:
            logger.info("%s", note)
        if source.names:
            self._sources.append(source)
            self.harbor = source.names
            logger.info("%d Harbor tasks are listed", len(self.harbor))
        elif not self._sources:
            raise DefinitionError(
                f"No Harbor task of {len(found)} can be used: {self.problems[0]}", "Correct the folder."
            )

    @property
    def splits(self) -> Sequence[Split]:
        return list({split.name: split for source in self._sources for split in source.splits}.values())

    def count(self, split: str) -> int:
        return sum(source.count(split) for source in self._having(split))

    def name(self, split: str, index: int) -> str:
        index = range(self.count(split))[index]
        for source in self._having(split):
            if index < source.count(split):
                return source.name(split, index)
            index -= source.count(split)
        raise IndexError(index)

    def find(self, name: str) -> TerminalTask | PreparedTask:
        for source in self._sources[:-1]:
            try:
                return source.find(name)
            except InvalidTask:
                continue
        return self._sources[-1].find(name)

    def _having(self, split: str) -> list[TaskSource[TerminalTask | PreparedTask]]:
        return [source for source in self._sources if split in {each.name for each in source.splits}]


def _harbor_folders(folders: Sequence[Path]) -> list[FoundFolder]:
    """Return the Harbor folders below folders, each once."""
    found = [each for folder in folders for each in find_harbor_folders(folder)]
    return list({each.folder: each for each in found}.values())
