"""SQLite databases, which are made from SQL when the image is prepared: their bytes depend on SQLite's version."""

from __future__ import annotations

import json

from .draft import Draft, fill, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS

__all__ = ["FAMILY"]

_Row = tuple[int | str, ...]


def _sql(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _database(draft: Draft, path: str, tables: dict[str, tuple[str, list[_Row]]]) -> None:
    """The database is there before the agent is."""
    lines: list[str] = []
    for name, (columns, rows) in tables.items():
        lines.append(f"CREATE TABLE {name} ({columns});")
        lines += [f"INSERT INTO {name} VALUES ({', '.join(map(_sql, row))});" for row in rows]  # noqa: S608 - our own
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


def _table(path: str, name: str, rows: list[_Row]) -> str:
    """Code of a test: the table has these rows, in any order."""
    return fill(
        """
        database = sqlite3.connect("file:" + @path@ + "?mode=ro", uri=True)
        found = sorted(map(list, database.execute("SELECT * FROM @name@")), key=repr)
        expected = json.loads(@rows@)
        database.close()
        assert found == sorted(expected, key=repr)
        """,
        {"path": repr(path), "name": name, "rows": repr(json.dumps(rows))},
    )


def _tables(path: str, names: list[str]) -> str:
    """Code of a test: these are all tables, views and triggers; SQLite's own do not count."""
    return fill(
        """
        database = sqlite3.connect("file:" + @path@ + "?mode=ro", uri=True)
        found = database.execute("SELECT name FROM sqlite_master WHERE type != 'index' AND name NOT LIKE 'sqlite%'")
        assert sorted(name for name, in found) == @names@
        database.close()
        """,
        {"path": repr(path), "names": repr(sorted(names))},
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
        f"Write {target} as CSV with the header name,orders,cents and one record for every customer: the name, the "
        f"number of their orders whose status is {status}, and the sum of the cents of those orders. Customers "
        "without such orders are included with 0 and 0. Highest sum first; equal sums by name in alphabetical order.",
        "Do not change the database.",
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    draft.final.test("customers are unchanged", _table(path, "customers", people))
    draft.final.test("orders are unchanged", _table(path, "orders", orders))
    draft.final.test("there is nothing else", _tables(path, ["customers", "orders"]))
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
        f"Create {path} with one table called {table} that has the columns id (INTEGER, primary key), title (TEXT), "
        "year (INTEGER) and place (TEXT), in this order, and load all records of the CSV file into it (its first line "
        "is the header; titles are quoted because some have commas, and the quotes do not belong to the title).",
        f"Also create an index named {index} on the column {column}.",
        draft.leave(),
    )
    draft.initial.absent(path)
    opened = f'database = sqlite3.connect("file:" + {path!r} + "?mode=ro", uri=True)\n'
    draft.final.test(
        "columns are right",
        opened + f"found = [row[1:3] + row[5:] for row in database.execute('PRAGMA table_info({table})')]\n"
        "expected = [('id', 'INTEGER', 1), ('title', 'TEXT', 0), ('year', 'INTEGER', 0), ('place', 'TEXT', 0)]\n"
        "assert [(name, kind.upper(), key) for name, kind, key in found] == expected",
    )
    draft.final.test("rows are right", _table(path, table, rows))
    draft.final.test("there is one table", _tables(path, [table]))
    draft.final.test(
        "index is right",
        opened + f"assert [row[2] for row in database.execute('PRAGMA index_info({index})')] == [{column!r}]\n"
        f"assert {index!r} in [row[1] for row in database.execute('PRAGMA index_list({table})')]",
    )
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
    orders[2] = (*orders[2][:4], "open", f"{year}-01-01")
    orders[3] = (*orders[3][:5], f"{year}-03-01")
    _database(draft, path, {"customers": (_PEOPLE, people), "orders": (_ORDERS, orders)})
    old, new = str(people[0][2]), f"New {people[0][2]}"
    draft.say(
        draft.pick(
            f"Please make some changes to the SQLite database {path}.", f"The SQLite database {path} needs a clean-up."
        ),
        f"It has the tables {_COLUMNS}; customer_id refers to the customer's id, days are written YYYY-MM-DD.",
        f"\n- Delete all orders whose status is cancelled."
        f"\n- Set the status of all orders that are open and from before {year}-01-01 to expired."
        f"\n- In the table customers, change the city {old} to {new}."
        "\n- Then delete all customers who have no order left.",
        "\nEverything else must stay as it is.",
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
    draft.final.test("there is nothing else", _tables(path, ["customers", "orders"]))
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
