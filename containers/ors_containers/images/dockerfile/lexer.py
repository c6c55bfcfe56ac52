"""The lines of a Dockerfile as instructions: parser directives, comments, continuation lines and here-documents.

Invariant: an instruction knows the line that it begins in, so every error names file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from ors_containers.errors import InvalidDefinition
from ors_containers.images.building.definition_text import read_definition_text

__all__ = ["HereDocument", "RawInstruction", "Source", "read_source"]

_MAX_BYTES = 1 << 20
_DIRECTIVE = re.compile(r"#\s*([A-Za-z][\w.-]*)\s*=\s*(.+)")
_HERE = re.compile(r"\d*<<(-?)([^<\s]+)")
_HERE_ALONE = re.compile(r"\d*<<-?")
_WITH_DOCUMENTS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class HereDocument:
    """The text between ``<<NAME`` and a line with the name."""

    name: str
    text: str
    #: Whether variables in it are expanded: its name is not quoted.
    expand: bool


@dataclass(frozen=True, slots=True)
class RawInstruction:
    """An instruction's word in capitals, and the rest of its lines as one text."""

    line: int
    word: str
    rest: str
    documents: tuple[HereDocument, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A Dockerfile's name for errors, its escape character and its instructions."""

    path: Path
    escape: str = "\\"
    instructions: tuple[RawInstruction, ...] = field(default=())

    def error(self, line: int, cause: str, remedy: str = "") -> InvalidDefinition:
        """Return the error for a mistake in this Dockerfile."""
        return InvalidDefinition(str(self.path), line, cause, remedy)


def read_source(path: Path) -> Source:
    """Read a Dockerfile. Raises ``InvalidDefinition``."""
    text = read_definition_text(path, _MAX_BYTES, "a Dockerfile", "A Dockerfile is text; see docs/images.md")
    return read_text(path, text.removeprefix("\ufeff"))


def read_text(path: Path, text: str) -> Source:
    """Read the text of a Dockerfile; ``path`` is its name in errors."""
    lines = text.split("\n")
    source = Source(path, _escape(path, lines))
    return Source(path, source.escape, tuple(_Lexer(source, lines).instructions()))


def _escape(path: Path, lines: list[str]) -> str:
    """Return the escape character that the directives before the first other line set."""
    for number, line in enumerate(lines, 1):
        found = _DIRECTIVE.fullmatch(line.strip())
        if found is None:
            break
        if found[1].lower() == "escape":
            if found[2] not in ("\\", "`"):
                raise InvalidDefinition(str(path), number, f"The escape character {found[2]!r} is not \\ or `")
            return found[2]
    return "\\"


class _Lexer:
    def __init__(self, source: Source, lines: list[str]) -> None:
        self._source = source
        self._lines = lines
        escape = re.escape(source.escape)
        # A doubled escape character at the end of a line is not a continuation.
        self._continued = re.compile(rf"(?:(?<=[^{escape}])|^){escape}[ \t]*$")
        self._next = 0

    def instructions(self) -> Iterator[RawInstruction]:
        while True:
            start, text = self._logical_line()
            if not start:
                return
            word, *rest = text.split(maxsplit=1)
            word, inner = word.upper(), rest[0].strip() if rest else ""
            if word in (*_WITH_DOCUMENTS, "ONBUILD") and "<<" in inner:
                inner = _with_joined_names(inner)
            yield RawInstruction(start, word, inner, tuple(self._documents(start, word, inner)))

    def _logical_line(self) -> tuple[int, str]:
        """Return the number and text of the next line with its continuations; 0 at the end of the file.

        Comments and blank lines are dropped, within an instruction as well.
        """
        start, text = 0, ""
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            continued = self._continued.search(line)
            text += line if continued is None else line[: continued.start()]
            if not start:
                text = text.lstrip()
                start = self._next if text else 0
            if continued is None:
                break
        return start, text

    def _documents(self, line: int, word: str, rest: str) -> Iterator[HereDocument]:
        inner = rest
        if word == "ONBUILD":
            word, _, inner = rest.partition(" ")
        if word.upper() not in _WITH_DOCUMENTS or "<<" not in rest:
            return
        for token in _words(inner):
            found = _HERE.fullmatch(token[0])
            if found is None:
                continue
            name = re.sub(r"""["'\\]""", "", found[2])
            if not name:
                continue
            yield HereDocument(name, self._document(line, name, tabs=bool(found[1])), name == found[2])

    def _document(self, line: int, name: str, *, tabs: bool) -> str:
        text = ""
        while self._next < len(self._lines):
            content = self._lines[self._next]
            self._next += 1
            if tabs:
                content = content.lstrip("\t")
            if content == name:
                return text
            text += f"{content}\n"
        raise self._source.error(line, f"The here-document {name} has no end", f"End it with a line {name}")


def _words(text: str) -> list[re.Match[str]]:
    """Return the words of a shell command with their quotes; a word of arithmetic is not read."""
    shown = _without_arithmetic(text)
    return list(re.finditer(r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|\\.|[^\s"'])+""", shown, re.DOTALL))


def _without_arithmetic(text: str) -> str:
    """Return a shell command in which ``((1 << 2))``, whose ``<<`` begins no here-document, is blanked out."""
    parts: list[str] = []
    end = 0
    while (start := text.find("((", end)) >= 0 and (closed := text.find("))", start)) >= 0:
        parts += [text[end:start], "_" * (closed + 2 - start)]
        end = closed + 2
    return "".join([*parts, text[end:]])


def _with_joined_names(text: str) -> str:
    """Return a shell command with no space between ``<<`` and the name of a here-document, which a shell allows."""
    parts: list[str] = []
    end = 0
    for operator, name in pairwise(_words(text)):
        if _HERE_ALONE.fullmatch(operator[0]) and "<" not in name[0]:
            parts.append(text[end : operator.end()])
            end = name.start()
    return "".join([*parts, text[end:]])
