"""Detection of the agent's links into ``/proc`` among the arguments of programs that tests start.

A program that reads ``/proc/self/cmdline`` reads its own arguments. So ``grep -q EXPECTED FILE`` succeeds where FILE is
such a link, whatever the agent has done. Tests whose text does not contain ``/proc`` do not intend to read there: if
they started a program on such a link, the verdict is not a pass.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["LinksIntoProc"]

#: Folders in which links into /proc belong to the system.
_SYSTEM = ("/proc/", "/dev/", "/sys/", "/etc/mtab")
#: Separators of words in a shell's command, quotes and redirections included.
_SEPARATORS = re.compile(r"[\s'\"`;|&<>(){}=]+")
#: Maximum number of words of one command that are checked; no honest test has more.
_MOST = 1000


class LinksIntoProc:
    """Watch on the arguments of every program that the tests start."""

    def __init__(self, text: str) -> None:
        self._watched = "/proc" not in text
        #: The first such link that was an argument of a program.
        self.found = ""

    def install(self) -> None:
        """Start the watch, unless the tests' text contains ``/proc``."""
        if self._watched:
            sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self._look(arguments[1], arguments[2])
        elif event == "os.posix_spawn":
            self._look(arguments[1], None)
        elif event == "os.system":
            self._look([arguments[0]], None)

    def _look(self, arguments: Any, folder: Any) -> None:
        if isinstance(arguments, (str, bytes)):
            arguments = [arguments]
        folders = [os.fsdecode(folder) if folder is not None else "."]
        for number, word in enumerate(_words(arguments)):
            if number > _MOST or self.found:
                return
            paths = [word] if word.startswith("/") else [f"{place}/{word}" for place in folders]
            for path in paths:
                if leads_into_proc(path):
                    self.found = path
            if os.path.isdir(paths[0]):  # noqa: PTH112 - pathlib is one import more
                folders.append(paths[0])  # later words may be relative to it, as after `cd` in a shell's command


def _words(arguments: Any) -> Iterator[str]:
    """Yield the arguments, and the words within each argument: a shell's command is one argument."""
    for argument in arguments:
        try:
            text = os.fsdecode(argument)
        except TypeError:
            continue
        yield text
        for word in filter(None, _SEPARATORS.split(text)):
            yield os.environ.get("HOME", "~") + word[1:] if word.startswith("~") else word


def leads_into_proc(path: str) -> bool:
    """Return whether a path that is not one of the system's links resolves to a path below ``/proc``."""
    if "\0" in path or path.startswith(_SYSTEM):
        return False
    return f"{os.path.realpath(path)}/".startswith("/proc/")
