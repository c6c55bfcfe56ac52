"""What tests and the programs they start find around them: variables, folders for programs, temporary files.

Invariant: what one test leaves in temporary folders is gone when the next one starts, so that no program of the agent's
that a test starts reads what another test has written. What fixtures for several tests have made, and what the tests'
module names in its own variables, stays.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator
from types import ModuleType
from typing import Any, cast

__all__ = ["Scratch", "is_trusted_folder", "prepare_environment", "processes_of"]

#: Settings that make git run programs which a repository or a home names, where only a look at it is wanted; with what
#: a test's text holds if it is about them.
_GIT = (
    ("core.fsmonitor", "false", r"fsmonitor"),
    ("core.hooksPath", os.devnull, r"(?i)hook|\b(commit|merge|push|rebase|checkout|am|cherry-pick)\b[\"' ]*[,\]]"),
    ("log.showSignature", "false", r"(?i)sign|gpg"),
    ("uploadpack.packObjectsHook", "", r"packObjectsHook"),
)
_TRANSFERS = re.compile(r"\b(clone|fetch|pull|push|ls-remote|submodule|remote|bundle)\b")


def prepare_environment(scratch: str, text: str) -> None:
    """Set the variables: no path that the agent may have written to, and no program of its own by way of git."""
    home = os.environ.get("HOME", "/")
    folders = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join(folder for folder in folders if is_trusted_folder(folder, home))
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PYTHON", "LD_"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # For the Python that a test starts: a site-packages in the agent's home could change what it says.
    os.environ["PYTHONNOUSERSITE"] = "1"
    # On a full disk too.
    os.environ["TMPDIR"] = scratch
    if "git" in text:
        os.environ.update(git_variables(text))
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is one import more before the guard
    except OSError:
        os.chdir("/")


def git_variables(text: str) -> dict[str, str]:
    """Variables that keep the git of these tests from fetching what is missing and from running what is configured."""
    settings = [(name, value) for name, value, about in _GIT if re.search(about, text) is None]
    found = {
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ALLOW_PROTOCOL": "file" if _TRANSFERS.search(text) else "none",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
        "GIT_CONFIG_COUNT": str(len(settings)),
    }
    for number, (name, value) in enumerate(settings):
        found[f"GIT_CONFIG_KEY_{number}"], found[f"GIT_CONFIG_VALUE_{number}"] = name, value
    return found


def is_trusted_folder(folder: str, home: str) -> bool:
    """Whether programs may be looked up there: neither the agent's nor writable for it."""
    if not folder.startswith("/") or f"{folder}/".startswith(f"{home.rstrip('/')}/"):
        return False
    return os.getuid() == 0 or not os.access(folder, os.W_OK)


class Scratch:
    """The folder for temporary files, those that pytest makes too."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._kept = set(self._found())

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Keep what is made in this block."""
        before = set(self._found())
        try:
            yield
        finally:
            self._kept.update(path for path in self._found() if path not in before)

    def clean(self, module: ModuleType | None) -> None:
        """Remove what is not kept, nor named by a variable of ``module``."""
        found = [path for path in self._found() if path not in self._kept]
        if not found:
            return
        named = [text for value in held_by(module) if (text := _path_of(value))]
        for path in found:
            if not any(f"{text}/".startswith(f"{path}/") for text in named):
                _remove(path)

    def _found(self) -> Iterator[str]:
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):  # noqa: PTH208 - pathlib is one import more
                yield f"{self._folder}/{name}"


def held_by(module: ModuleType | None) -> Iterator[object]:
    """The values of a module's variables, and what these hold in turn."""
    for value in list(vars(module).values()) if module is not None else ():
        yield value
        items: Iterable[Any] = ()
        if isinstance(value, dict):
            items = cast("Any", dict).values(value)  # a pickle may give it an attribute of this name
        elif isinstance(value, (list, tuple, set)):
            items = cast("Iterable[Any]", value)
        elif isinstance(value, type):
            items = vars(value).values()
        yield from list(items)


def processes_of(module: ModuleType | None) -> Iterator[int]:
    """The numbers of the processes that a module's variables stand for."""
    for value in held_by(module):
        number = _attribute(value, "pid")
        if isinstance(number, int):
            yield number


def _attribute(value: object, name: str) -> object:
    """An attribute of an object that the tests may have made of the agent's data, if it has one."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - it may be computed, from anything
        return None


def _path_of(value: object) -> str:
    """The path that a value is or stands for: text, a ``Path``, a ``TemporaryDirectory``, an open file."""
    for candidate in (value, _attribute(value, "name")):
        if isinstance(candidate, (str, os.PathLike)):
            with contextlib.suppress(TypeError, ValueError):
                return os.fsdecode(cast("str", candidate))
    return ""


def _remove(path: str) -> None:
    """Remove a file or a tree, whatever modes it has; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.chmod(path, 0o700)  # noqa: PTH101 - as above
            for name in os.listdir(path):  # noqa: PTH208 - as above
                _remove(f"{path}/{name}")
            os.rmdir(path)  # noqa: PTH106 - as above
        else:
            os.unlink(path)  # noqa: PTH108 - as above
