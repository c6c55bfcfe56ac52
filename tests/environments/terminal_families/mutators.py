"""Program for the inside of a sandbox: changes of a solved folder that no sentence of a prompt asks for.

Each mutator is a function of a ``Folder`` that changes one thing and returns whether it could. ``kind`` names the
allowance of the prompt that may permit the change; a mutator without a kind is never permitted. Places are drawn from a
seed. It needs the standard library only.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Every mutator by its name, with its kind.
MUTATORS: dict[str, tuple[str, Callable[[Folder], bool]]] = {}
_Mutator = Callable[["Folder"], bool]


class Folder:
    """A project's folder after the oracle, and what the oracle made in it."""

    def __init__(
        self, root: str, before: list[str], after: list[str], written: list[str], loose: list[str], seed: str
    ) -> None:
        """Look at the folder.

        ``written`` are patterns of files whose content is not compared, ``loose`` of files with free white space.
        """
        self.root = Path(root)
        self.random = random.Random(seed)
        places = [self.root / path for path in after if path != "." and ".git" not in path.split("/")]
        self.links = sorted(path for path in places if path.is_symlink())
        self.files = sorted(path for path in places if path.is_file() and not path.is_symlink())
        self.folders = sorted(path for path in places if path.is_dir() and not path.is_symlink())
        known = {self.root / path for path in before}
        self.made = [path for path in self.files if path not in known]
        self.kept = [path for path in self.files if path in known]
        self.programs = self._like(written)
        self.texts = [path for path in self.files if path not in self.programs]
        self.made_texts = [path for path in self.made if path not in self.programs]
        self.kept_texts = [path for path in self.kept if path not in self.programs]
        #: New files whose white space may matter. Documents without such have a mutator of their layout.
        self.exact = [path for path in self.made_texts if path not in self._like(loose)]
        self.git = self.root / ".git" if (self.root / ".git").is_dir() else None
        #: Processes of the task's start that still run.
        self.begun: list[int] = []

    def _like(self, patterns: list[str]) -> list[Path]:
        root = self.root
        return [
            path for path in self.files if any(fnmatch.fnmatch(os.path.relpath(path, root), one) for one in patterns)
        ]

    def any_of(self, paths: list[Path], *, size: int = 0) -> Path | None:
        """Return one of the paths, of a file with at least ``size`` bytes; None if there is none."""
        fitting = [path for path in paths if path.is_dir() or path.lstat().st_size >= size]
        return self.random.choice(fitting) if fitting else None

    def new(self, name: str) -> Path:
        """Return the path of a new entry in one of the folders."""
        return self.random.choice([self.root, *self.folders]) / name


def mutator(name: str, kind: str = "") -> Callable[[_Mutator], _Mutator]:
    """Register a mutator."""

    def register(function: _Mutator) -> _Mutator:
        MUTATORS[name] = kind, function
        return function

    return register


def on(which: str, *, size: int = 0) -> Callable[[Callable[[Path], None]], _Mutator]:
    """Make a mutator of a function that changes one path of a list of the folder."""

    def make(change: Callable[[Path], None]) -> _Mutator:
        def apply(folder: Folder) -> bool:
            path = folder.any_of(getattr(folder, which), size=size)
            if path is None:
                return False
            change(path)
            return True

        return apply

    return make


def edited(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Make a change of a path of a change of its bytes."""
    return lambda path: rewrite(path, change(path.read_bytes()))


def rewrite(path: Path, data: bytes) -> None:
    """Write other bytes into a file that may be read-only."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)
    assert data != path.read_bytes(), f"{path} would not change"
    path.write_bytes(data)
    path.chmod(mode)


def moved(path: Path, link: bool = True) -> None:
    """Move a path out of the project; leave a link to it."""
    target = Path.home() / "moved"
    shutil.move(path, target)
    if link:
        path.symlink_to(target)


def replaced(path: Path, make: Callable[[Path], None]) -> None:
    """Put something else in the place of a file."""
    path.unlink()
    make(path)


def flipped(bits: int) -> Callable[[Path], None]:
    """Make a change of permission bits."""
    return lambda path: path.chmod((path.stat().st_mode & 0o7777) ^ bits)


# --- folders and links ---


@mutator("the folder replaced by a link to it")
def _(folder: Folder) -> bool:
    moved(folder.root)
    return True


mutator("a folder in it replaced by a link")(on("folders")(moved))
mutator("a file of before replaced by a link")(on("kept")(moved))
mutator("a new file replaced by a link")(on("made")(moved))
mutator("permissions of the folder")(lambda folder: flipped(0o011)(folder.root) is None)
mutator("a sticky bit on the folder")(lambda folder: flipped(0o1000)(folder.root) is None)
mutator("permissions of a file of before")(on("kept")(flipped(0o011)))
mutator("a set-user-id bit on a file of before")(on("kept")(flipped(0o4000)))
mutator("permissions of a new file", "modes and times")(on("made")(flipped(0o044)))


@mutator("other times of all files", "modes and times")
def _(folder: Folder) -> bool:
    for path in (*folder.files, *folder.folders):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return True


def added(name: str, make: Callable[[Path], object]) -> _Mutator:
    """Make a mutator that adds an entry to one of the folders."""

    def apply(folder: Folder) -> bool:
        make(folder.new(name))
        return True

    return apply


def _backed_up(path: Path) -> None:
    shutil.copy2(path, f"{path}~")


mutator("one more file")(added("leftover.txt", lambda path: path.write_text("more\n")))
mutator("one more hidden file, empty")(added(".leftover", Path.touch))
mutator("one more file whose name has a line break")(added("left\nover", Path.touch))
mutator("a backup of a file")(on("files")(_backed_up))
mutator("one more folder, empty")(added("leftover", Path.mkdir))
mutator("one more hidden folder with a file")(added("...", lambda path: (path.mkdir(), (path / "HEAD").touch())))
mutator("one more link to nothing")(added("leftover", lambda path: path.symlink_to("/nowhere")))
mutator("one more pipe")(added("leftover", os.mkfifo))
mutator("one more socket")(added("leftover", lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK)))
mutator("an attribute of the folder")(lambda folder: os.setxattr(folder.root, "user.leftover", b"more") is None)
mutator("a file replaced by a pipe")(on("files")(lambda path: replaced(path, os.mkfifo)))
mutator("a file replaced by a folder")(on("files")(lambda path: replaced(path, os.mkdir)))
mutator("a file of before gone")(on("kept")(Path.unlink))
mutator("a new file gone")(on("made")(Path.unlink))
mutator("a file of before renamed")(on("kept")(lambda path: path.rename(f"{path}.old") and None))
mutator("a new file renamed")(on("made")(lambda path: path.rename(path.with_name(f"x{path.name}")) and None))
mutator("one more name of a new file")(on("made")(lambda path: os.link(path, Path.home() / "other")))
mutator("one more name of a file of before")(on("kept")(lambda path: os.link(path, Path.home() / "other")))


@mutator("a link that leads elsewhere")
def _(folder: Folder) -> bool:
    path = folder.any_of(folder.links) if folder.links else None
    if path is None:
        return False
    target = path.readlink()
    path.unlink()
    path.symlink_to(f"{target}x")
    return True


@mutator("a link replaced by a copy")
def _(folder: Folder) -> bool:
    path = next((path for path in folder.links if path.is_file()), None)
    if path is None:
        return False
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return True


@mutator("a hard link replaced by a copy")
def _(folder: Folder) -> bool:
    path = next((path for path in folder.files if path.stat().st_nlink > 1), None)
    if path is None:
        return False
    shutil.copy2(path, f"{path}.copy")
    path.with_name(f"{path.name}.copy").replace(path)
    return True


# --- content ---

mutator("a byte more in a new file")(on("made_texts")(edited(lambda data: data + b"~")))
mutator("a space more in a new file")(on("exact")(edited(lambda data: data + b" ")))
mutator("a newline more in a new file")(on("exact")(edited(lambda data: data + b"\n")))
mutator("a newline less in a new file")(
    on("exact", size=1)(edited(lambda data: data[:-1] if data.endswith(b"\n") else data + b"\n"))
)
mutator("a byte more in a file of before")(on("kept_texts")(edited(lambda data: data + b" ")))
mutator("a file of before half as long")(on("kept_texts", size=2)(edited(lambda data: data[: len(data) // 2])))
mutator("a new file half as long")(on("made_texts", size=2)(edited(lambda data: data[: len(data) // 2])))
mutator("a file emptied")(on("texts", size=1)(edited(lambda data: b"")))
mutator("a program emptied")(
    lambda folder: bool(folder.programs) and rewrite(folder.random.choice(folder.programs), b"") is None
)
mutator("a byte-order mark")(on("made_texts")(edited(lambda data: b"\xef\xbb\xbf" + data)))
mutator("a NUL byte")(on("made_texts")(edited(lambda data: data + b"\0")))
mutator("a bit of a new file turned")(on("made_texts", size=1)(edited(lambda data: bytes([data[0] ^ 1]) + data[1:])))


def _lines(change: Callable[[list[bytes]], list[bytes]], which: str = "made_texts") -> Callable[[Folder], bool]:
    """Make a mutator of a change of the lines of a new text file."""

    def apply(folder: Folder) -> bool:
        texts = [path for path in getattr(folder, which) if is_text(path)]
        for path in folder.random.sample(texts, len(texts)):
            before = path.read_bytes()
            after = b"".join(change(before.splitlines(keepends=True)))
            if after != before:
                rewrite(path, after)
                return True
        return False

    return apply


def is_text(path: Path) -> bool:
    """Return whether a file is UTF-8 without NUL."""
    data = path.read_bytes()
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


mutator("the last line twice")(_lines(lambda lines: [*lines, *lines[-1:]]))
mutator("the last line gone")(_lines(lambda lines: lines[:-1]))
mutator("a blank line within")(_lines(lambda lines: [*lines[:1], b"\n", *lines[1:]], "exact"))
mutator("a space before the end of a line")(
    _lines(lambda lines: [lines[0].rstrip(b"\n") + b" \n", *lines[1:]] if lines else [], "exact")
)
mutator("the first letter in another case")(
    _lines(lambda lines: [one.swapcase() if not n else one for n, one in enumerate(lines)])
)
mutator("two lines exchanged")(
    _lines(lambda lines: [*lines[:-2], *lines[-2:][::-1]] if len(lines) > 2 else lines, "exact")
)


@mutator("line ends of another kind", "csv")
def _(folder: Folder) -> bool:
    def change(lines: list[bytes]) -> list[bytes]:
        if any(line.endswith(b"\r\n") for line in lines):
            return [line.replace(b"\r\n", b"\n") for line in lines]
        return [line.replace(b"\n", b"\r\n") for line in lines]

    return _lines(change, "exact")(folder)


@mutator("two line ends of different kinds")
def _(folder: Folder) -> bool:
    def change(lines: list[bytes]) -> list[bytes]:
        if len(lines) < 2 or not lines[0].endswith(b"\n"):
            return lines
        other = lines[0][:-2] + b"\n" if lines[0].endswith(b"\r\n") else lines[0][:-1] + b"\r\n"
        return [other, *lines[1:]]

    return _lines(change, "exact")(folder)


# --- documents ---


def _named(*suffixes: str) -> Callable[[Folder], Path | None]:
    return lambda folder: next((path for path in folder.files if path.suffix in suffixes and path.stat().st_size), None)


def is_json(path: Path) -> bool:
    """Return whether a file holds JSON; some tasks have files that only have the name."""
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


@mutator("a key of JSON twice")
def _(folder: Folder) -> bool:
    path = _named(".json")(folder)
    if path is None or not is_json(path) or not path.read_bytes().lstrip().startswith(b"{"):
        return False
    data = path.read_bytes().lstrip()
    first = next(iter(json.loads(data)), None)
    if first is None:
        return False
    rewrite(path, b"{" + json.dumps(first).encode() + b": null, " + data[1:])
    return True


@mutator("JSON laid out in another way", "json")
def _(folder: Folder) -> bool:
    path = next((path for path in folder.made if path.suffix == ".json" and is_json(path)), None)
    if path is None:
        return False
    rewrite(path, b"\n" + json.dumps(json.loads(path.read_bytes()), indent=7).encode() + b"\n\n")
    return True


@mutator("XML laid out in another way", "xml")
def _(folder: Folder) -> bool:
    path = next((path for path in folder.made if path.suffix == ".xml"), None)
    if path is None:
        return False
    rewrite(path, re.sub(rb">\s*<", b">\n\n\t<", path.read_bytes()) + b"\n\n")
    return True


@mutator("a quote opened in CSV")
def _(folder: Folder) -> bool:
    path = next((path for path in folder.made if path.suffix == ".csv"), None)
    if path is None:
        return False
    data = path.read_bytes().rstrip(b"\r\n")
    cut = max(data.rfind(b","), data.rfind(b"\n"), data.rfind(b";")) + 1
    rewrite(path, data[:cut] + b'"' + data[cut:].replace(b'"', b"") + b"\n")
    return True


@mutator("a comment in XML")
def _(folder: Folder) -> bool:
    path = _named(".xml")(folder)
    if path is None:
        return False
    rewrite(path, path.read_bytes() + b"<!-- done -->\n")
    return True


def _database(statement: str) -> Callable[[Folder], bool]:
    def apply(folder: Folder) -> bool:
        path = next((path for path in folder.files if path.read_bytes().startswith(b"SQLite format 3")), None)
        if path is None:
            return False
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
        return True

    return apply


mutator("one more table")(_database("CREATE TABLE leftover (id)"))
mutator("one more view")(_database("CREATE VIEW leftover AS SELECT 1"))
mutator("statistics of a database")(_database("ANALYZE"))
mutator("a version in a database's header")(_database("PRAGMA user_version = 7"))
mutator("a database with a write-ahead log")(_database("PRAGMA journal_mode = WAL"))


@mutator("bytes after the end of an archive")
def _(folder: Folder) -> bool:
    path = next((path for path in folder.files if path.suffix in (".gz", ".tgz", ".zip", ".tar")), None)
    if path is None:
        return False
    rewrite(path, path.read_bytes() + b"more")
    return True


# --- repositories ---


def _repository(change: Callable[[Path], object]) -> Callable[[Folder], bool]:
    def apply(folder: Folder) -> bool:
        if folder.git is None:
            return False
        change(folder.git)
        return True

    return apply


def _hook(git: Path) -> None:
    (git / "hooks").mkdir(exist_ok=True)
    hook = git / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\ntouch /tmp/hooked\n")
    hook.chmod(0o755)


def _git(*arguments: str) -> Callable[[Path], object]:
    return lambda git: subprocess.run(["git", *arguments], cwd=git.parent, check=True, capture_output=True)


mutator("a lock left in a repository")(_repository(lambda git: (git / "index.lock").touch()))
mutator("a hook in a repository")(_repository(_hook))
mutator("a setting of a repository")(_repository(_git("config", "core.fsmonitor", "/tmp/run")))
mutator("one more branch")(_repository(_git("branch", "leftover")))
mutator("one more tag")(_repository(_git("tag", "leftover")))
mutator("one more worktree")(_repository(_git("worktree", "add", "--detach", "/tmp/leftover")))
mutator("a merge in progress")(
    _repository(
        lambda git: (git / "MERGE_HEAD").write_text(
            (git / "ORIG_HEAD").read_text() if (git / "ORIG_HEAD").exists() else "0" * 40
        )
    )
)
mutator("one more commit")(
    _repository(_git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--allow-empty", "-m", "more"))
)
mutator("a staged file")(_repository(lambda git: _staged(git.parent)))
mutator("a file whose changes git ignores")(_repository(lambda git: _assumed(git)))


def _staged(root: Path) -> None:
    (root / "leftover.txt").write_text("more\n")
    subprocess.run(["git", "add", "leftover.txt"], cwd=root, check=True)
    (root / "leftover.txt").unlink()


def _assumed(git: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=git.parent, check=True, capture_output=True, text=True).stdout
    subprocess.run(["git", "update-index", "--assume-unchanged", listed.split("\n")[0]], cwd=git.parent, check=True)


# --- processes and services ---


def _process(change: Callable[[int], None]) -> Callable[[Folder], bool]:
    def apply(folder: Folder) -> bool:
        if not folder.begun:
            return False
        change(folder.random.choice(folder.begun))
        time.sleep(0.2)
        return True

    return apply


def _started_again(number: int) -> None:
    """End a process and start its command line again, in the same folder with the same variables."""
    line, variables = (Path(f"/proc/{number}/{name}").read_bytes().split(b"\0")[:-1] for name in ("cmdline", "environ"))
    folder = Path(f"/proc/{number}/cwd").readlink()
    os.kill(number, signal.SIGKILL)
    _left_running(line, folder, dict(one.split(b"=", 1) for one in variables))


def _left_running(line: list[bytes], folder: Path, variables: dict[bytes, bytes] | None = None) -> None:
    null = subprocess.DEVNULL
    subprocess.Popen(line, stdin=null, stdout=null, stderr=null, cwd=folder, env=variables, start_new_session=True)


mutator("a process of before ended")(_process(lambda number: os.kill(number, signal.SIGKILL)))
mutator("a process of before stopped")(_process(lambda number: os.kill(number, signal.SIGSTOP)))
mutator("a process of before started again")(_process(_started_again))

#: Ends processes after the first connection to a port that is closed; its arguments are the port and their ids.
_ENDING = """
import os, signal, sys, time
port = f":{int(sys.argv[1]):04X}"
while True:
    with open("/proc/net/tcp") as file:
        if any(fields[1].endswith(port) and fields[3] != "0A" for fields in map(str.split, file.readlines()[1:])):
            break
    time.sleep(0.001)
time.sleep(0.02)
for number in sys.argv[2:]:
    os.kill(int(number), signal.SIGKILL)
"""
_LISTENING = """
import socket, sys, time
with socket.create_server(("127.0.0.2", int(sys.argv[1]))):
    time.sleep(600)
"""


def _service(change: Callable[[int, list[int]], None]) -> Callable[[Folder], bool]:
    """Make a mutator of a change of a port and of the processes that listen on it."""

    def apply(folder: Folder) -> bool:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ports = {f"socket:[{row[9]}]": int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"}
        held: dict[int, list[int]] = {}
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if (port := ports.get(str(link.readlink()))) is not None:
                    held.setdefault(port, []).append(int(link.parts[2]))
        if not held:
            return False
        change(*folder.random.choice(sorted(held.items())))
        time.sleep(0.3)
        return True

    return apply


def _python(code: str, *arguments: int) -> None:
    _left_running([sys.executable.encode(), b"-c", code.encode(), *(str(one).encode() for one in arguments)], Path("/"))


mutator("a service ended")(_service(lambda port, numbers: os.kill(numbers[0], signal.SIGKILL)))
mutator("a service stopped")(_service(lambda port, numbers: os.kill(numbers[0], signal.SIGSTOP)))
mutator("a service that ends after its first answer")(_service(lambda port, numbers: _python(_ENDING, port, *numbers)))
mutator("a service on one more address")(_service(lambda port, numbers: _python(_LISTENING, port)))


if __name__ == "__main__":
    sys.exit("a part of player.py")
