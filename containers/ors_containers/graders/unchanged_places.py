"""Places of a sandbox that its agent cannot have changed.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import
unchanged_places``).

A root agent can change every place. Of its files, those are not the agent's that nothing has changed since the sandbox
began: the kernel alone sets the time of a change. A program is as old as the youngest file that is executed with it:
the links that lead to it, and everything from which its loader and its C library take code.
"""

from __future__ import annotations

import os
import re
import time

__all__ = ["is_root", "is_unchanged"]

#: Files by which the loader, and libraries for names of users and for encryption, find the libraries that they load.
_LOADERS_FILES = (
    *("/etc/ld.so.preload", "/etc/ld.so.cache", f"/etc/ld-musl-{os.uname().machine}.path", "/etc/nsswitch.conf"),
    *("/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf"),
)
#: Folders in which they look otherwise. Those of the files above are added.
_LIBRARY_FOLDERS = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib")
#: Folders below those that are not looked through, for speed: only an interpreter takes code from them.
_INTERPRETERS = re.compile(r"(python|perl|ruby|node|php|go|lua|R|jvm|java|ocaml|ghc|rust).*")


def is_root() -> bool:
    """Return whether the agent of this sandbox is root."""
    return os.getuid() == 0


def is_unchanged(path: str) -> bool:
    """Return whether an existing program, and every link and folder on the way to it, is not the agent's to change."""
    real = os.path.realpath(path)
    if is_root():
        began = _began()
        return began is not None and _is_unchanged(path, real, began) and _libraries_are_unchanged(began)
    return _is_foreign(real) and all(_is_foreign(folder) for folder in _folders(path))


def _folders(path: str) -> set[str]:
    """Return the folders, without links, in which the parts of a path and the links among them lie."""
    return _way(path)[0]


def _links(path: str) -> set[str]:
    """Return the links on the way to a path; the empty path, which does not exist, is among too many."""
    folders, links = _way(path)
    return links | ({""} & folders)


def _way(path: str) -> tuple[set[str], set[str]]:
    """Return the folders, without links, on the way to a path, and the links; the empty path where there are many."""
    found, links = set[str](), set[str]()
    waiting = [path]
    for _ in range(200):
        if not waiting:
            return found, links
        place = "/"
        for part in waiting.pop().split("/"):
            if part in ("", "."):
                continue
            found.add(place)
            if part == "..":
                place = os.path.dirname(place)  # noqa: PTH120
                continue
            place = f"{place.rstrip('/')}/{part}"
            if os.path.islink(place):  # noqa: PTH114
                links.add(place)
                waiting.append(os.path.join(os.path.dirname(place), os.readlink(place)))  # noqa: PTH115, PTH118, PTH120
                place = os.path.realpath(place)
    return found | {""}, links  # too many links: the empty path is not foreign


def _is_foreign(path: str) -> bool:
    """Return whether a file or folder belongs to another user, and this user cannot write to it."""
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return True
        return os.stat(path).st_uid != os.getuid() and not os.access(path, os.W_OK)  # noqa: PTH116
    except OSError:
        return False


def _began() -> float | None:
    """Return the time at which the sandbox began."""
    try:
        with open("/proc/1/stat") as file:  # noqa: PTH123
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _is_unchanged(path: str, real: str, began: float) -> bool:
    """Return whether a file, and every link on the way to it, is older than the sandbox."""
    try:
        links = (os.lstat(place) for place in _links(path))
        return all(link.st_ctime < began for link in (*links, os.stat(real)))  # noqa: PTH116
    except OSError:
        return False


def _libraries_are_unchanged(began: float) -> bool:
    """Return whether nothing has changed of what the loader and the C library load, nor of what tells them where."""
    try:
        listed = [path for path in _LOADERS_FILES if os.path.lexists(path)]
        if any(os.lstat(path).st_ctime >= began for path in listed):
            return False
        named = set(_LIBRARY_FOLDERS)
        for path in listed:
            with open(path, "rb") as file:  # noqa: PTH123
                named |= {os.fsdecode(found) for found in re.findall(rb"(/[^\0\s:]+)/[^/\0\s:]+", file.read())}
        folders = {os.path.realpath(folder) for folder in named if os.path.isdir(folder)}  # noqa: PTH112
        links = {link for folder in named for link in _links(folder)}
        if any(os.lstat(link).st_ctime >= began for link in links):
            return False
        return all(_is_unchanged_below(folder, began) for folder in folders)
    except OSError:
        return False


def _is_unchanged_below(folder: str, began: float) -> bool:
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return True
    if os.stat(folder).st_ctime >= began:  # noqa: PTH116
        return False
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not _INTERPRETERS.fullmatch(entry.name) and not _is_unchanged_below(entry.path, began):
                    return False
                continue
            if entry.stat(follow_symlinks=False).st_ctime >= began:
                return False
            if entry.is_symlink() and os.path.exists(entry.path) and os.stat(entry.path).st_ctime >= began:  # noqa: PTH110, PTH116
                return False
    return True
