"""Apptainer definition files, read: a header of keywords, then sections.

Invariant: what a definition says is either kept or refused with the file and line that says it; nothing is dropped in
silence but the sections that only matter to ``apptainer run`` (``RUN_SECTIONS``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ors_containers.errors import InvalidDefinition

__all__ = ["BOOTSTRAPS", "RUN_SECTIONS", "Definition", "Section", "read_definition"]

#: How a base is found, by its name in the header.
BOOTSTRAPS = ("localimage", "docker", "debootstrap", "docker-archive", "oci-archive", "oci")
#: Kept by nobody: they say what happens when the image itself is run.
RUN_SECTIONS = ("runscript", "startscript", "help")
_SECTIONS = ("post", "environment", "files", "labels", "test", *RUN_SECTIONS)
_ON_THE_HOST = ("setup", "pre")
_KEYWORDS = ("bootstrap", "from", "osversion", "mirrorurl", "include", "registry", "namespace", "fingerprints")
_UNSUPPORTED_BOOTSTRAPS = (
    *("library", "shub", "oras", "docker-daemon", "yum", "dnf", "zypper", "arch", "busybox", "scratch"),
)
_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its lines, each with its number in the file."""

    name: str
    #: The line with its name, and what stands behind the name there.
    line: int
    arguments: tuple[str, ...]
    lines: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        """The lines as a script."""
        return "".join(f"{line}\n" for _, line in self.lines)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but comments and blanks in it."""
        return all(not line.strip() or line.lstrip().startswith("#") for _, line in self.lines)

    def place(self, line: int) -> int:
        """Where the script's line ``line``, from 1, stands in the file."""
        return self.lines[line - 1][0] if 0 < line <= len(self.lines) else self.line


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition file."""

    path: Path
    #: By keyword in small letters: value and line.
    header: Mapping[str, tuple[str, int]]
    sections: Mapping[str, Section]

    def error(self, line: int, cause: str, remedy: str = "") -> InvalidDefinition:
        """A mistake in it."""
        return InvalidDefinition(str(self.path), line, cause, remedy)

    @property
    def bootstrap(self) -> str:
        """How its base is found."""
        return self.header["bootstrap"][0].lower()

    def required(self, keyword: str) -> tuple[str, int]:
        """A keyword's value and line. Raises ``InvalidDefinition`` where the header lacks it."""
        if keyword.lower() not in self.header:
            line = self.header["bootstrap"][1]
            raise self.error(line, f"`Bootstrap: {self.bootstrap}` needs a `{keyword}:`, which is missing")
        return self.header[keyword.lower()]

    def section(self, name: str) -> Section | None:
        """A section that is there and not empty."""
        section = self.sections.get(name)
        return None if section is None or section.is_empty else section

    def labels(self) -> dict[str, str]:
        """Names and values of ``%labels``."""
        section = self.section("labels")
        found: dict[str, str] = {}
        for _, line in section.lines if section is not None else ():
            name, _, value = line.strip().partition(" ")
            if name and not name.startswith("#"):
                found[name] = value.strip()
        return found

    def files(self) -> list[tuple[int, str, str]]:
        """``%files``: line, source and target of each. Raises ``InvalidDefinition``."""
        section = self.section("files")
        if section is None:
            return []
        found: list[tuple[int, str, str]] = []
        for number, line in section.lines:
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise self.error(number, f"%files cannot be read: {error}") from error
            if not words:
                continue
            if len(words) > 2:
                raise self.error(
                    number, f"%files has {len(words)} words in a line", "Write `SOURCE` or `SOURCE TARGET`"
                )
            target = words[-1]
            if not target.startswith("/") or ".." in target.split("/"):
                raise self.error(number, f"{target!r} is no absolute path without `..`", "Name a path of the image")
            found.append((number, words[0], target))
        return found


def read_definition(path: Path) -> Definition:
    """Read a definition file. Raises ``InvalidDefinition``."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would be to wait for somebody who writes
            raise InvalidDefinition(str(path), 0, "it is no regular file")
        with path.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidDefinition(str(path), 0, f"it cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES or b"\0" in content:
        raise InvalidDefinition(str(path), 0, "it is no definition file", "A definition is text; see docs/images.md")
    text = content.decode("utf-8", "surrogateescape").replace("\r\n", "\n")
    return _Reader(path, text.split("\n")).read()


class _Reader:
    def __init__(self, path: Path, lines: list[str]) -> None:
        self._path = path
        self._lines = lines
        self._header: dict[str, tuple[str, int]] = {}
        self._sections: dict[str, Section] = {}

    def _error(self, line: int, cause: str, remedy: str = "") -> InvalidDefinition:
        return InvalidDefinition(str(self._path), line, cause, remedy)

    def read(self) -> Definition:
        number = self._read_header()
        self._check_header()
        while number <= len(self._lines):
            number = self._read_section(number)
        return Definition(self._path, self._header, self._sections)

    def _read_header(self) -> int:
        """The header; the number of the line behind it."""
        for number, line in enumerate(self._lines, 1):
            if line.startswith("%"):
                return number
            stripped = line.partition(" #")[0].strip()
            if not stripped or stripped.startswith("#"):
                continue
            keyword, colon, value = stripped.partition(":")
            keyword = keyword.strip().lower()
            if not colon or not re.fullmatch(r"[a-z]+", keyword):
                raise self._error(
                    number, f"{stripped[:80]!r} is no `Keyword: value`", "Sections, such as %post, begin with a %"
                )
            if keyword not in _KEYWORDS:
                known = ", ".join(word.capitalize() for word in _KEYWORDS)
                raise self._error(number, f"The keyword {keyword!r} is not known", f"Known: {known}")
            if keyword in self._header:
                raise self._error(
                    number,
                    f"{keyword.capitalize()} is said twice, first in line {self._header[keyword][1]}",
                    "Definitions of several stages are not built here: build the first by itself and start from it",
                )
            if not value.strip():
                raise self._error(number, f"{keyword.capitalize()} has no value")
            self._header[keyword] = (value.strip(), number)
        return len(self._lines) + 1

    def _check_header(self) -> None:
        if "bootstrap" not in self._header:
            raise self._error(0, "It says no `Bootstrap:`", f"Begin it with `Bootstrap:` and one of {_listed()}")
        bootstrap, line = self._header["bootstrap"]
        if bootstrap.lower() in _UNSUPPORTED_BOOTSTRAPS:
            raise self._error(
                line,
                f"`Bootstrap: {bootstrap}` is Apptainer's own",
                f"Build the base with apptainer; here: {_listed()}",
            )
        if bootstrap.lower() not in BOOTSTRAPS:
            raise self._error(line, f"The bootstrap {bootstrap!r} is not known", f"Known: {_listed()}")
        needed = "osversion" if bootstrap.lower() == "debootstrap" else "from"
        if needed not in self._header:
            name = "OSVersion" if needed == "osversion" else "From"
            raise self._error(line, f"`Bootstrap: {bootstrap}` needs a `{name}:`, which is missing")

    def _read_section(self, start: int) -> int:
        """The section that begins in line ``start``; the number of the line behind it."""
        words = self._lines[start - 1][1:].split()
        name = words[0].lower() if words else ""
        end = start + 1
        while end <= len(self._lines) and not self._lines[end - 1].startswith("%"):
            if re.match(r"bootstrap:", self._lines[end - 1], re.IGNORECASE):
                raise self._error(
                    end,
                    "Definitions of several stages are not built here",
                    "Build the first stage by itself and start from it",
                )
            end += 1
        lines = [(number, self._lines[number - 1]) for number in range(start + 1, end)]
        if end > len(self._lines) and lines and not lines[-1][1]:
            lines.pop()  # what follows the last line's end
        section = Section(name, start, tuple(words[1:]), tuple(lines))
        self._check_section(section)
        before = self._sections.get(name)
        if before is not None:
            section = Section(name, before.line, before.arguments, before.lines + section.lines)
        self._sections[name] = section
        return end

    def _check_section(self, section: Section) -> None:
        if section.name in _ON_THE_HOST:
            if not section.is_empty:
                raise self._error(
                    section.line,
                    f"%{section.name} runs on the machine that builds, outside of the image, which is never done here",
                    "Move it to %post, or name the files it makes in %files",
                )
        elif section.name not in _SECTIONS:
            known = ", ".join(f"%{name}" for name in _SECTIONS)
            raise self._error(section.line, f"The section %{section.name} is not known", f"Known: {known}")
        if section.name == "files" and section.arguments:
            raise self._error(
                section.line,
                "%files from another stage is not done here",
                "Build that stage by itself, and copy from its folder",
            )
        if section.name in ("post", "test") and section.arguments and section.arguments[0] != "-c":
            raise self._error(
                section.line, f"%{section.name} {section.arguments[0]} is not known", "Known: `-c /bin/bash`"
            )


def _listed() -> str:
    return ", ".join(BOOTSTRAPS)
