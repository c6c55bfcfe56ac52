"""The files of an agent that a verifier does not see: those at the places that it was seen to use.

An agent that was root may have replaced what a verifier runs, or put something where it looks. So a verifier's run is
recorded on the start state, and again on the solution's. What it executed, opened or looked for in vain outside of the
task's folder is not the agent's, from the first folder on the way that the image lacks; nor is what was put into
folders that it listed, or below the prefix of a program that it executed. Such a place is the agent's all the same
where the solution writes it, no program has a place there, and the solution earns 1 only with it.

The task's folder is the agent's, but a verifier that runs there takes modules and settings from it. So neither modules
that were added below a folder where its Python looked for them are its, nor what it ran, imported or searched for there
(a name that it looked for in vain in other folders, too), unless the solution writes them.

Invariant: what is in the system's folders, or hidden in a home, is never the agent's. The runs show what a verifier
uses for two states; what it uses for another state, the agent would choose.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ors_containers import Image
from ors_containers.layers.leaving_out import LeftOut
from ors_containers.layers.module_files import added_modules, is_of_distribution
from ors_containers.layers.sharing import source_of
from ors_containers.layers.tree import LayeredTree
from ors_containers.sandbox import RecordedPaths

from .agents_programs import imported_modules

__all__ = ["ALWAYS", "UsedPaths"]

#: Folders of Harbor's own, of which a verifier sees nothing that an agent wrote.
ALWAYS = LeftOut(closed=("/tests", "/solution", "/logs/verifier"))
_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt"),
    *("/var/lib/dpkg", "/var/lib/apt", "/var/cache/apt"),
)
_PLACES = (*_SYSTEM, *ALWAYS.closed)
#: Folders of a prefix that hold its programs.
_PROGRAMS = ("bin", "sbin", "libexec")
#: Folders that many programs write to, beside homes: an output in them is a file, not the folder.
_SHARED = ("/", "/home", "/root", "/tmp", "/var/tmp")  # noqa: S108 - of a container


class UsedPaths:
    """The rule for one task: the image that its agent starts from, the layer of its tests, and what they fetched."""

    def __init__(self, image: Image, tests: Path, fetched: Sequence[Path]) -> None:
        self._below = image.layers
        self._image = LayeredTree((tests, *image.layers))
        self._fetched = LayeredTree(fetched)
        folder = os.path.normpath(image.directory or "/")
        resolved = f"/{self._image.resolve(folder, last=True)}"
        harbors = any(_is_in(place, above) for place in (folder, resolved) for above in ALWAYS.closed)
        self._work = () if folder == "/" or harbors else tuple(dict.fromkeys((folder, resolved)))
        self._homes = tuple(dict.fromkeys(("/root", os.path.normpath(image.home))))
        self._home = re.compile("|".join(("/home/[^/]+", *(re.escape(home.rstrip("/")) for home in self._homes))))
        self._has = functools.cache(self._is_in_image)

    def left_out(self, used: RecordedPaths, before: LeftOut = ALWAYS) -> LeftOut:
        """Return what is left out of an agent's files by a recorded run, beside what was ``before``."""
        paths = {*before.paths, *before.closed, *ALWAYS.closed, *_SYSTEM}
        folders = set(before.folders)
        paths.update(filter(None, map(self._prefix, used.executed)))
        for path in used.executed | used.opened | used.missing:
            if self._is_left_out(path):
                paths.add(self._first_absent(path) or path)
        paths.update(self._programs_of_work(used))
        for path in used.listed:
            if self._is_left_out(path):
                absent = self._first_absent(path)
                (folders if absent is None else paths).add(absent or path)
        needed = {path for path in paths if self._next_rule_above(path, paths) not in paths}
        listed = {path for path in folders - paths if self._next_rule_above(path, paths) not in paths}
        return self._rules(needed, listed, ())._replace(searched=tuple(sorted(self._searched(used, before))))

    def with_outputs(self, rules: LeftOut, solution: Path) -> LeftOut:
        """Return the rules without the places that the layer ``solution`` has, where no program has a place.

        A file of the image that it changes is the agent's with all of its folder: a database is several files.
        """
        left = {*rules.paths, *rules.closed}
        tools = {path for path in left if self._is_tool(path)}
        never = {*_SHARED, *_above(tools | {*self._work})}
        written = {path for path in (left | {*rules.folders}) - tools - never if os.path.lexists(solution / path[1:])}
        outputs: set[str] = set()
        for path in written & left:
            folder = str(PurePosixPath(path).parent)
            whole = (
                self._has(path) and self._is_left_out(path) and folder not in never and not self._home.fullmatch(folder)
            )
            outputs.add(folder if whole else path)
        paths = {path for path in left if path in tools or not _covers(outputs, path)}
        folders = {path for path in rules.folders if path not in written and not _covers(outputs, path)}
        below = LayeredTree(self._below)
        own = {f"/{path}" for folder in rules.searched for path in added_modules(solution, folder, below)}
        beside = filter(self._is_left_out, outputs)
        return self._rules(paths, folders, beside)._replace(searched=rules.searched, own=tuple(sorted(own)))

    def without_modules(self, rules: LeftOut) -> LeftOut:
        """Return the rules for a verifier that is known to run what the agent wrote in the task's folder."""
        paths = {path for path in (*rules.paths, *rules.closed) if self._is_left_out(path)}
        kept = [path for path in rules.kept if path not in self._work]
        return self._rules(paths, {*rules.folders}, kept)

    # ── details ──

    def _rules(self, paths: set[str], folders: set[str], outputs: Iterable[str]) -> LeftOut:
        closed = {path for path in paths if path in ALWAYS.closed or not self._has(path)}
        left, listed, absent = (tuple(sorted(places)) for places in (paths - closed, folders, closed))
        return LeftOut(left, listed, (*self._work, *sorted(outputs)), absent, self._homes)

    def _programs_of_work(self, used: RecordedPaths) -> set[str]:
        """Return the places of the task's folder that a run used as programs, modules or settings."""
        modules = imported_modules(used)
        paths = {*used.executed, *used.scripts, *modules}
        paths.update(path for path in used.opened | used.missing if source_of(path) in modules)
        elsewhere = {path.rpartition("/")[2] for path in used.missing if self._is_left_out(path)}
        programs = {path.rpartition("/")[2] for path in used.executed if self._is_left_out(path)}
        for path in used.opened | used.missing:
            name = path.rpartition("/")[2]
            if name in elsewhere or (name in programs and path in used.missing) or is_of_distribution(path):
                paths.add(path)
        return {path for path in paths if not self._is_left_out(path)}

    def _searched(self, used: RecordedPaths, before: LeftOut) -> set[str]:
        """Return the folders where an agent's modules would be found before others."""
        modules = imported_modules(used)
        above = {*_above(path for path in modules if not self._is_left_out(path))}
        folders = {*used.searched, *(above & used.listed)}
        return {*before.searched, *(path for path in folders if not any(_is_in(path, tool) for tool in _PLACES))}

    def _is_left_out(self, path: str) -> bool:
        """Return whether a used path is not the agent's: in the task's folder only what was fetched into it."""
        return not any(_is_in(path, work) for work in self._work) or self._is_fetched(path)

    def _is_tool(self, path: str) -> bool:
        """Return whether a left-out path is a place of programs, not one for outputs."""
        home = self._home.match(path)
        if home is not None and path[home.end() :].startswith("/."):
            return True
        if any(_is_in(path, above) for above in _PLACES) or self._is_fetched(path):
            return True
        return any(self._has(f"{path}/{name}") for name in _PROGRAMS)

    def _is_fetched(self, path: str) -> bool:
        """Return whether a path is in a folder that was fetched."""
        absent = self._first_absent(path)
        return absent is not None and self._fetched.find(absent) is not None

    def _prefix(self, program: str) -> str:
        """Return the folder that holds a program with its libraries, as ``/venv`` for ``/venv/bin/x``, or nothing."""
        place = PurePosixPath(program)
        prefix = str(place.parent.parent)
        wide = {*_SHARED, *self._work, *_above(self._work)}
        if place.parent.name not in _PROGRAMS or prefix in wide or self._home.fullmatch(prefix):
            return ""
        if not self._is_left_out(prefix) and not self._has(f"{prefix}/pyvenv.cfg"):
            return ""  # a folder of the task's, unless it is a virtual environment
        return prefix if self._has(program) or self._fetched.find(program) else ""

    def _next_rule_above(self, path: str, paths: Collection[str]) -> str:
        """Return the next folder above a path that is in ``paths`` or the task's; empty where none is."""
        return next((above for above in _above([path]) if above in paths or above in self._work), "")

    def _is_in_image(self, path: str) -> bool:
        return self._image.find(path) is not None

    def _first_absent(self, path: str) -> str | None:
        """Return the first folder on the way to a path, or the path, that the image lacks; None where it has all."""
        return next((place for place in (*reversed([*_above([path])]), path) if not self._has(place)), None)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _covers(outputs: Collection[str], path: str) -> bool:
    return path in outputs or any(above in outputs for above in _above([path]))


def _above(paths: Iterable[str]) -> Iterator[str]:
    return (str(above) for path in paths for above in PurePosixPath(path).parents)
