"""Family: SQLite databases. Set-up makes them from SQL, because their bytes depend on SQLite's version."""

from __future__ import annotations

import json

from .draft import Draft, breach, fill, python, swap
from .family import Family
from .requirements import Way
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS

__all__ = ["FAMILY"]

_Row = tuple[int | str, ...]


def _sql(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _database(draft: Draft, path: str, tables: dict[str, tuple[str, list[_Row]]]) -> None:
    """Add a database that exists before the agent starts."""
    lines: list[str] = []
    for name, (columns, rows) in tables.items():
        lines.append(f"CREATE TABLE {name} ({columns});")
        lines += [f"INSERT INTO {name} VALUES ({', '.join(map(_sql, row))});" for row in rows]
    seed = draft.file(f"{path}.sql", "\n".join(lines) + "\n")
    draft.passing.append(seed)
    draft.setup = python(
        """
        import os, sqlite3
        database = sqlite3.connect(@path@)
        database.executescript(open(@seed@).read())
        database.commit()
        database.close()
        os.remove(@seed@)
        """,
        path=path,
        seed=seed,
    )
    for name, (_, rows) in tables.items():
        draft.initial.test(f"table {name} is there", _table(path, name, rows))


def _table(path: str, name: str, rows: list[_Row], columns: str = "*") -> str:
    """Return the code of a test that the table has these rows, in any order."""
    return fill(
        """
        database = sqlite3.connect("file:" + @path@ + "?mode=ro", uri=True)
        found = sorted(map(list, database.execute("SELECT @columns@ FROM @name@")), key=repr)
        expected = json.loads(@rows@)
        database.close()
        assert found == sorted(expected, key=repr)
        """,
        {"path": repr(path), "name": name, "columns": columns, "rows": repr(json.dumps(rows))},
    )


#: Names that SQLite creates by itself; ``SQLite2`` is an ordinary name.
_INTERNAL = "('sqlite_sequence', 'sqlite_stat1', 'sqlite_stat4')"


def _objects(path: str, columns: str, expected: list[tuple[str, ...]], where: str = "1") -> str:
    """Return the code of a test: the database has only these tables, views, triggers and indexes besides SQLite's."""
    return fill(
        """
        database = sqlite3.connect("file:" + @path@ + "?mode=ro", uri=True)
        found = database.execute("SELECT @columns@ FROM sqlite_master WHERE name NOT IN @internal@ AND @where@")
        assert sorted(found) == @expected@
        database.close()
        """,
        {
            "path": repr(path),
            "columns": columns,
            "internal": _INTERNAL,
            "where": where,
            "expected": repr(sorted(expected)),
        },
    )


def _schema(path: str, tables: dict[str, str]) -> str:
    """Return the code of a test that the tables have their original definitions and that nothing else exists."""
    made = [("table", name, f"CREATE TABLE {name} ({columns})") for name, columns in tables.items()]
    return _objects(path, "type, name, sql", made)


def _run(path: str, *statements: str) -> str:
    """Return Bash that runs SQL on a database with SQLite's defaults, foreign keys included."""
    return python(
        """
        import sqlite3
        database = sqlite3.connect(@path@)
        database.executescript(@sql@)
        database.commit()
        """,
        path=path,
        sql=";\n".join(statements) + ";",
    )


def _altered(path: str) -> list[Way]:
    """Return breaches that change the shop's schema but none of its rows."""
    check = "tables are unchanged"
    bare = _ORDERS.replace(" PRIMARY KEY", "").replace(" NOT NULL", "")
    return [
        breach("one more table", check, after=_run(path, "CREATE TABLE more (id INTEGER)")),
        breach("a table named as if it were SQLite's", check, after=_run(path, "CREATE TABLE SQLite2 (id INTEGER)")),
        breach("one more index", check, after=_run(path, "CREATE INDEX more ON orders (day)")),
        breach(
            "a trigger",
            check,
            after=_run(path, "CREATE TRIGGER more AFTER DELETE ON orders BEGIN DELETE FROM customers; END"),
        ),
        breach(
            "a view in place of a table",
            check,
            after=_run(
                path,
                "ALTER TABLE customers RENAME TO people",
                "CREATE VIEW customers AS SELECT * FROM people",
            ),
        ),
        breach(
            "a table made anew without its key and its NOT NULL",
            check,
            after=_run(
                path,
                f"CREATE TABLE anew ({bare})",
                "INSERT INTO anew SELECT * FROM orders",
                "DROP TABLE orders",
                "ALTER TABLE anew RENAME TO orders",
            ),
        ),
    ]


def _modes(draft: Draft, path: str) -> None:
    """Add honest ways to store a database: its rows count, not the bytes of its file."""
    draft.honest(
        "a write-ahead log beside the database",
        after=python(
            """
            import os, sqlite3
            database = sqlite3.connect(@path@)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA wal_autocheckpoint = 0")
            database.execute("PRAGMA user_version = 1")
            database.execute("PRAGMA user_version = 0")
            os._exit(0)
            """,
            path=path,
        ),
    )
    draft.honest("a log that was put away again", after=_run(path, "PRAGMA journal_mode = WAL"))
    draft.honest("the file written anew", after=_run(path, "PRAGMA page_size = 8192", "VACUUM"))
    draft.honest("statistics for the planner", after=_run(path, "ANALYZE"))
    draft.honest(
        "the database dumped and loaded",
        after=python(
            """
            import os, sqlite3
            lines = list(sqlite3.connect(@path@).iterdump())
            os.remove(@path@)
            sqlite3.connect(@path@).executescript("\\n".join(lines))
            """,
            path=path,
        ),
    )


def _shop(draft: Draft) -> tuple[list[_Row], list[_Row]]:
    people: list[_Row] = [
        (number, f"{first} {last}", draft.pick(*CITIES[:6]))
        for number, (first, last) in enumerate(
            zip(draft.some(FIRST_NAMES, 9), draft.some(LAST_NAMES, 9), strict=True), draft.number(1, 50)
        )
    ]
    ids = [person[0] for person in people]
    orders: list[_Row] = []
    for number in range(draft.number(20, 35)):
        # The last two people have ordered nothing, or nothing that counts.
        who = ids[-2] if number == 0 else draft.pick(*ids[:-2])
        status = "cancelled" if number in (0, 3) else draft.pick("paid", "paid", "open", "cancelled")
        day = f"{draft.number(2021, 2024)}-{draft.number(1, 12):02d}-{draft.number(1, 28):02d}"
        orders.append((1000 + number, who, draft.pick(*PRODUCTS), draft.number(100, 90000), status, day))
    return people, orders


_PEOPLE = "id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL"
_ORDERS = (
    "id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, product TEXT NOT NULL, cents INTEGER NOT NULL, status TEXT "
    "NOT NULL, day TEXT NOT NULL"
)
_COLUMNS = "customers (id, name, city) and orders (id, customer_id, product, cents, status, day)"


def _query(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('shop', 'store', 'sales')}.db"
    people, orders = _shop(draft)
    _database(draft, path, {"customers": (_PEOPLE, people), "orders": (_ORDERS, orders)})
    status = draft.pick("paid", "open")
    totals = {
        person[0]: [int(order[3]) for order in orders if order[1] == person[0] and order[4] == status]
        for person in people
    }
    chosen = sorted(people, key=lambda person: (-sum(totals[person[0]]), str(person[1])))
    expected = [["name", "orders", "cents"]]
    expected += [[str(p[1]), str(len(totals[p[0]])), str(sum(totals[p[0]]))] for p in chosen]
    target = f"{root}/{draft.pick('report', 'customers', 'ranking')}.csv"
    draft.say(
        draft.pick(f"Make a report from the SQLite database {path}.", f"There is a SQLite database, {path}."),
        f"It has the tables {_COLUMNS}; customer_id refers to the customer's id.",
        draft.require(
            f"Write {target} as CSV with the header name,orders,cents.",
            breach("another header", "* has the right header", after=f"sed -i 1s/name/customer/ {target}"),
        ),
        draft.require(
            f"It has one record for every customer: the name, the number of their orders whose status is {status}, and "
            "the sum of the cents of those orders.",
            breach("orders of every status", "* has the right records", swap=(f" AND status = '{status}'", "")),
            breach("a record twice", "* has the right records", after=f"tail -n 1 {target} >> {target}"),
        ),
        draft.require(
            "Customers without such orders are included with 0 and 0.",
            breach("customers without orders left out", "* has the right records", swap=("LEFT JOIN", "JOIN")),
            breach("nothing in place of 0", "* has the right records", swap=("COALESCE(SUM(cents), 0)", "SUM(cents)")),
        ),
        draft.require(
            "Highest sum first;", breach("lowest sum first", "records of * are in order", swap=("DESC, name", ", name"))
        ),
        draft.require(
            "equal sums by name in alphabetical order.",
            breach("equal sums by name backwards", "records of * are in order", swap=("DESC, name", "DESC, name DESC")),
        ),
        draft.require(
            "Do not change the database: neither its records nor its tables, and add nothing to it.",
            breach(
                "a customer moved",
                "customers are unchanged",
                after=_run(path, "UPDATE customers SET city = 'Elsewhere'"),
            ),
            breach("an order paid", "orders are unchanged", after=_run(path, "UPDATE orders SET status = 'done'")),
            *_altered(path),
        ),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    draft.final.test("customers are unchanged", _table(path, "customers", people))
    draft.final.test("orders are unchanged", _table(path, "orders", orders))
    draft.final.test("tables are unchanged", _schema(path, {"customers": _PEOPLE, "orders": _ORDERS}))
    _modes(draft, path)
    draft.honest("every field quoted", swap=("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"))
    draft.honest("a byte-order mark", swap=('"w") as', '"w", encoding="utf-8-sig") as'))
    draft.honest("plain newlines", swap=("csv.writer(target)", 'csv.writer(target, lineterminator="\\n")'))
    oracle = python(
        """
        import csv, sqlite3
        rows = sqlite3.connect(@path@).execute('''
            SELECT name, COUNT(orders.id), COALESCE(SUM(cents), 0) AS total
            FROM customers LEFT JOIN orders ON customer_id = customers.id AND status = @status@
            GROUP BY customers.id ORDER BY total DESC, name
        ''')
        with open(@target@, "w") as target:
            csv.writer(target).writerows([("name", "orders", "cents"), *rows])
        """,
        path=path,
        status=status,
        target=target,
    )
    draft.solve(oracle, swap(oracle, "LEFT JOIN", "JOIN"), str(expected))


def _build(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('library', 'catalogue', 'museum', 'archive')}.sqlite"
    table = draft.pick("items", "objects", "entries", "holdings")
    rows: list[_Row] = []
    lines: list[str] = []
    for number in sorted(draft.some(range(1, 300), draft.number(10, 18))):
        title = f"{draft.pick(*PRODUCTS)}{draft.pick('', ', part 2', ' from ' + draft.pick(*CITIES))}"
        year: int | str = draft.number(1800, 2020)
        place = draft.pick(*CITIES)
        rows.append((number, title, year, place))
        lines.append(f'{number},"{title}",{year},{place}\n')
    draft.file(f"{root}/{table}.csv", "id,title,year,place\n" + "".join(draft.shuffled(lines)), keep=True)
    index = f"{table}_by_{draft.pick('year', 'place')}"
    column = index.rpartition("_")[2]
    draft.say(
        draft.pick(
            f"Turn {root}/{table}.csv into a SQLite database.", f"Import {root}/{table}.csv into a new SQLite database."
        ),
        draft.require(
            f"Create {path} with one table called {table}, and with no other tables, views or triggers.",
            breach("one more table", "there is one table", after=_run(path, "CREATE TABLE more (id INTEGER)")),
            breach(
                "a table named as if it were SQLite's",
                "there is one table",
                after=_run(path, "CREATE TABLE SQLite2 (x)"),
            ),
            breach(
                "one more view", "there is one table", after=_run(path, f"CREATE VIEW more AS SELECT * FROM {table}")
            ),
        ),
        draft.require(
            "The table has the columns id (INTEGER, primary key), title (TEXT), year (INTEGER) and place (TEXT), in "
            "this order, and no others.",
            breach("a column of another type", "columns are right", swap=("year INTEGER", "year NUMERIC")),
            breach("no primary key", "columns are right", swap=("id INTEGER PRIMARY KEY", "id INTEGER")),
            breach("one more column", "columns are right", after=_run(path, f"ALTER TABLE {table} ADD more TEXT")),
            breach(
                "one more column that is worked out",
                "columns are right",
                after=_run(path, f"ALTER TABLE {table} ADD more TEXT AS (title || place)"),
            ),
            breach(
                "columns in another order",
                "columns are right",
                after=_run(
                    path,
                    "CREATE TABLE anew (id INTEGER PRIMARY KEY, title TEXT, place TEXT, year INTEGER)",
                    f"INSERT INTO anew SELECT id, title, place, year FROM {table}",
                    f"DROP TABLE {table}",
                    f"ALTER TABLE anew RENAME TO {table}",
                    f"CREATE INDEX {index} ON {table} ({column})",
                ),
            ),
        ),
        draft.require(
            "Load all records of the CSV file into it and no others (its first line is the header; titles are quoted "
            "because some have commas, and the quotes do not belong to the title).",
            breach("a record left out", "rows are right", swap=("[1:]", "[2:]")),
            breach(
                "the header as a record",
                "rows are right",
                after=_run(path, f"INSERT INTO {table} VALUES (0, 'title', 'year', 'place')"),
            ),
            breach(
                "quotes around titles",
                "rows are right",
                after=_run(path, f"UPDATE {table} SET title = '\"' || title || '\"'"),
            ),
        ),
        draft.require(
            f"Also create an index named {index} on the column {column} alone, for all of the records.",
            breach("an index of another name", "index is right", swap=(f"INDEX {index}", f"INDEX idx_{index}")),
            breach("an index on two columns", "index is right", swap=(f"({column})", f"({column}, title)")),
            breach("an index on another column", "index is right", swap=(f"({column})", "(title)")),
            breach(
                "an index of a part of the records", "index is right", swap=(f"({column})", f"({column}) WHERE id > 9")
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(path)
    opened = f'database = sqlite3.connect("file:" + {path!r} + "?mode=ro", uri=True)\n'
    draft.final.test(
        "columns are right",
        opened + f"found = [row[1:3] + row[5:6] for row in database.execute('PRAGMA table_xinfo({table})')]\n"
        "expected = [('id', 'INTEGER', 1), ('title', 'TEXT', 0), ('year', 'INTEGER', 0), ('place', 'TEXT', 0)]\n"
        "assert [(name, kind.upper(), key) for name, kind, key in found] == expected",
    )
    draft.final.test("rows are right", _table(path, table, rows, "id, title, year, place"))
    draft.final.test("there is one table", _objects(path, "type, name", [("table", table)], "type != 'index'"))
    draft.final.test(
        "index is right",
        opened + f"assert [row[2] for row in database.execute('PRAGMA index_info({index})')] == [{column!r}]\n"
        f"assert ({index!r}, 0) in [(row[1], row[4]) for row in database.execute('PRAGMA index_list({table})')]\n"
        "assert database.execute('PRAGMA integrity_check').fetchall() == [('ok',)]",
    )
    _modes(draft, path)
    draft.honest("types in small letters", swap=("INTEGER PRIMARY KEY, title TEXT", "integer primary key, title text"))
    draft.honest(
        "records in another order",
        swap=("rows = list(csv.reader(source))[1:]", "rows = list(csv.reader(source))[:0:-1]"),
    )
    draft.honest("a table without row ids", swap=("place TEXT)", "place TEXT) WITHOUT ROWID"))
    oracle = python(
        fill(
            """
        import csv, sqlite3
        database = sqlite3.connect(@path@)
        database.execute("CREATE TABLE @table@ (id INTEGER PRIMARY KEY, title TEXT, year INTEGER, place TEXT)")
        with open(@source@) as source:
            rows = list(csv.reader(source))[1:]
        database.executemany("INSERT INTO @table@ VALUES (?, ?, ?, ?)", rows)
        database.execute("CREATE INDEX @index@ ON @table@ (@column@)")
        database.commit()
        """,
            {
                "table": table,
                "index": index,
                "column": column,
                "path": repr(path),
                "source": repr(f"{root}/{table}.csv"),
            },
        )
    )
    draft.solve(oracle, swap(oracle, "year INTEGER", "year TEXT"), str(rows))


def _change(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('shop', 'store', 'backend')}.db"
    people, orders = _shop(draft)
    year = draft.number(2022, 2023)
    orders[1] = (*orders[1][:4], "open", f"{year - 1}-05-17")
    # Edge cases: an order of that very day, and an order to keep of a customer who moves.
    kept = people[0][0]
    orders[2] = (orders[2][0], kept, *orders[2][2:4], "open", f"{year}-01-01")
    orders[3] = (*orders[3][:4], "paid", f"{year - 1}-03-01")
    gone = next(person for person in people if person[0] == orders[0][1])
    _database(draft, path, {"customers": (_PEOPLE, people), "orders": (_ORDERS, orders)})
    old, new = str(people[0][2]), f"New {people[0][2]}"
    draft.say(
        draft.pick(
            f"Please make some changes to the SQLite database {path}.", f"The SQLite database {path} needs a clean-up."
        ),
        f"It has the tables {_COLUMNS}; customer_id refers to the customer's id, days are written YYYY-MM-DD.",
        draft.require(
            "\n- Delete all orders whose status is cancelled.",
            breach(
                "a cancelled order left",
                "orders are right",
                after=_run(
                    path, f"INSERT INTO orders VALUES ({', '.join(map(_sql, (*orders[0][:1], kept, *orders[0][2:])))})"
                ),
            ),
        ),
        draft.require(
            f"\n- Set the status of all orders that are open and from before {year}-01-01 to expired.",
            breach("an order of the first day expired", "orders are right", swap=("day < ?", "day <= ?")),
            breach("orders expired that are paid", "orders are right", swap=("status = 'open' AND", "")),
        ),
        draft.require(
            f"\n- In the table customers, change the city {old} to {new}.",
            breach("a city unchanged", "customers are right", swap=("WHERE city = ?", "WHERE city = ? AND 0")),
        ),
        draft.require(
            "\n- Then delete all customers who have no order left.",
            breach(
                "customers without orders left",
                "customers are right",
                swap=("WHERE id NOT IN", "WHERE 0 AND id NOT IN"),
            ),
            breach(
                "customers left who had a cancelled order",
                "customers are right",
                after=_run(path, f"INSERT INTO customers VALUES ({', '.join(map(_sql, gone))})"),
            ),
        ),
        draft.require(
            "\nEverything else in the database must stay as it is, records and tables, and nothing may be added to it.",
            breach(
                "an order that does not count changed",
                "orders are right",
                after=_run(path, f"UPDATE orders SET cents = cents + 1 WHERE id = {orders[3][0]}"),
            ),
            breach(
                "a customer renamed",
                "customers are right",
                after=_run(path, f"UPDATE customers SET name = 'Someone' WHERE id = {kept}"),
            ),
            *_altered(path),
        ),
    )
    left = [
        (*order[:4], "expired", order[5]) if order[4] == "open" and str(order[5]) < f"{year}-01-01" else order
        for order in orders
        if order[4] != "cancelled"
    ]
    buyers = {order[1] for order in left}
    stay = [(p[0], p[1], new if p[2] == old else p[2]) for p in people if p[0] in buyers]
    draft.final.test("orders are right", _table(path, "orders", left))
    draft.final.test("customers are right", _table(path, "customers", stay))
    draft.final.test("tables are unchanged", _schema(path, {"customers": _PEOPLE, "orders": _ORDERS}))
    _modes(draft, path)
    draft.honest(
        "records written again",
        after=_run(
            path,
            "CREATE TEMP TABLE t AS SELECT * FROM orders",
            "DELETE FROM orders",
            "INSERT INTO orders SELECT * FROM t ORDER BY id DESC",
        ),
    )
    draft.honest(
        "other words for it",
        swap=(
            "id NOT IN (SELECT customer_id FROM orders)",
            "NOT EXISTS (SELECT 1 FROM orders WHERE customer_id = customers.id)",
        ),
    )
    oracle = python(
        """
        import sqlite3
        database = sqlite3.connect(@path@)
        database.execute("DELETE FROM orders WHERE status = 'cancelled'")
        database.execute("UPDATE orders SET status = 'expired' WHERE status = 'open' AND day < ?", (@limit@,))
        database.execute("UPDATE customers SET city = ? WHERE city = ?", (@new@, @old@))
        database.execute("DELETE FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)")
        database.commit()
        """,
        path=path,
        limit=f"{year}-01-01",
        new=new,
        old=old,
    )
    draft.solve(oracle, swap(oracle, "AND day < ?", "AND day <= ?"), f"{left}\n{stay}")


FAMILY = Family("sqlite", "Query, build and change SQLite databases", (_build, _query, _change), ("python3",))
