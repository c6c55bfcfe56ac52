"""Parser of Apptainer definition files: a header of keywords, then sections.

Invariant: every keyword and section is either returned or raises ``InvalidDefinition`` with file and line. Only the
sections of ``apptainer run`` (``RUN_SECTIONS``) are ignored.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ors_containers.errors import InvalidDefinition
from ors_containers.images.building.definition_text import read_definition_text

__all__ = ["BOOTSTRAPS", "RUN_SECTIONS", "Definition", "Section", "read_definition"]

#: Values of the header's ``Bootstrap``: the kinds of bases.
BOOTSTRAPS = ("localimage", "docker", "debootstrap", "docker-archive", "oci-archive", "oci")
#: Sections that are parsed and ignored: they only apply to ``apptainer run``.
RUN_SECTIONS = ("runscript", "startscript", "help")
_SECTIONS = ("post", "environment", "files", "labels", "test", *RUN_SECTIONS)
_ON_THE_HOST = ("setup", "pre")
_KEYWORDS = ("bootstrap", "from", "osversion", "mirrorurl", "include", "registry", "namespace", "fingerprints")
_UNSUPPORTED_BOOTSTRAPS = (
    *("library", "shub", "oras", "docker-daemon", "yum", "dnf", "zypper", "arch", "busybox", "scratch"),
)
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Section:
    """A section with its lines, each with its number in the file."""

    name: str
    #: The number of the line with its name, and the words after the name.
    line: int
    arguments: tuple[str, ...]
    lines: tuple[tuple[int, str], ...]

    @property
    def text(self) -> str:
        """The lines as a script."""
        return "".join(f"{line}\n" for _, line in self.lines)

    @property
    def is_empty(self) -> bool:
        """``True`` where it has only comments and blank lines."""
        return all(not line.strip() or line.lstrip().startswith("#") for _, line in self.lines)

    def place(self, line: int) -> int:
        """Return the number in the file of the script's line ``line``, which counts from 1."""
        return self.lines[line - 1][0] if 0 < line <= len(self.lines) else self.line


@dataclass(frozen=True, slots=True)
class Definition:
    """A definition file."""

    path: Path
    #: Value and line by keyword in lower case.
    header: Mapping[str, tuple[str, int]]
    sections: Mapping[str, Section]

    def error(self, line: int, cause: str, remedy: str = "") -> InvalidDefinition:
        """Return the error for a mistake in this definition."""
        return InvalidDefinition(str(self.path), line, cause, remedy)

    @property
    def bootstrap(self) -> str:
        """The kind of its base, in lower case."""
        return self.header["bootstrap"][0].lower()

    def required(self, keyword: str) -> tuple[str, int]:
        """Return a keyword's value and line. Raises ``InvalidDefinition`` where the header lacks it."""
        if keyword.lower() not in self.header:
            line = self.header["bootstrap"][1]
            raise self.error(line, f"`Bootstrap: {self.bootstrap}` needs a `{keyword}:`, which is missing")
        return self.header[keyword.lower()]

    def section(self, name: str) -> Section | None:
        """Return a section; None where it is missing or empty."""
        section = self.sections.get(name)
        return None if section is None or section.is_empty else section

    def labels(self) -> dict[str, str]:
        """Return names and values of ``%labels``."""
        section = self.section("labels")
        found: dict[str, str] = {}
        for _, line in section.lines if section is not None else ():
            name, _, value = line.strip().partition(" ")
            if name and not name.startswith("#"):
                found[name] = value.strip()
        return found

    def files(self) -> list[tuple[int, str, str]]:
        """Return line, source and target of each entry of ``%files``. Raises ``InvalidDefinition``."""
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
                raise self.error(number, f"{target!r} is not an absolute path without `..`", "Name a path of the image")
            found.append((number, words[0], target))
        return found


def read_definition(path: Path) -> Definition:
    """Read a definition file. Raises ``InvalidDefinition``."""
    text = read_definition_text(path, _MAX_BYTES, "a definition file", "A definition is text; see docs/images.md")
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
        """Read the header; return the number of the line after it."""
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
                    number, f"{stripped[:80]!r} is not a `Keyword: value`", "Sections, such as %post, begin with a %"
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
        """Read the section that begins in line ``start``; return the number of the line after it."""
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
            lines.pop()  # the empty string after the last line break
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
