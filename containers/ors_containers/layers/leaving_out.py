"""A layer without some of its files: what lies below it shows at their places.

A grader's programs, and what they read as they start, come from layers that the agent could not write. Between them
lies the agent's layer: its files at those places are left out, its deletions too, and what it has put beside them.

Invariants: nothing outside of the layer is touched, whatever links are in it. A path is treated by the rule that names
it, or by the next one above it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ors_containers.errors import InvalidArchive
from ors_containers.layers.module_files import added_modules
from ors_containers.layers.tree import OPAQUE, LayeredTree, entries_of, remove_layer

__all__ = ["LeftOut", "leave_out"]


class LeftOut(NamedTuple):
    """The rules, by absolute paths without links."""

    #: Left out with everything below them. What is on the way and not a folder is left out, too.
    paths: Sequence[str] = ()
    #: Of these folders each entry is left out, except for folders that the layers below have there as well.
    folders: Sequence[str] = ()
    #: Folders that stay, with everything below them that no other rule names; also where they are among the others.
    kept: Sequence[str] = ()
    #: Left out as ``paths`` are, and so is each link of the layer that leads there or to files of a process: behind it
    #: a grader would find a file of its own, and take it for the agent's.
    closed: Sequence[str] = ()
    #: Of these folders, entries whose names begin with a dot are left out.
    homes: Sequence[str] = ()
    #: Below these folders, additions that a Python would import are left out (``module_files``), except for ``own``.
    searched: Sequence[str] = ()
    #: Of those, files that stay.
    own: Sequence[str] = ()


def leave_out(layer: Path, rules: LeftOut, below: Sequence[Path]) -> None:
    """Remove from ``layer`` what ``rules`` leave out; ``below`` are the layers under it, the top one first.

    Raises ``OSError``.
    """
    _Rules(layer, rules, below).apply()


class _Rules:
    def __init__(self, layer: Path, rules: LeftOut, below: Sequence[Path]) -> None:
        self._layer = layer
        self._below = LayeredTree(below)
        self._whole = LayeredTree([layer, *below])
        self._closed = _relative(rules.closed)
        self._paths = _relative(rules.paths) | self._closed
        self._folders = _relative(rules.folders)
        self._homes = _relative(rules.homes)
        self._kept = _relative(rules.kept)
        self._searched = _relative(rules.searched)
        self._own = _relative(rules.own)
        places = self._folders | self._homes | self._searched
        self._on_the_way_out = places | _above(self._paths | places)
        self._on_the_way_to_kept = _above(self._kept)

    def apply(self) -> None:
        self._enter("", leaving="" in self._paths, inside_kept="" in self._kept)
        if self._closed:
            self._remove_links()
        for folder in self._searched:
            for path in added_modules(self._layer, folder, self._below):
                place = self._layer / path
                if path in self._own:
                    continue
                if place.is_dir() and not place.is_symlink():
                    remove_layer(place)
                else:
                    place.unlink()

    def _enter(self, folder: str, *, leaving: bool, inside_kept: bool) -> None:
        emptied = folder in self._folders and folder not in self._kept
        for entry in entries_of(self._layer / folder):
            path = f"{folder}/{entry.name}".lstrip("/")
            is_folder = entry.is_dir(follow_symlinks=False)
            if path in self._kept:
                out = False
            elif path in self._paths:
                out = True
            else:
                out = leaving or (emptied and not (is_folder and self._below.kind(path) == stat.S_IFDIR))
                out = out or (folder in self._homes and entry.name.startswith("."))
            kept = path in self._kept or (inside_kept and not out)
            self._treat(path, is_folder=is_folder, out=out, kept=kept)

    def _treat(self, path: str, *, is_folder: bool, out: bool, kept: bool) -> None:
        place = self._layer / path
        on_the_way = path in self._on_the_way_out
        if not is_folder:
            if out or on_the_way:
                place.unlink()
        elif out and path not in self._on_the_way_to_kept:
            remove_layer(place)
        elif out or on_the_way:
            if not kept:  # what the agent has removed of its own folder stays so
                with contextlib.suppress(OSError):  # it has none
                    os.removexattr(place, OPAQUE, follow_symlinks=False)
            self._enter(path, leaving=out, inside_kept=kept)

    def _remove_links(self) -> None:
        leading: list[Path] = []
        waiting = [self._layer]
        while waiting:
            for entry in entries_of(waiting.pop()):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_symlink() and self._leads_to_closed(os.path.relpath(entry.path, self._layer)):
                    leading.append(Path(entry.path))
        for link in leading:
            link.unlink()

    def _leads_to_closed(self, link: str) -> bool:
        try:
            target = self._whole.resolve(link, last=True)
        except InvalidArchive:
            return False  # it leads nowhere
        of_processes = f"{target}/".startswith(("proc/", "dev/")) and target != "dev/null"
        return of_processes or target in self._closed or not self._closed.isdisjoint(_above([target]))


def _relative(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path.strip("/") for path in paths)


def _above(paths: Iterable[str]) -> frozenset[str]:
    """Return every folder above one of the paths, but the root."""
    found: set[str] = set()
    for path in paths:
        while path := path.rpartition("/")[0]:
            found.add(path)
    return frozenset(found)
