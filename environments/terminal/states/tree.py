"""State of a folder: one entry for each path, equal for two folders that differ in nothing that a task demands.

Part of the text of an examination (``program``). An entry is a list of the kind, the permission bits, the owner with
extended attributes, the hard links, and the content of a path. A comparer (``forms``) gives the content of files whose
layout is partly up to the agent.

Invariant: what cannot be read raises an error. Nothing that a link leads to is read, and no file that is not regular is
opened.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["content", "differences", "digest", "look", "made_by", "matched"]

#: Bytes of a file, and paths of a folder. No solution needs more.
_LARGEST = 20_000_000
_MOST = 20_000


def content(path: str) -> bytes:
    """Return the bytes of a regular file. Fail for every other kind, and for files that are far too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        assert stat.S_ISREG(status.st_mode), f"{path} is not a regular file"
        assert status.st_size < _LARGEST, f"{path} is far too large"
        return file.read()


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def matched(path: str, patterns: Sequence[str]) -> str | None:
    """Return the first pattern that a relative path matches, itself or below a folder of that name."""
    for pattern in patterns:
        if fnmatch.fnmatchcase(path, pattern) or fnmatch.fnmatchcase(path, f"{pattern}/*"):
            return pattern
    return None


def look(
    root: str,
    also: Sequence[str],
    forms: Mapping[str, Sequence[str]],
    free: Sequence[str],
    comparers: Mapping[str, Callable[..., Any]],
) -> dict[str, list[str]]:
    """Return the entries of a folder and of everything below it, except for paths that match ``free``.

    ``also`` are paths outside of the folder, relative to it: results that the task puts elsewhere.
    """
    assert os.path.realpath(root) == root, f"the path {root} leads through a link"
    found: dict[str, list[str]] = {}
    groups: dict[tuple[int, int], list[str]] = {}
    counts: dict[tuple[int, int], int] = {}
    pending = ["."]
    for path in also:
        place = os.path.normpath(os.path.join(root, path))
        above = os.path.dirname(place)
        assert os.path.realpath(above) == above, f"the path {above} leads through a link"
        pending += [path] if os.path.lexists(place) else []
    while pending:
        path = pending.pop()
        place = os.path.normpath(os.path.join(root, path))
        status = os.lstat(place)
        pattern = matched(path, list(forms))
        form = forms[pattern] if pattern is not None else None
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR and form is None:
            names = [os.path.normpath(os.path.join(path, name)) for name in os.listdir(place)]
            pending += [name for name in names if matched(name, free) is None]
            what, data = "directory", ""
        elif kind == stat.S_IFLNK:
            what, data = "link", os.readlink(place)
        elif kind == stat.S_IFREG or (kind == stat.S_IFDIR and form is not None):
            what = "file" if kind == stat.S_IFREG else "directory"
            value = content(place) if form is None else comparers[form[0]](place, *form[1:])
            data = digest(value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode())
            if kind == stat.S_IFREG and status.st_nlink > 1:
                groups.setdefault((status.st_dev, status.st_ino), []).append(path)
                counts[status.st_dev, status.st_ino] = status.st_nlink
        else:
            what, data = f"special {kind:o}", ""
        own = status.st_uid == os.geteuid() and status.st_gid == os.getegid()
        owner = "own" if own else f"{status.st_uid}:{status.st_gid}"
        for name in sorted(os.listxattr(place, follow_symlinks=False)):
            owner += f" {name}={os.getxattr(place, name, follow_symlinks=False).hex()}"
        found[path] = [what, f"{stat.S_IMODE(status.st_mode):04o}", owner, "", data]
        assert len(found) < _MOST, f"{root} has far too many files"
    for key, paths in groups.items():
        for path in paths:
            found[path][3] = " ".join(sorted(paths)) + (" and others" if counts[key] > len(paths) else "")
    return found


def made_by(
    before: Mapping[str, Sequence[str]], after: Mapping[str, Sequence[str]], modes: Mapping[str, str]
) -> dict[str, list[str | None]]:
    """Return the entries that a right folder has: those of the solution, without what is up to the agent.

    ``modes`` has, by pattern, ``exact``, ``executable`` (for its owner) or ``free``. By default the permissions of what
    the solution made are free, and those of what was there before are exact.
    """
    reference: dict[str, list[str | None]] = {}
    for path, entry in after.items():
        pattern = matched(path, list(modes))
        policy = modes[pattern] if pattern is not None else "exact" if path in before else "free"
        mode = {"exact": entry[1], "executable": "executable"}.get(policy)
        reference[path] = [entry[0], mode, *entry[2:]]
    return reference


def differences(reference: Mapping[str, Sequence[str | None]], found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what differs between the entries of a right folder and those of another, for the server's log."""
    wrong = [f"{path} is missing" for path in reference if path not in found]
    for path, entry in found.items():
        expected = reference.get(path)
        if expected is None:
            wrong.append(f"{path} is there")
            continue
        for name, value, wanted in zip(("kind", "mode", "owner", "links", "content"), entry, expected, strict=True):
            fits = int(value, 8) & 0o100 if wanted == "executable" and name == "mode" else value == wanted
            if wanted is not None and not fits:
                wrong.append(f"{path} has another {name}: {value[:80]!r}")
    return wrong
