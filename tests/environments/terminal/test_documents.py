"""Comparers of documents: what is up to the agent is equal, and what another reader might refuse raises an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environments.terminal_families.loading import load_program

Entries = dict[str, list[str]]
#: Returns the state of a folder whose only file has these bytes.
Look = Callable[..., Entries]

#: By comparer: documents that say the same.
EQUAL = {
    "csv": {
        "quotes": (b"a,b\n1,2\n", b'"a","b"\n"1","2"\n'),
        "line ends": (b"a,b\n1,2\n", b"a,b\r\n1,2\r\n"),
        "an empty field": (b"a,b\n,\n", b'a,b\n"",""\n'),
        "an empty record of one field": (b'a\n""\n', b'"a"\r\n""\r\n'),
        "quoted needlessly": (b"a b;c,d\n", b'"a b;c",d\n'),
        "nothing": (b"", b""),
    },
    "json": {
        "layout": (b'{"a":[1,2]}', b' {\r\n\t"a" : [ 1,\n2 ] }\n\n'),
        "order of keys": (b'{"a": 1, "b": {"c": 2, "d": 3}}', b'{"b": {"d": 3, "c": 2}, "a": 1}'),
        "escapes": ('{"\u00e9": "\U0001f600/"}'.encode(), b'{"\\u00e9": "\\ud83d\\ude00\\/"}'),
        "whole numbers": (b"[1, 100, 0, 0]", b"[1.0, 1e2, -0, -0.0]"),
        "fractions": (b"[0.5, 12.25]", b"[5e-1, 1225E-2]"),
    },
}
#: By comparer: documents that say different things.
DIFFERENT = {
    "csv": {
        "order of records": (b"a\n1\n2\n", b"a\n2\n1\n"),
        "order of columns": (b"a,b\n", b"b,a\n"),
        "one more field": (b"a,b\n", b"a,b,\n"),
        "one more record": (b"a,b\n", b"a,b\na,b\n"),
        "a space": (b"a,b\n", b"a, b\n"),
        "another delimiter": (b"a,b\n", b"a;b\n"),
        "a delimiter within": (b'"a,b",c\n', b'a,"b,c"\n'),
        "a line end within": (b'"a\nb"\n', b'"a\r\nb"\n'),
        "a quote within": (b'"a""b"\n', b"ab\n"),
        "case": (b"a\n", b"A\n"),
        "decimals": (b"1\n", b"1.0\n"),
        "nothing": (b"a\n", b""),
    },
    "json": {
        "true and 1": (b"[true]", b"[1]"),
        "false and 0": (b"[false]", b"[0]"),
        "null and 0": (b"[null]", b"[0]"),
        "a number as text": (b"[1]", b'["1"]'),
        "null as text": (b"[null]", b'["null"]'),
        "order of elements": (b"[1, 2]", b"[2, 1]"),
        "one more key": (b"{}", b'{"a": null}'),
        "an object and its pairs": (b'{"a": 1}', b'[["a", 1]]'),
        "large numbers": (b"9007199254740993", b"9007199254740992"),
        "normal forms of letters": ('"\u00e9"'.encode(), '"e\u0301"'.encode()),
    },
}
#: By comparer: documents that are no such document.
REFUSED = {
    "csv": {
        "a byte-order mark": b"\xef\xbb\xbfa,b\n1,2\n",
        "another encoding": "é\n".encode("latin-1"),
        "half a letter": b"a\xc3\n",
        "an open quote": b'a,"b\n1,2\n',
        "an open quote at the end": b'a,b\n1,"\n',
        "a quote within a field": b'a,b"c\n',
        "text after a quote": b'"a"b,c\n',
        "a space before a quote": b'a, "b"\n',
        "mixed line ends": b"a,b\r\n1,2\n",
        "line ends of old": b"a,b\r1,2\r",
        "a blank line within": b"a,b\n\n1,2\n",
        "a blank line first": b"\na,b\n",
        "a blank line last": b"a,b\n1,2\n\n",
        "a blank line with a carriage return": b"a,b\r\n\r\n",
        "no last line end": b"a,b\n1,2",
        "no last line end after a quote": b'a,b\n1,"2"',
        "an end within a record": b"a,b\n1,",
        "far too much": b",\n" * 1_000_000,
    },
    "json": {
        "a key twice": b'{"a": 1, "a": 1}',
        "a key twice by an escape": b'{"a": 1, "\\u0061": 2}',
        "a key twice within": b'[{"b": {"a": 1, "a": 2}}]',
        "a byte-order mark": b"\xef\xbb\xbf{}",
        "UTF-16": "{}".encode("utf-16"),
        "another encoding": '["é"]'.encode("latin-1"),
        "NaN": b"[NaN]",
        "infinity": b"[-Infinity]",
        "a huge exponent": b"[1e400]",
        "a huge number": b"9" * 5000,
        "deep nesting": b"[" * 200_000 + b"]" * 200_000,
        "a comment": b"{} // done",
        "a comma too many": b"[1,]",
        "single quotes": b"{'a': 1}",
        "a number with a leading zero": b"[01]",
        "a second value": b"{}\n{}",
        "a line break in a string": b'["a\nb"]',
        "a NUL after the end": b"{}\0",
        "a no-break space": "{}\u00a0".encode(),
        "nothing": b"",
        "far too much": b" " * 2_000_000 + b"{}",
    },
}


def _cases(table: dict[str, dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(form, case, id=f"{form}: {what}") for form, cases in table.items() for what, case in cases.items()
    ]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """Return the comparison as the tests of a task have it: without annotations, in one module."""
    program = load_program()
    root = tmp_path / "project"
    root.mkdir()

    def state(data: bytes, *form: str) -> Entries:
        (root / "document").write_bytes(data)
        names: dict[str, Any] = {}
        exec(program.state_tests(program.State(str(root.resolve()), forms={"document": form}), ""), names)
        return names["state"]()

    return state


@pytest.mark.parametrize(("form", "documents"), _cases(EQUAL))
def test_documents_that_say_the_same_are_equal(form: str, documents: tuple[bytes, bytes], look: Look) -> None:
    first, second = documents
    assert look(first, form) == look(second, form)


@pytest.mark.parametrize(("form", "documents"), _cases(DIFFERENT))
def test_documents_that_say_different_things_differ(form: str, documents: tuple[bytes, bytes], look: Look) -> None:
    first, second = documents
    assert look(first, form) != look(second, form)


@pytest.mark.parametrize(("form", "data"), _cases(REFUSED))
def test_what_is_no_such_document_is_refused(form: str, data: bytes, look: Look) -> None:
    with pytest.raises((AssertionError, ValueError, RecursionError)):
        look(data, form)


def test_a_table_may_have_another_delimiter(look: Look) -> None:
    assert look(b"a;'b,c'\n", "csv", ";") == look(b'"a";"\'b,c\'"\r\n', "csv", ";")
    with pytest.raises(AssertionError, match="is not a table at character 3"):
        look(b'"a",b\n'.replace(b",", b"\t"), "csv", ";")
