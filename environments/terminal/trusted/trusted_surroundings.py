"""Surroundings of the tests and of the programs they start: variables, folders for programs, temporary files.

Invariant: temporary files of one test are removed before the next test starts, so that no program of the agent that a
test starts can read what another test has written. Files of fixtures for several tests, and files that a variable of
the tests' module names, are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import Any, cast

__all__ = [
    "ProgramVariables",
    "Scratch",
    "is_trusted_folder",
    "prepare_environment",
    "processes_of",
    "restrict_archives",
]

#: Settings that keep git from running programs that a repository or a home configures, where tests only read it. Each
#: has a pattern: the setting is left out if the tests' text matches, because the tests are about it.
_GIT = (
    ("core.fsmonitor", "false", r"fsmonitor"),
    (
        "core.hooksPath",
        os.devnull,
        r"(?i)hook|\b(commit|merge|push|rebase|checkout|am|cherry-pick)\b[\"' ]*[,\]]"
        r"|\bgit\b[^\n;&|]*\s(commit|merge|push|rebase|checkout|am|cherry-pick)(?![\w-])",
    ),
    ("log.showSignature", "false", r"(?i)sign|gpg"),
    ("uploadpack.packObjectsHook", "", r"packObjectsHook"),
)
#: git's own values of settings by which a repository changes what git prints. Those that the tests name are left out.
_DISPLAY = {
    "advice.statusAheadBehindWarning": "true",
    "advice.statusHints": "true",
    "advice.statusUoption": "true",
    "blame.blankBoundary": "false",
    "blame.coloring": "none",
    "blame.date": "iso",
    "blame.ignoreRevsFile": "",
    "blame.markIgnoredLines": "false",
    "blame.markUnblamableLines": "false",
    "blame.showEmail": "false",
    "blame.showRoot": "false",
    "branch.sort": "refname",
    "color.branch": "auto",
    "color.diff": "auto",
    "color.grep": "auto",
    "color.status": "auto",
    "color.ui": "auto",
    "column.branch": "never",
    "column.status": "never",
    "column.tag": "never",
    "column.ui": "never",
    "core.abbrev": "auto",
    "core.attributesFile": os.devnull,
    "core.bigFileThreshold": "512m",
    "core.excludesFile": os.devnull,
    "core.quotePath": "true",
    "diff.context": "3",
    "diff.ignoreSubmodules": "none",
    "diff.interHunkContext": "0",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.relative": "false",
    "diff.renameLimit": "1000",
    "diff.renames": "true",
    "diff.statGraphWidth": "0",
    "diff.statNameWidth": "0",
    "diff.submodule": "short",
    "diff.suppressBlankEmpty": "false",
    "format.pretty": "medium",
    "grep.column": "false",
    "grep.fullName": "false",
    "grep.lineNumber": "false",
    "grep.patternType": "default",
    "i18n.logOutputEncoding": "UTF-8",
    "log.abbrevCommit": "false",
    "log.date": "default",
    "log.decorate": "auto",
    "log.follow": "false",
    "log.mailmap": "true",
    "log.showRoot": "true",
    "safe.directory": "*",
    "status.aheadBehind": "true",
    "status.branch": "false",
    "status.displayCommentPrefix": "false",
    "status.relativePaths": "true",
    "status.renames": "true",
    "status.short": "false",
    "status.showStash": "false",
    "status.showUntrackedFiles": "normal",
    "status.submoduleSummary": "false",
    "tag.sort": "refname",
}
_TRANSFERS = re.compile(r"\b(clone|fetch|pull|push|ls-remote|submodule|remote|bundle)\b")


def prepare_environment(scratch: str, text: str) -> None:
    """Set the variables: none that leads to a folder that the agent can write to, or loads code."""
    home = os.environ.get("HOME", "/")
    folders = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join(folder for folder in folders if is_trusted_folder(folder, home))
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "PYTHON", "LD_"))]:
        del os.environ[name]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # The scratch folder has space although the agent's disk may be full.
    os.environ["TMPDIR"] = scratch
    try:
        os.getcwd()  # noqa: PTH109 - pathlib is one import more before the guard
    except OSError:
        os.chdir("/")


def restrict_archives(text: str) -> None:
    """Let ``tarfile`` unpack no member of an archive outside of its target, by a path or through a link."""
    if re.search(r"tar|unpack", text) is None:
        return  # importing tarfile takes some milliseconds
    import tarfile

    data_filter = getattr(tarfile, "data_filter", None)  # absent from the first releases of Python 3.11
    if data_filter is not None:
        tarfile.TarFile.extraction_filter = staticmethod(data_filter)


class ProgramVariables:
    """Variables that every program of the tests gets, whatever environment the test has passed to it.

    They follow from the tests' text, which is searched for the first program: most tests start none.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _settings(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value, about in _GIT if re.search(about, self._text) is None]

    @cached_property
    def _display(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in _DISPLAY.items() if name not in self._text]

    @cached_property
    def _protocol(self) -> str:
        return "file" if _TRANSFERS.search(self._text) else "none"

    def __call__(self, reader: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables to add to ``environment``; ``reader`` is ``git`` for a git that only reads."""
        reads = reader == "git"
        found = {
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": environment.get("GIT_ALLOW_PROTOCOL", self._protocol),
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_PAGER": "cat",
            "PAGER": "cat",
        }
        if reads:
            found |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        settings = self._display if reads else self._settings
        number = environment.get("GIT_CONFIG_COUNT", "0")
        first = int(number) if number.isdecimal() else 0
        for place, (name, value) in enumerate(settings, first):
            found[f"GIT_CONFIG_KEY_{place}"], found[f"GIT_CONFIG_VALUE_{place}"] = name, value
        return {**found, "GIT_CONFIG_COUNT": str(first + len(settings))}


def is_trusted_folder(folder: str, home: str) -> bool:
    """Return whether programs may be looked up in a folder: it is not the agent's, and the agent cannot write to it."""
    if not folder.startswith("/") or f"{folder}/".startswith(f"{home.rstrip('/')}/"):
        return False
    return os.getuid() == 0 or not os.access(folder, os.W_OK)


class Scratch:
    """The folder for temporary files, including those that pytest creates."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._kept = set(self._found())

    def keep(self, path: str) -> None:
        """Keep a file or a folder."""
        self._kept.add(path)

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Keep the files that this block creates."""
        before = set(self._found())
        try:
            yield
        finally:
            self._kept.update(path for path in self._found() if path not in before)

    def clean(self, module: ModuleType | None) -> None:
        """Remove files that are neither kept nor named by a variable of ``module``."""
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
    """Yield the values of a module's variables, and the values these contain."""
    for value in list(vars(module).values()) if module is not None else ():
        yield value
        items: Iterable[Any] = ()
        if isinstance(value, dict):
            items = cast("Any", dict).values(value)  # a pickle may set an attribute called `values`
        elif isinstance(value, (list, tuple, set)):
            items = cast("Iterable[Any]", value)
        elif isinstance(value, type):
            items = vars(value).values()
        yield from list(items)


def processes_of(module: ModuleType | None) -> Iterator[int]:
    """Yield the ids of the processes that a module's variables stand for."""
    for value in held_by(module):
        number = _attribute(value, "pid")
        if isinstance(number, int):
            yield number


def _attribute(value: object, name: str) -> object:
    """Return an attribute, or None. The object may have been made from the agent's data."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 - it may be computed, from anything
        return None


def _path_of(value: object) -> str:
    """Return the path that a value is or stands for: text, a ``Path``, a ``TemporaryDirectory`` or an open file."""
    for candidate in (value, _attribute(value, "name")):
        if isinstance(candidate, (str, os.PathLike)):
            with contextlib.suppress(TypeError, ValueError):
                return os.fsdecode(cast("str", candidate))
    return ""


def _remove(path: str) -> None:
    """Remove a file or a tree, whatever its modes; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.chmod(path, 0o700)  # noqa: PTH101 - as above
            for name in os.listdir(path):  # noqa: PTH208 - as above
                _remove(f"{path}/{name}")
            os.rmdir(path)  # noqa: PTH106 - as above
        else:
            os.unlink(path)  # noqa: PTH108 - as above
