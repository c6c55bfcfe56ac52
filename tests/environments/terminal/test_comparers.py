"""Comparers of archives, databases and XML: what each leaves free, and what it finds or refuses."""

from __future__ import annotations

import gzip
import io
import os
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.parsers import expat

import pytest

from ors_server.hosting.loading.folder_imports import folder_package
from tests.environments.terminal_families.loading import ENVIRONMENT

_package = folder_package(ENVIRONMENT)
_archives, _documents = _package.load("states.archives"), _package.load("states.documents")
form_sqlite: Callable[[str], Any] = _package.load("states.databases").form_sqlite

REFUSALS = (
    AssertionError,
    OSError,
    ValueError,
    expat.ExpatError,
    sqlite3.Error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def differs(form: Callable[[str], Any], tmp_path: Path, right: bytes, other: bytes) -> bool:
    """Return whether a comparer finds or refuses another content of a file."""
    (tmp_path / "right").write_bytes(right)
    (tmp_path / "other").write_bytes(other)
    expected = form(str(tmp_path / "right"))
    try:
        return form(str(tmp_path / "other")) != expected
    except REFUSALS:
        return True


# --- gzip ---


@pytest.mark.parametrize(
    "other",
    [
        gzip.compress(b"a\n") + b"more",
        gzip.compress(b"a\n") + b"\0" * 512,
        gzip.compress(b"a") + gzip.compress(b"\n"),
        gzip.compress(b"a\n")[:-1],
        gzip.compress(b"a\n")[:-8] + bytes(8),
        gzip.compress(b"a\n")[:3] + b"\x10" + gzip.compress(b"a\n")[4:10] + b"comment\0" + gzip.compress(b"a\n")[10:],
        b"a\n",
        b"",
    ],
)
def test_gzip_is_one_member(other: bytes, tmp_path: Path) -> None:
    assert differs(_archives.form_gzip, tmp_path, gzip.compress(b"a\n"), other)


def test_names_times_and_levels_of_gzip_are_free(tmp_path: Path) -> None:
    named = io.BytesIO()
    with gzip.GzipFile("name", "wb", 1, named, mtime=7) as file:
        file.write(b"a\n")
    assert not differs(_archives.form_gzip, tmp_path, gzip.compress(b"a\n"), named.getvalue())


# --- tar ---


def member(name: str, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = kind, mode, os.geteuid(), os.getegid()
    for key, value in more.items():
        setattr(info, key, value)
    return info


def tar(*members: tarfile.TarInfo, layout: int = tarfile.GNU_FORMAT, **headers: str) -> bytes:
    """Return an archive whose files all have the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout, pax_headers=headers) as archive:
        for one in members:
            one.size = 5 if one.isreg() else 0
            archive.addfile(one, io.BytesIO(b"text\n"))
    return buffer.getvalue()


LONG = "a/" * 60 + "long.txt"


def folder(name: str) -> tarfile.TarInfo:
    return member(name, kind=tarfile.DIRTYPE, mode=0o755)


def tar_files() -> list[tarfile.TarInfo]:
    return [member("a/b.txt"), member("a/c.txt"), member(LONG)]


@pytest.mark.parametrize(
    "other",
    [
        lambda: tar(*tar_files()[::-1]),
        lambda: tar(*tar_files(), layout=tarfile.PAX_FORMAT),
        lambda: tar(folder("a"), *tar_files()),
        lambda: tar(folder("."), *tar_files()),
        lambda: tar(member("./a/b.txt"), *tar_files()[1:]),
        lambda: tar(member("a/b.txt", mtime=12.5), *tar_files()[1:], layout=tarfile.PAX_FORMAT),
        lambda: tar(member("a/b.txt", kind=tarfile.AREGTYPE), *tar_files()[1:]),
        lambda: tar(*tar_files()) + bytes(5120),
    ],
)
def test_what_is_free_in_tar(other: Callable[[], bytes], tmp_path: Path) -> None:
    assert not differs(_archives.form_tar, tmp_path, tar(*tar_files()), other())


@pytest.mark.parametrize(
    "other",
    [
        lambda: tar(*tar_files()[1:]),
        lambda: tar(*tar_files(), member("more.txt")),
        lambda: tar(*tar_files(), member("a/b.txt")),
        lambda: tar(*tar_files(), member("./a//b.txt")),
        lambda: tar(*tar_files(), member("../more.txt")),
        lambda: tar(member("/a/b.txt"), *tar_files()[1:]),
        lambda: tar(member("x/../a/../../b.txt"), *tar_files()),
        lambda: tar(member("a/b.txt", mode=0o755), *tar_files()[1:]),
        lambda: tar(member("a/b.txt", mode=0o4644), *tar_files()[1:]),
        lambda: tar(member("a/b.txt", uid=12345), *tar_files()[1:]),
        lambda: tar(member("a/b.txt", gid=12345), *tar_files()[1:]),
        lambda: tar(member("a/b.txt", kind=tarfile.SYMTYPE, linkname="c.txt"), *tar_files()[1:]),
        lambda: tar(*tar_files()[1:], member("a/b.txt", kind=tarfile.LNKTYPE, linkname="a/c.txt")),
        lambda: tar(member("a/b.txt", kind=tarfile.FIFOTYPE), *tar_files()[1:]),
        lambda: tar(member("a/b.txt", kind=tarfile.CHRTYPE), *tar_files()[1:]),
        lambda: tar(member("a", kind=tarfile.DIRTYPE, mode=0), *tar_files()),
        lambda: tar(member("a", kind=tarfile.DIRTYPE, mode=0o4755), *tar_files()),
        lambda: tar(member("a", kind=tarfile.DIRTYPE, mode=0o755, uid=12345), *tar_files()),
        lambda: tar(*tar_files(), layout=tarfile.PAX_FORMAT, comment="more"),
        lambda: tar(
            member("a/b.txt", pax_headers={"SCHILY.xattr.user.a": "b"}), *tar_files()[1:], layout=tarfile.PAX_FORMAT
        ),
        lambda: tar(
            member("a/b.txt", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
            *tar_files()[1:],
            layout=tarfile.PAX_FORMAT,
        ),
        lambda: tar(*tar_files()) + b"more",
        lambda: tar(*tar_files()) + tar(member("more.txt")),
        lambda: tar(*tar_files()).rstrip(b"\0") + bytes(600),
        lambda: tar(*tar_files())[:700],
        lambda: gzip.compress(tar(*tar_files())),
    ],
)
def test_what_is_not_free_in_tar(other: Callable[[], bytes], tmp_path: Path) -> None:
    assert differs(_archives.form_tar, tmp_path, tar(*tar_files()), other())


def test_a_packed_tar_is_compared_within(tmp_path: Path) -> None:
    def form(path: str) -> Any:
        return _archives.form_tar(path, "gz")

    right = gzip.compress(tar(*tar_files()))
    assert not differs(form, tmp_path, right, gzip.compress(tar(*tar_files()[::-1]), 1))
    assert differs(form, tmp_path, right, right + b"more")
    assert differs(form, tmp_path, right, tar(*tar_files()))


# --- zip ---


def packed(
    *members: tuple[str, str], change: Callable[[zipfile.ZipInfo], object] | None = None, end: bytes = b""
) -> bytes:
    """Return an archive of names with contents; ``change`` is made to the first member's header."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, (name, text) in enumerate(members):
            info = zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o100644 << 16
            if not number and change is not None:
                change(info)
            archive.writestr(info, text)
        archive.comment = end
    return buffer.getvalue()


ZIPPED = (("a/b.txt", "b"), ("c.txt", "c"))


def streamed() -> bytes:
    """Return an archive whose sizes follow the members' data."""

    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in ZIPPED:
            archive.writestr(name, text)
    return stream.getvalue()


def with_field(number: int) -> Callable[[zipfile.ZipInfo], object]:
    return lambda info: setattr(info, "extra", struct.pack("<HHI", number, 4, 7))


@pytest.mark.parametrize(
    "other",
    [
        lambda: packed(*ZIPPED[::-1]),
        lambda: packed(("a/", ""), *ZIPPED, change=lambda info: setattr(info, "external_attr", 0o40755 << 16)),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "external_attr", 0o600 << 16)),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "compress_type", zipfile.ZIP_BZIP2)),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "create_system", 0)),
        lambda: packed(*ZIPPED, change=with_field(0x5455)),
        streamed,
    ],
)
def test_what_is_free_in_zip(other: Callable[[], bytes], tmp_path: Path) -> None:
    assert not differs(_archives.form_zip, tmp_path, packed(*ZIPPED), other())


@pytest.mark.parametrize(
    "other",
    [
        lambda: packed(*ZIPPED[1:]),
        lambda: packed(*ZIPPED, ("more.txt", "")),
        lambda: packed(("a/b.txt", "x"), *ZIPPED[1:]),
        lambda: packed(*ZIPPED, ("./c.txt", "c")),
        lambda: packed(("/a/b.txt", "b"), *ZIPPED[1:]),
        lambda: packed(*ZIPPED, ("../c.txt", "c")),
        lambda: packed(*ZIPPED, end=b"comment"),
        lambda: packed(*ZIPPED) + b"more",
        lambda: packed(*ZIPPED) + b"\0",
        lambda: b"more" + packed(*ZIPPED),
        lambda: packed(*ZIPPED).replace(b"PK\1\2", b"more" + b"PK\1\2", 1),
        lambda: packed(*ZIPPED)[:-1],
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "comment", b"more")),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "external_attr", 0o120644 << 16)),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "external_attr", 0o010644 << 16)),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "external_attr", 0o104755 << 16)),
        lambda: packed(*ZIPPED, change=lambda info: setattr(info, "external_attr", 0o100000 << 16)),
        lambda: packed(*ZIPPED, change=with_field(0x7075)),
        lambda: packed(*ZIPPED).replace(b"b.txtbPK", b"b.txtxPK"),
        lambda: packed(*ZIPPED).replace(b"a/b.txt", b"a/x.txt", 1),
        lambda: b"",
    ],
)
def test_what_is_not_free_in_zip(other: Callable[[], bytes], tmp_path: Path) -> None:
    assert differs(_archives.form_zip, tmp_path, packed(*ZIPPED), other())


def test_permissions_in_zip_count_where_they_are_named(tmp_path: Path) -> None:
    other = packed(*ZIPPED, change=lambda info: setattr(info, "external_attr", 0o600 << 16))
    assert differs(lambda path: _archives.form_zip(path, "modes"), tmp_path, packed(*ZIPPED), other)


# --- XML ---

XML = '<a x="1" y="2"><b>t &amp; u</b><b/></a>'


@pytest.mark.parametrize(
    "other",
    [
        '<?xml version="1.0" encoding="UTF-8"?>\n<a y=\'2\' x="1">\n\t<b>t &#38; u</b>\r\n  <b></b>\n</a>\n',
        "<a x='1' y='2'><b><![CDATA[t & u]]></b><b/></a>",
    ],
)
def test_what_is_free_in_xml(other: str, tmp_path: Path) -> None:
    assert not differs(_documents.form_xml, tmp_path, XML.encode(), other.encode())


@pytest.mark.parametrize(
    "other",
    [
        XML.replace("t &amp; u", " t &amp; u"),
        XML.replace("t &amp; u", "t &amp; u\n"),
        XML.replace("<b/>", "<b> </b>"),
        XML.replace("<b/>", "<b/>\u00a0"),
        XML.replace("<b/>", "<b/>x"),
        XML.replace("<b/>", "<b/><!-- more -->"),
        XML.replace("<b/>", "<b/><?more?>"),
        XML.replace("<b/>", "<B/>"),
        XML.replace("<b/>", '<b xmlns="more"/>'),
        XML.replace('x="1"', 'x="1" z="3"'),
        XML.replace('x="1"', 'x="1" x="1"'),
        "\ufeff" + XML,
        XML + "<!-- more -->",
        XML + "<a/>",
        XML + "more",
        "<!DOCTYPE a>" + XML,
        '<!DOCTYPE a [<!ENTITY u "t &#38; u">]>' + XML.replace("t &amp; u", "&u;"),
        '<?xml version="1.0" encoding="ISO-8859-1"?>' + XML,
        XML[:-1],
        "",
    ],
)
def test_what_is_not_free_in_xml(other: str, tmp_path: Path) -> None:
    assert differs(_documents.form_xml, tmp_path, XML.encode(), other.encode())


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_xml_is_utf_8(encoding: str, tmp_path: Path) -> None:
    text = XML.replace("t ", "é ")
    assert differs(_documents.form_xml, tmp_path, text.encode(), text.encode(encoding))


# --- SQLite ---

TABLES = (
    "CREATE TABLE a (id INTEGER PRIMARY KEY, name TEXT NOT NULL DEFAULT 'x', note, UNIQUE (name))",
    "CREATE TABLE b (a_id INTEGER REFERENCES a (id), number INTEGER CHECK (number > 0))",
    "CREATE INDEX b_number ON b (number) WHERE number > 5",
    "CREATE INDEX a_note ON a (note)",
    "CREATE VIEW v AS SELECT name FROM a WHERE note = 'It''s'",
    "CREATE TRIGGER t AFTER DELETE ON a BEGIN DELETE FROM b WHERE a_id = old.id; END",
)
ROWS = (
    "INSERT INTO a VALUES (1, 'one', 1), (2, 'two', '1'), (3, 'three', x'31'), (4, 'four', 1.5), (5, 'five', NULL)",
    "INSERT INTO b VALUES (1, 7), (2, 7), (2, 9)",
)


def database(*statements: str) -> bytes:
    """Return the file of a database that these statements make."""
    path = Path(f"/tmp/{os.getpid()}.db")
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def swapped(old: str, new: str) -> Callable[[], bytes]:
    """Return the maker of a database with another statement."""
    assert any(old in one for one in (*TABLES, *ROWS)), old
    return lambda: database(*(one.replace(old, new) for one in (*TABLES, *ROWS)))


def with_more(*statements: str) -> Callable[[], bytes]:
    return lambda: database(*TABLES, *ROWS, *statements)


def patched(start: int, data: bytes) -> Callable[[], bytes]:
    """Return the maker of a database with other bytes."""

    def make() -> bytes:
        right = database(*TABLES, *ROWS)
        return right[:start] + data + right[start + len(data) :]

    return make


@pytest.mark.parametrize(
    "other",
    [
        lambda: database(*TABLES, *ROWS[::-1]),
        lambda: database(*TABLES, *(one.replace("(1, 7), (2, 7), (2, 9)", "(2, 9), (1, 7), (2, 7)") for one in ROWS)),
        lambda: database(TABLES[0], TABLES[1], TABLES[3], *ROWS, TABLES[2], *TABLES[4:]),
        swapped("CREATE TABLE a (id INTEGER", 'create table if not exists "a" (\n  "id"   integer /* key */'),
        swapped("INDEX a_note ON a (note)", 'INDEX a_note ON "a" ("note" ASC)'),
        with_more("INSERT INTO b VALUES (5, 5)", "DELETE FROM b WHERE number = 5"),
        with_more("VACUUM"),
        with_more("PRAGMA user_version = 1", "PRAGMA user_version = 0"),
        with_more("PRAGMA journal_mode = WAL", "PRAGMA journal_mode = DELETE"),
    ],
)
def test_what_is_free_in_sqlite(other: Callable[[], bytes], tmp_path: Path) -> None:
    assert not differs(form_sqlite, tmp_path, database(*TABLES, *ROWS), other())


@pytest.mark.parametrize(
    "other",
    [
        swapped("'one', 1", "'one', '1'"),
        swapped("'one', 1", "'one', 1.0"),
        swapped("'two', '1'", "'two', x'31'"),
        swapped("1.5", "'1.5'"),
        swapped("'five', NULL", "'five', ''"),
        swapped("'two', '1'", "'two', CAST(x'31ff' AS TEXT)"),
        swapped("'two', '1'", "'two', '1' || char(0) || 'hidden'"),
        swapped("(2, 9)", "(2, 9), (2, 9)"),
        swapped("(1, 7)", "(7, 7)"),
        swapped("(1, 7)", "(NULL, 7)"),
        swapped("id INTEGER PRIMARY KEY", "id INT PRIMARY KEY"),
        swapped("id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY AUTOINCREMENT"),
        swapped("id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY DESC"),
        swapped("name TEXT NOT NULL", "name TEXT"),
        swapped("name TEXT NOT NULL", "name TEXT COLLATE NOCASE NOT NULL"),
        swapped("DEFAULT 'x'", "DEFAULT 'X'"),
        swapped(", UNIQUE (name)", ""),
        swapped("UNIQUE (name)", "UNIQUE (name) ON CONFLICT REPLACE"),
        swapped("UNIQUE (name))", "UNIQUE (name)) WITHOUT ROWID"),
        swapped("note, UNIQUE", "note TEXT, UNIQUE"),
        swapped("REFERENCES a (id)", ""),
        swapped("REFERENCES a (id)", "REFERENCES a (id) ON DELETE CASCADE"),
        swapped("number > 0", "number > 1"),
        swapped("WHERE number > 5", "WHERE number < 50"),
        swapped("WHERE number > 5", ""),
        swapped("a_note ON a (note)", "a_note ON a (note DESC)"),
        swapped("a_note ON a (note)", "a_note ON a (note COLLATE NOCASE)"),
        swapped("a_note ON a (note)", "a_note ON a (note, name)"),
        swapped("a_note ON a (note)", "a_note ON a (lower(note))"),
        swapped("CREATE INDEX a_note", "CREATE UNIQUE INDEX a_note"),
        swapped("a_note", "a_other"),
        swapped("'It''s'", "'it''s'"),
        swapped("WHERE a_id = old.id", ""),
        with_more("CREATE TABLE more (id)"),
        with_more("CREATE INDEX more ON a (id)"),
        with_more("CREATE VIEW more AS SELECT 1"),
        with_more("CREATE TRIGGER more AFTER DELETE ON b BEGIN DELETE FROM a; END"),
        with_more("CREATE VIRTUAL TABLE more USING rtree (id, x, y)"),
        with_more("ALTER TABLE a ADD more"),
        with_more("ALTER TABLE a ADD more AS (id + 1)"),
        with_more("ANALYZE"),
        with_more("PRAGMA user_version = 7"),
        with_more("PRAGMA application_id = 7"),
        with_more("PRAGMA journal_mode = WAL"),
        with_more("PRAGMA page_size = 8192", "VACUUM"),
        with_more("PRAGMA auto_vacuum = 1", "VACUUM"),
        with_more("PRAGMA default_cache_size = 7"),
        lambda: database("PRAGMA encoding = 'UTF-16'", *TABLES, *ROWS),
        lambda: database(*TABLES, *ROWS) + b" ",
        lambda: database(*TABLES, *ROWS) + bytes(4096),
        lambda: database(*TABLES, *ROWS)[:-1],
        lambda: database(*TABLES, *ROWS)[: 2 * 4096],
        patched(80, b"hidden"),
        patched(4096, b"\xff\xff"),
        lambda: b"",
    ],
)
def test_what_is_not_free_in_sqlite(other: Callable[[], bytes], tmp_path: Path) -> None:
    assert differs(form_sqlite, tmp_path, database(*TABLES, *ROWS), other())


def test_a_statement_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    slow = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) SELECT i FROM n"
    (tmp_path / "slow").write_bytes(database("CREATE TABLE a (i)", f"INSERT INTO a {slow}"))
    module = _package.load("states.databases")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_STEPS", 5)
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            form_sqlite(str(tmp_path / "slow"))
