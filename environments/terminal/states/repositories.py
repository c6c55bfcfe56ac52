"""Comparer of git repositories: references, index, settings, hooks, and the history that is reachable.

Part of the text of an examination (``program``). git reads copies of the objects, references and index in a repository
of its own: no setting, hook or object that the agent left elsewhere has an effect on what it prints. Commits that the
task begins with are compared by name, and those made later by tree, parents and message. How objects and references are
stored, unreachable objects, records of where branches were, and the user's name and aliases are free.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tempfile
from typing import Any

from .tree import content, digest

__all__ = ["form_git"]

#: Files that are free, where git writes them.
_FREE = re.compile(
    r"AUTO_MERGE|COMMIT_EDITMSG|FETCH_HEAD|ORIG_HEAD|gc\.log|logs/(HEAD|refs/.*)|info/refs|objects/info/packs"
)
#: Files that git reads in the copy, which ``fsck`` checks: objects, what makes it faster to find them, references.
_READ = re.compile(
    r"HEAD|index|packed-refs|refs/.*|objects/([0-9a-f]{2}/[0-9a-f]{38}|info/commit-graph|info/commit-graphs/.*|"
    r"pack/pack-[0-9a-f]+\.(pack|idx|rev|bitmap|mtimes)|pack/multi-pack-index.*)"
)
#: Folders that may be empty.
_FOLDERS = ("branches", "hooks", "info", "logs", "objects", "refs")
#: Files of a repository, their bytes, and commits that the agent made. No solution needs more.
_FILES, _BYTES, _COMMITS = 10_000, 100_000_000, 100


def form_git(path: str, known: str = "", authors: str = "") -> dict[str, Any]:
    """Return what a repository (a folder ``.git``) holds.

    ``known`` are the names of the commits that the task begins with, separated by spaces. With ``authors``, the authors
    of later commits are compared, too.
    """
    assert os.path.realpath(path) == path, f"{path} leads through a link"
    files = files_below(path)
    with tempfile.TemporaryDirectory() as folder:
        own = copied(path, folder, files)
        helped = "true" if any("commit-graph" in name or "multi-pack" in name for name in files) else "false"
        fast = ("-c", f"core.commitGraph={helped}", "-c", f"core.multiPackIndex={helped}")
        # It reads the index and every reference, and fails where one leads to nothing.
        git(own, *fast, "fsck", "--full", "--no-reflogs", "--no-dangling")
        references = pointers(files, path)
        described = history(own, sorted({*references.values()}), set(known.split()), bool(authors))
        entries = git(own, "ls-files", "--stage", "-v", "-z").split("\0")
        return {
            "references": {name: described.get(value, value) for name, value in references.items()},
            "index": entries,
            "programs": executable(os.path.dirname(path), entries),
            "settings": settings(own, os.path.join(path, "config")),
            "files": {
                name: [os.lstat(os.path.join(path, name)).st_mode & 0o111, digest(content(os.path.join(path, name)))]
                for name in files
                if not (_FREE.fullmatch(name) or _READ.fullmatch(name) or name == "config")
            },
            "folders": [name for name in sorted(os.listdir(path)) if name not in (*_FOLDERS, *files)],
        }


def files_below(folder: str) -> list[str]:
    """Return the relative paths of the regular files below a folder. Fail for everything but files and folders."""
    found: list[str] = []
    size = 0

    def unreadable(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=unreadable):
        for name in folders + names:
            status = os.lstat(os.path.join(place, name))
            mode = status.st_mode
            assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), f"{name} in {folder} is neither a file nor a folder"
            size += status.st_size
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
        assert len(found) < _FILES, f"{folder} has far too many files"
        assert size < _BYTES, f"{folder} is far too large"
    return sorted(found)


def copied(path: str, folder: str, files: list[str]) -> str:
    """Make a repository with default settings that has the objects, references and index of another."""
    own = os.path.join(folder, "own.git")
    for name in ("objects", "refs"):
        os.makedirs(os.path.join(own, name))
    for name in files:
        if _READ.fullmatch(name):
            os.makedirs(os.path.dirname(os.path.join(own, name)), exist_ok=True)
            with open(os.path.join(own, name), "wb") as file:
                file.write(content(os.path.join(path, name)))
    with open(os.path.join(own, "config"), "w") as file:
        file.write("[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tbigFileThreshold = 1m\n")
    return own


def git(own: str, *arguments: str, given: str = "") -> str:
    """Return what git prints about the copy. It has to succeed."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": own, "LANG": "C.UTF-8", "GIT_DIR": own}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
    environment |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    command = ["git", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", *arguments]
    finished = subprocess.run(
        command,
        input=given.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=own,
        env=environment,
        timeout=20,
    )
    assert finished.returncode == 0, f"git {arguments} ended with {finished.returncode}"
    return finished.stdout.decode("utf-8", "surrogateescape")


def pointers(files: list[str], path: str) -> dict[str, str]:
    """Return where HEAD and the references point: the name of an object, or ``ref: `` and another reference."""
    found: dict[str, str] = {}
    if "packed-refs" in files:
        lines = content(os.path.join(path, "packed-refs")).decode().splitlines()
        packed = [line.split(" ", 1)[::-1] for line in lines if line[:1] not in "#^"]
        # git looks for a name by halves.
        assert packed == sorted(packed), f"the packed references of {path} are out of order"
        found |= dict(packed)
    for name in files:
        if name == "HEAD" or name.startswith("refs/"):
            found[name] = content(os.path.join(path, name)).decode().strip()
    return found


def history(own: str, pointed: list[str], known: set[str], authors: bool) -> dict[str, str]:
    """Describe objects by their name: a known commit by that, a later one by tree, parents, message, perhaps author.

    A tag is described by its name, message and object, and everything else by nothing.
    """
    read: dict[str, tuple[list[list[str]], str]] = {}
    wanted = [name for name in pointed if re.fullmatch("[0-9a-f]{40}", name)]
    while wanted := [name for name in dict.fromkeys(wanted) if name not in known and name not in read]:
        printed = git(own, "cat-file", "--batch", given="".join(f"{name}\n" for name in wanted))
        data = printed.encode("utf-8", "surrogateescape")
        further: list[str] = []
        for name in wanted:
            head, _, data = data.partition(b"\n")
            kind, size = head.decode().split(" ")[1:]
            text, data = data[: int(size)].decode("utf-8", "surrogateescape"), data[int(size) + 1 :]
            top, _, message = text.partition("\n\n")
            lines = [line.split(" ", 1) for line in top.splitlines()] if kind in ("commit", "tag") else []
            read[name] = [["kind", kind], *lines], message.strip("\n")
            further += [line[1] for line in lines if line[0] in ("parent", "object")]
        assert len(read) < _COMMITS, "there are far too many commits"
        wanted = further
    described = {name: name for name in known}
    left_out = ("committer", "tagger") if authors else ("committer", "tagger", "author")

    def describe(name: str) -> str:
        if name in read and name not in described:
            lines, message = read[name]
            plain = [line for line in lines if line[0] not in left_out]
            plain = [[line[0], describe(line[1])] if line[0] in ("parent", "object") else line for line in plain]
            described[name] = digest(json.dumps([plain, message]).encode()) if lines[1:] else name
        return described.get(name, name)

    return {name: describe(name) for name in pointed}


def executable(root: str, entries: list[str]) -> list[str]:
    """Return the files of the working tree that are executable though the index says otherwise, or the reverse."""
    wrong: list[str] = []
    for entry in filter(None, entries):
        about, _, name = entry.partition("\t")
        place = os.path.join(root, name)
        mode = about.split(" ")[1]
        if os.path.isfile(place) and not os.path.islink(place):
            found = "100755" if os.lstat(place).st_mode & 0o100 else "100644"
            wrong += [] if mode == found else [name]
    return wrong


def settings(own: str, config: str) -> list[str]:
    """Return a repository's settings, without the user's name, aliases and colours."""
    content(config)
    listed = git(own, "config", "--file", config, "--no-includes", "--list", "-z").split("\0")
    return sorted(line for line in listed if not line.startswith(("user.", "alias.", "color.", "advice.")))
