"""Comparers of text, tables, JSON and XML: what a document says, however it is laid out.

Part of the text of an examination (``program``). Each returns a value that is equal for documents that say the same,
and raises an error for a document that another reader might refuse or read otherwise.
"""

from __future__ import annotations

import json
import math
import re
import xml.parsers.expat
from typing import Any

from .tree import content

__all__ = ["form_any", "form_csv", "form_json", "form_xml"]

#: Bytes of a document. No solution needs more, and what a parser makes of them is many times as large.
_DOCUMENT = 2_000_000


def form_any(path: str) -> str:
    """Return the same value for every regular file: other tests judge it."""
    content(path)
    return ""


def document(path: str) -> bytes:
    """Return the bytes of a file that is small enough to be parsed."""
    data = content(path)
    assert len(data) < _DOCUMENT, f"{path} is far too large"
    return data


def form_csv(path: str, delimiter: str = ",") -> list[list[str]]:
    """Return the records of a table. Quotes are free, and so are line ends, as long as all are the same."""
    text = document(path).decode()
    assert not text.startswith("\ufeff"), f"{path} begins with a byte-order mark"
    field = re.compile(rf'"((?:[^"]|"")*)"|([^"\r\n{re.escape(delimiter)}]*)')
    ends: set[str] = set()
    records: list[list[str]] = []
    record: list[str] = []
    place = 0
    while place < len(text):
        matched = field.match(text, place)
        assert matched is not None
        quoted: str | None = matched[1]
        record.append(matched[2] if quoted is None else quoted.replace('""', '"'))
        place = matched.end()
        end = re.compile(r"\r?\n").match(text, place)
        if end is not None:
            assert record != [""] or quoted is not None, f"{path} has an empty line"
            records.append(record)
            record = []
            ends.add(end[0])
            place = end.end()
        else:
            assert text[place : place + 1] == delimiter, f"{path} is not a table at character {place}"
            place += 1
            assert place < len(text), f"{path} ends within a record"
    assert not record, f"{path} does not end with a newline"
    assert len(ends) <= 1, f"{path} has different line ends"
    return records


def form_json(path: str) -> Any:
    """Return the value of a JSON file: layout and order of keys are free, and 1.0 is 1."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), f"{path} has a key twice"
        return dict(pairs)

    def number(text: str) -> int | float:
        value = float(text)
        assert math.isfinite(value), f"{path} has a number that is too large"
        return int(value) if value.is_integer() else value

    def refuse(name: str) -> None:
        raise AssertionError(f"{path} has {name}, which JSON lacks")

    text = document(path).decode()
    return json.loads(text, object_pairs_hook=unique, parse_float=number, parse_constant=refuse)


def form_xml(path: str) -> Any:
    """Return the elements of an XML file. White space between them is free.

    Comments, instructions and document types are refused.
    """
    data = document(path)
    assert not data.decode().startswith("\ufeff"), f"{path} begins with a byte-order mark"
    top: list[Any] = ["", [], [""], []]
    pending = [top]

    def start(tag: str, attributes: dict[str, str]) -> None:
        element: list[Any] = [tag, sorted(attributes.items()), [""], []]
        pending[-1][3].append(element)
        pending[-1][2].append("")
        pending.append(element)

    def text(more: str) -> None:
        pending[-1][2][-1] += more

    def end(tag: str) -> None:
        element = pending.pop()
        if element[3] and not "".join(element[2]).strip(" \t\n"):
            element[2] = []

    def refuse(*what: object) -> None:
        raise AssertionError(f"{path} has a comment, an instruction or a document type: {what!r}")

    def declared(version: str, encoding: str | None, standalone: int) -> None:
        assert (encoding or "utf-8").lower() == "utf-8", f"{path} declares the encoding {encoding}"
        assert version == "1.0", f"{path} declares XML {version}"

    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text
    parser.CommentHandler = parser.ProcessingInstructionHandler = parser.StartDoctypeDeclHandler = refuse
    parser.XmlDeclHandler = declared
    parser.Parse(data, True)
    return top[3]
