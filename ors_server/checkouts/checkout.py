"""Checkouts of published environments: a folder, a Python file in a folder, or a commit of a repository.

A commit is fetched once into the data directory. The owner of a repository comes from its remote ``origin``: clients
know a published environment as ``owner/Name``.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ors_server.checkouts.errors import HostError
from ors_server.checkouts.program import find_program

__all__ = ["Checkout", "find_checkout", "refuse_same_names"]

_CLASS = re.compile(r":([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)$")
_URL = re.compile(r"(?:[a-z+]+://|git@)")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Checkout(NamedTuple):
    """A published environment on this machine."""

    #: Name of its repository or folder.
    name: str
    #: Owner of its repository; empty where its remote does not say.
    owner: str
    folder: Path
    #: The commit; empty outside of git. It ends in ``+`` where files differ from the commit.
    commit: str
    #: The file that starts its server.
    program: Path
    #: The one class to serve; empty for those that the program serves.
    class_name: str

    @property
    def names(self) -> list[str]:
        """The names by which clients may ask for it."""
        return [self.name, *([f"{self.owner}/{self.name}"] if self.owner else [])]


def find_checkout(target: str, repositories: Path) -> Checkout:
    """Find the checkout that a target names; a commit is fetched into the folder ``repositories``.

    Raises ``HostError``.
    """
    name_of(target)
    if _URL.match(target):
        url, _, commit = target.rpartition("@")
        return _described(_fetched(url, commit, repositories), None, "", url)
    path, class_name = _path_and_class(target)
    if path.is_dir():
        return _described(path.resolve(), None, class_name)
    if path.is_file() and path.suffix == ".py":
        return _described(path.resolve().parent, path.resolve(), class_name)
    raise HostError(f"{target} is neither a folder nor a Python file", "Name the folder of a checkout.")


def name_of(target: str) -> str:
    """Return the name by which clients ask for a target that cannot be served.

    Raises ``HostError`` for a target that names neither a file or folder that exists nor a repository's commit.
    """
    if _URL.match(target):
        url, _, commit = target.rpartition("@")
        if not url or not _COMMIT.fullmatch(commit):
            raise HostError(
                f"{target} names no commit", "Write it as URL@COMMIT; `git ls-remote URL HEAD` shows the newest commit."
            )
        return _repository_of(url)
    path = _path_and_class(target)[0]
    if not path.exists():
        raise HostError(
            f"There is no checkout {target}", "Name a folder with a server.py, or a repository's commit as URL@COMMIT."
        )
    return (path if path.is_dir() else path.resolve().parent).resolve().name


def refuse_same_names(checkouts: Sequence[Checkout]) -> None:
    """Raise ``HostError`` for two checkouts of one name: each has a data folder of that name."""
    by_name: dict[str, Checkout] = {}
    for checkout in checkouts:
        first = by_name.setdefault(checkout.name.lower(), checkout)
        if first is not checkout:
            raise HostError(
                f"{first.program} and {checkout.program} are of checkouts with the same name, {checkout.name}",
                "Host them on two ports; their data folders and names would be the same.",
            )


def _described(folder: Path, program: Path | None, class_name: str, url: str = "") -> Checkout:
    url = url or _git(folder, "remote", "get-url", "origin")
    owner, name = _owner_and_name(url)
    top = _git(folder, "rev-parse", "--show-toplevel")
    commit = ""
    if top and Path(top) == folder:
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
        commit = _git(folder, "rev-parse", "HEAD") + ("+" if changed else "")
    else:
        owner = name = ""
    return Checkout(name or folder.name, owner, folder, commit, program or find_program(folder), class_name)


def _owner_and_name(url: str) -> tuple[str, str]:
    """Return the last two parts of a repository's address; a local path has no owner."""
    if not _URL.match(url) or url.startswith("file:"):
        return "", ""
    path = urlsplit(url).path if "://" in url else url.partition(":")[2]
    parts = [part for part in path.strip("/").split("/") if part]
    if len(parts) < 2:
        return "", ""
    return parts[-2], parts[-1].removesuffix(".git")


def _repository_of(url: str) -> str:
    """Return a repository's own name."""
    return _owner_and_name(url)[1] or Path(urlsplit(url).path).name.removesuffix(".git") or "repository"


def _path_and_class(target: str) -> tuple[Path, str]:
    if not Path(target).exists() and (match := _CLASS.search(target)):
        return Path(target[: match.start()]), match.group(1)
    return Path(target), ""


def _git(folder: Path, *arguments: str) -> str:
    """Return what a git command prints; nothing where it fails, as outside of a repository."""
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _fetched(url: str, commit: str, repositories: Path) -> Path:
    name = _repository_of(url)
    folder = repositories / f"{name}-{commit[:12]}" / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(folder.parent) as temporary:
        _run_git(url, "init", "--quiet", str(temporary))
        _run_git(url, "-C", str(temporary), "remote", "add", "origin", url)
        # A server may serve commits by their ids, which is one commit's worth of files; else everything is fetched.
        if len(commit) < 40 or not _succeeds(temporary, "fetch", "--quiet", "--depth", "1", "origin", commit):
            _run_git(url, "-C", str(temporary), "fetch", "--quiet", "origin", "+refs/*:refs/remotes/origin/*")
        _run_git(url, "-C", str(temporary), "checkout", "--quiet", "--detach", commit)
        with contextlib.suppress(OSError):  # another command has fetched the same commit meanwhile
            temporary.rename(folder)
    return folder


@contextlib.contextmanager
def _temporary(parent: Path) -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=".fetch-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _succeeds(folder: Path, *arguments: str) -> bool:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False).returncode == 0


def _run_git(url: str, *arguments: str) -> None:
    try:
        subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise HostError("git is not installed", "Install it, or name the folder of a checkout.") from None
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or ["git failed"]
        raise HostError(
            f"{url} cannot be fetched: {lines[-1].removeprefix('fatal: ')}",
            "Without a network, copy a checkout to this machine and name its folder.",
        ) from None
