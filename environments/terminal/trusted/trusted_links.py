"""Detection of misleading names among the arguments of programs that tests start.

A program that reads ``/proc/self/cmdline`` reads its own arguments. So ``grep -q EXPECTED FILE`` succeeds where FILE is
such a link, whatever the agent has done. Tests whose text does not contain ``/proc`` do not intend to read there: if
they started a program on such a link, the verdict is not a pass.

A program that prints names, such as ``ls``, prints two lines for a name with a line break in it. If such a name is
below a folder that it was given, the verdict is not a pass either, unless the tests' text mentions such names.
"""

from __future__ import annotations

import errno
import glob
import itertools
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
#: An assignment and a use of a variable in a shell's command, and what a shell expands to paths.
_ASSIGNED = re.compile(r"(?:^|[\s;&|(])(\w+)=[\"']?([^\s\"';&|)]*)")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_WILDCARD = re.compile(r"[*?\[]")
#: Links on the way to one path: the kernel follows no more.
_MOST_LINKS = 40
#: Maximum number of words of one command that are checked; no honest test has more.
_MOST = 20_000


#: Programs that print names, and the text of tests that expect line breaks in names.
_LISTERS = re.compile(r"(?:^|[\s;|&(/])(?:ls|find|tree|du|stat|realpath|dirname|basename|grep)\b")
_EXPECTED = re.compile(r"newline|line break|print0|\\0|--zero|--null|--quot|-Q\b|-b\b")
#: Maximum number of entries that are checked below the folders of one command.
_MOST_ENTRIES = 5000


class LinksIntoProc:
    """Watch on the arguments of every program that the tests start."""

    def __init__(self, text: str) -> None:
        self._watched = "/proc" not in text
        self._watches_names = _EXPECTED.search(text) is None
        self._looked: set[str] = set()
        #: The first such link or name that was given to a program, and why it misleads.
        self.found = ""

    def install(self) -> None:
        """Start the watch, unless the tests' text mentions both."""
        if self._watched or self._watches_names:
            sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self._look(arguments[1], arguments[2], arguments[3])
        elif event == "os.exec":
            self._look(arguments[1], None, arguments[2])
            if self.found:  # this may be a copy of the process that decides, which would not learn of it
                raise OSError(errno.ELOOP, self.found)
        elif event == "os.posix_spawn":
            self._look(arguments[1], None)
        elif event == "os.system":
            self._look([arguments[0]], None)

    def _look(self, arguments: Any, folder: Any, environment: Any = None) -> None:
        if isinstance(arguments, (str, bytes)):
            arguments = [arguments]
        folders = [os.fsdecode(folder) if folder is not None else "."]
        lists = self._watches_names and _LISTERS.search(" ".join(map(_text, arguments))) is not None
        if lists and (name := broken_name(folders[0], self._looked, below=False)):
            self.found = f"{name!r}, in the working folder of a program of the tests, has a line break"
        variables = {_text(name): _text(value) for name, value in dict(environment or os.environ).items()}
        for number, word in enumerate(_words(arguments, variables, folders)):
            if number > _MOST or self.found:
                return
            paths = [word] if word.startswith("/") else [f"{place}/{word}" for place in folders]
            for path in paths:
                if self._watched and leads_into_proc(path):
                    self.found = f"{path}, which a program of the tests was given, leads into /proc"
                elif lists and os.path.isdir(path) and (name := broken_name(path, self._looked)):  # noqa: PTH112
                    self.found = f"{name!r}, below a folder that a program of the tests was given, has a line break"
            if os.path.isdir(paths[0]):  # noqa: PTH112 - pathlib is one import more
                folders.append(paths[0])  # later words may be relative to it, as after `cd` in a shell's command


def _words(arguments: Any, variables: dict[str, str], folders: list[str]) -> Iterator[str]:
    """Yield the arguments, and the words within each argument: a shell's command is one argument.

    Words with variables that cannot be told, and those with wildcards, are each path below ``folders`` that they match.
    """
    for argument in arguments:
        try:
            text = os.fsdecode(argument)
        except TypeError:
            continue
        yield text
        variables.update(_ASSIGNED.findall(text))
        told = _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], "*"), text)
        for word in filter(None, _SEPARATORS.split(told)):
            word = variables.get("HOME", "~") + word[1:] if word.startswith("~") else word
            yield word
            if word.strip("*") and _WILDCARD.search(word):
                for place in [""] if word.startswith("/") else list(folders):
                    yield from itertools.islice(glob.iglob(word, root_dir=place or None), _MOST)  # noqa: PTH207 - as above


def _text(argument: Any) -> str:
    try:
        return os.fsdecode(argument)
    except TypeError:
        return ""


def broken_name(folder: str, looked: set[str], *, below: bool = True) -> str:
    """Return a path with a line break in its name, in or below a folder not searched before; empty for none."""
    waiting, seen = [folder], 0
    while waiting and seen < _MOST_ENTRIES:
        place = os.path.realpath(waiting.pop())
        if place in looked or place.startswith(_SYSTEM) or place in ("/", "/proc", "/sys", "/dev", "/usr"):
            continue
        if below:
            looked.add(place)
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    seen += 1
                    if "\n" in entry.name or "\r" in entry.name:
                        return entry.path
                    if below and entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
    return ""


def leads_into_proc(path: str) -> bool:
    """Return whether the way to a path that is not one of the system's links passes through ``/proc``.

    Each link is looked at by itself: ``/proc/self`` and what is below it lead elsewhere in the program that follows
    them, for example to its own working folder and input.
    """
    if "\0" in path or path.startswith(_SYSTEM):
        return False
    waiting = [os.path.abspath(path) if ".." not in path.split("/") else os.path.join(os.getcwd(), path)]  # noqa: PTH100, PTH109, PTH118
    for _ in range(_MOST_LINKS):
        if not waiting:
            return False
        place = "/"
        parts = [part for part in waiting.pop().split("/") if part not in ("", ".")]
        for number, part in enumerate(parts):
            place = os.path.dirname(place) if part == ".." else f"{place.rstrip('/')}/{part}"  # noqa: PTH120
            if place == "/proc":
                return True
            if os.path.islink(place):  # noqa: PTH114
                target = os.path.join(os.path.dirname(place), os.readlink(place))  # noqa: PTH115, PTH118, PTH120
                waiting.append("/".join((target, *parts[number + 1 :])))
                break
    return False  # links in a circle lead nowhere
