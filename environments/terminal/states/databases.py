"""Comparer of SQLite databases: header, tables, indexes, views, triggers and every row.

Part of the text of an examination (``program``). The layout of pages, and the order of rows, are free. A journal beside
the file is refused by the comparison of the folder, and statistics and other tables of SQLite's own count as tables.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from typing import Any

from .tree import content

__all__ = ["form_sqlite"]

#: Words of a statement that stand for what SQLite does not list: such a table is compared by its statement.
_UNLISTED = re.compile(r"(CHECK|COLLATE|AUTOINCREMENT|GENERATED|AS|CONFLICT|DEFERRABLE|STRICT|WITHOUT)", re.IGNORECASE)
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\w+|\S", re.DOTALL)
#: Bytes of a value, and thousands of steps of a statement.
_LONGEST, _STEPS = 10_000_000, 20_000


def form_sqlite(path: str) -> list[Any]:
    """Return what a database holds; the statement that made a table is free as long as the table is the same."""
    data = content(path)
    assert data[:16] == b"SQLite format 3\0", f"{path} is not an SQLite database"
    with tempfile.TemporaryDirectory() as folder:
        # A copy: beside the original SQLite would read a journal that the agent wrote.
        copy = os.path.join(folder, "copy.db")
        with open(copy, "wb") as file:
            file.write(data)
        connection = sqlite3.connect(copy)
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
            steps = iter(range(_STEPS))
            connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.text_factory = shown_text
            form = database_form(connection)
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            size = connection.execute("PRAGMA page_size").fetchone()[0]
        finally:
            connection.close()
    assert len(data) == pages * size, f"{path} has bytes after its end"
    # Free are the numbers of changes and pages, and the version of SQLite.
    return [(data[16:24] + data[44:52] + data[56:92]).hex(), any(data[52:56]), form]


def shown_text(text: bytes) -> str:
    """Return what is compared of a text, which need not be valid."""
    return f"text {text.hex()}"


def database_form(connection: sqlite3.Connection) -> list[Any]:
    """Return what an open database holds."""

    def rows(statement: str, *values: str) -> list[list[Any]]:
        found = connection.execute(statement, values).fetchall()
        return [[value.hex() if isinstance(value, bytes) else value for value in row] for row in found]

    def plain(value: Any) -> Any:
        return bytes.fromhex(value[5:]).decode() if isinstance(value, str) else value

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    assert plain(rows("PRAGMA integrity_check")[0][0]) == "ok", "the database is damaged"
    form: list[Any] = []
    for row in rows("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"):
        kind, name, table, sql = map(plain, row)
        statement = [token for token in _TOKEN.findall(sql or "") if not token.startswith(("--", "/*"))]
        if kind == "index":
            details = rows("SELECT * FROM pragma_index_xinfo(?)", name)
            listed = rows('SELECT "unique", origin, partial FROM pragma_index_list(?) WHERE name = ?', table, name)
            # An expression is not listed, nor is the condition of a partial index.
            exact = listed[0][2] or any(one[1] == -2 for one in details)
            # The name of an index that a constraint makes depends on the order of constraints.
            form.append([kind, name if sql is not None else "", table, listed, details, statement if exact else []])
        elif kind == "table":
            assert not re.match(r"\s*CREATE\s+VIRTUAL\b", sql, re.IGNORECASE), f"the table {name} is virtual"
            columns = rows(
                'SELECT name, lower(type), "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', name
            )
            names = [quoted(plain(one[0])) for one in columns]
            values = ", ".join(f"typeof({one}), {one}" for one in names)
            keys = rows("SELECT * FROM pragma_foreign_key_list(?)", name)
            records = rows(f"SELECT {values} FROM {quoted(name)}")
            exact = any(_UNLISTED.fullmatch(token) for token in statement)
            form.append([kind, name, columns, keys, sorted(records, key=str), statement if exact else []])
        else:
            form.append([kind, name, table, statement])
    return sorted(form, key=str)
