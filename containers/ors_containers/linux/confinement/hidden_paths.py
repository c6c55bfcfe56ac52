"""Paths of this machine that are hidden from every sandbox, whatever trees of the machine its image has.

The server's own code contains the generators of tasks, and with them every solution. Where it is installed below a
folder that sandboxes have, mostly /usr, they would see it: the packages, pip's records of them, the checkout they are
loaded from, and copies of them for other Pythons. An environment adds folders with ``keep_from_sandboxes``.

Paths are compared by device and inode and not by name alone. A tree that is mounted in two places, or reached through a
link, is the same tree, and a hard-linked file is hidden under each of its names.

Invariant: a path that was passed to ``keep_from_sandboxes`` is in no sandbox that starts afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ors_containers.distribution import DISTRIBUTION
from ors_containers.linux.limits.proc_stat import mount_points

__all__ = ["hidden_in", "keep_from_sandboxes"]

_PACKAGES = ("ors_server", "ors_containers", "ors_clients", "ors_benchmarks", "ors_cli")
#: Patterns of the files that an installation leaves beside the packages.
_METADATA = tuple(
    pattern
    for name in (DISTRIBUTION, "ors_server")  # the second is the name of versions up to 0.2
    for pattern in (f"{name}-*.dist-info", f"{name}*.egg-info", f"{name}*.egg-link", f"*{name}*.pth")
)
#: Folders of a checkout with many hard-linked files; no installation contains them.
_NOT_SEARCHED = (".git", ".venv")
#: Patterns of the folders in which Pythons look for packages, in a root file system, /usr or /usr/local.
_ABOVE = ("", "*/", "local/", "local/*/", "usr/", "usr/local/", "usr/local/*/", "opt/*/")
_SITE_PATTERNS = tuple(f"{above}lib*/python3*/*-packages" for above in _ABOVE)

_kept: set[Path] = set()
#: Results by tree and by the number of kept paths when the tree was searched.
_found: dict[tuple[str, int], list[str]] = {}


def keep_from_sandboxes(path: Path) -> None:
    """Hide a folder or file of this machine from every sandbox that is started from now on.

    A folder that a sandbox's image names as a layer or bind, or one above it, cannot be hidden from that sandbox.
    """
    _kept.add(path.resolve())


async def hidden_in(trees: Iterable[str]) -> Mapping[str, list[str]]:
    """Return the hidden paths by tree, relative to the tree; trees without a hidden path are left out."""
    kept = len(_kept)
    wanted = set(trees)
    if unknown := [tree for tree in wanted if (tree, kept) not in _found]:
        for tree in unknown:
            _found[tree, kept] = await asyncio.to_thread(_find, tree)
    return {tree: found for tree in wanted if (found := _found[tree, kept])}


def _find(tree: str) -> list[str]:
    root = Path(tree)
    try:
        status = root.stat()
    except OSError:
        return []  # the error is reported when the tree is mounted
    in_sites = {path.resolve() for pattern in _SITE_PATTERNS for path in _in_sites(root.glob(pattern))}
    hidden = _installation() | _kept | in_sites
    found = {inside for path in hidden if (inside := _inside(status, path)) is not None}
    mounted = _mounted_below(root)
    searched = hidden if mounted else ()
    folders = {(status.st_dev, status.st_ino) for path in searched for status in _folders(path)}
    for point in mounted:
        # An overlay of the tree does not contain the mounts below it; a bind of it does.
        with contextlib.suppress(OSError):
            below = point.stat()
            at = str(point.relative_to(root))
            found |= {f"{at}/{inside}" for path in hidden if (inside := _inside(below, path)) is not None}
            if (below.st_dev, below.st_ino) in folders:
                found.add(at)
    return sorted(found | _other_names(root, found))


def _mounted_below(root: Path) -> list[Path]:
    points = (Path(point) for point in mount_points(Path("/proc/self/mountinfo").read_text()))
    return [point for point in points if point != root and point.is_relative_to(root)]


def _inside(tree: os.stat_result, path: Path) -> str | None:
    """Return ``path`` relative to the folder of that status, wherever it is mounted; None outside of it."""
    for above in path.parents:
        with contextlib.suppress(OSError):
            if os.path.samestat(tree, above.stat()):
                return str(path.relative_to(above))
    return None


@cache
def _installation() -> frozenset[Path]:
    """Return this installation's folders and files, by paths without links."""
    found: set[Path] = set()
    sites: set[Path] = {Path(entry) for entry in sys.path if entry}
    for name in _PACKAGES:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
            for place in (spec.submodule_search_locations or ()) if spec is not None else ():
                found.add(Path(place))
                sites |= {Path(place).parent, Path(place).resolve().parent}
    for path in _in_sites(sites):
        found.add(path)
        found |= set(_sources(path))
    for site in sites:
        # A checkout holds packages in itself and in folders directly below.
        found |= {root for root in (site, site.parent) if _is_checkout(root)}
    if sys.pycache_prefix:
        found.add(Path(sys.pycache_prefix))
    return frozenset(path.resolve() for path in found if path.exists())


def _in_sites(sites: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of this project in folders of packages."""
    for site in sites:
        for name in _PACKAGES:
            if (site / name).is_dir():
                yield site / name
        for pattern in _METADATA:
            yield from site.glob(pattern)


def _sources(information: Path) -> Iterator[Path]:
    """Yield the folder or archive that pip installed from, by the ``dist-info``, and the checkout around it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        url = urlsplit(str(json.loads((information / "direct_url.json").read_text())["url"]))
        if url.scheme == "file" and (source := Path(unquote(url.path))).exists():
            yield source
            yield from filter(_is_checkout, source.parents)


def _is_checkout(folder: Path) -> bool:
    return (folder / "pyproject.toml").is_file() and (folder / "environments/terminal").is_dir()


def _other_names(root: Path, found: Iterable[str]) -> set[str]:
    """Return the other names in the tree of hard-linked files, which some installers and deduplicators create."""
    linked = {
        (status.st_dev, status.st_ino)
        for path in found
        for _, status in _files(root / path)
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    }
    if not linked:
        return set()
    return {str(place.relative_to(root)) for place, status in _files(root) if (status.st_dev, status.st_ino) in linked}


def _folders(path: Path) -> Iterator[os.stat_result]:
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            yield Path(folder).stat()


def _files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files of a tree, or the file itself; follows no link and enters no other file system."""
    waiting, device = [root], None
    while waiting:
        place = waiting.pop()
        with contextlib.suppress(OSError):
            status = place.lstat()
            device = device or status.st_dev
            if not stat.S_ISDIR(status.st_mode):
                yield place, status
            elif status.st_dev == device and place.name not in _NOT_SEARCHED:
                waiting += [Path(inner.path) for inner in os.scandir(place)]
