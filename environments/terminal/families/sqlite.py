"""Family: SQLite databases. Set-up makes them from SQL, because their bytes depend on SQLite's version."""

from .draft import Draft, fill, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS

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
    draft.setup = python("""
        import os, sqlite3
        database = sqlite3.connect(@path@)
        database.executescript(open(@seed@).read())
        database.commit()
        database.close()
        os.remove(@seed@)
        """)
    for name, (_, rows) in tables.items():
        draft.initial.test(
            f"table {name} is there",
            f'database = sqlite3.connect("file:{path}?mode=ro", uri=True)\n'
            f"assert database.execute('SELECT count(*) FROM {name}').fetchone() == ({len(rows)},)\n"
            "database.close()",
        )
    draft.form(
        path,
        "sqlite",
        sentence="How SQLite lays the database out in its file and the order of rows are up to you; its settings, "
        "statistics and journals are not.",
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
    status = draft.pick("paid", "open")
    # Two people with the same sum, one of them from several orders.
    orders += [(2000 + number, people[1][0], "map", 40_000, status, "2024-01-02") for number in range(2)]
    sums = {
        one: sum(int(order[3]) for order in orders if order[1] == one[0] and order[4] == status) for one in people[:2]
    }
    low, high = sorted(people[:2], key=lambda one: sums[one])
    orders.append((2002, low[0], "lamp", sums[high] - sums[low], status, "2024-01-04"))
    _database(draft, path, {"customers": (_PEOPLE, people), "orders": (_ORDERS, orders)})
    target = f"{root}/{draft.pick('report', 'customers', 'ranking')}.csv"
    draft.say(
        draft.pick(f"Make a report from the SQLite database {path}.", f"There is a SQLite database, {path}."),
        f"It has the tables {_COLUMNS}; customer_id refers to the customer's id.",
        f"! Write {target} as CSV with the header name,orders,cents.",
        f"! It has one record for every customer: the name, the number of their orders whose status is {status}, and "
        "the sum of the cents of those orders.",
        "! Customers without such orders are included with 0 and 0.",
        "! Highest sum first;",
        "! equal sums by name in alphabetical order.",
        "! Do not change the database: neither its records nor its tables, and add nothing to it.",
    )
    draft.form(target, "csv")
    oracle = python("""
        import csv, sqlite3
        rows = sqlite3.connect(@path@).execute('''
            SELECT name, COUNT(orders.id), COALESCE(SUM(cents), 0) AS total
            FROM customers LEFT JOIN orders ON customer_id = customers.id AND status = @status@
            GROUP BY customers.id ORDER BY total DESC, name
        ''')
        with open(@target@, "w") as target:
            csv.writer(target).writerows([("name", "orders", "cents"), *rows])
        """)
    draft.solve(oracle, swap(oracle, "LEFT JOIN", "JOIN"))


def _build(draft: Draft) -> None:
    root = draft.project()
    path = f"{root}/{draft.pick('library', 'catalogue', 'museum', 'archive')}.sqlite"
    table = draft.pick("items", "objects", "entries", "holdings")
    lines: list[str] = []
    for number in sorted(draft.some(range(1, 300), draft.number(10, 18))):
        title = f"{draft.pick(*PRODUCTS)}{draft.pick('', ', part 2', ' from ' + draft.pick(*CITIES))}"
        lines.append(f'{number},"{title}",{draft.number(1800, 2020)},{draft.pick(*CITIES)}\n')
    draft.file(f"{root}/{table}.csv", "id,title,year,place\n" + "".join(draft.shuffled(lines)))
    index = f"{table}_by_{draft.pick('year', 'place')}"
    column = index.rpartition("_")[2]
    draft.say(
        draft.pick(
            f"Turn {root}/{table}.csv into a SQLite database.", f"Import {root}/{table}.csv into a new SQLite database."
        ),
        f"! Create {path} with one table called {table}, and with no other tables, views or triggers.",
        "! The table has the columns id (INTEGER, primary key), title (TEXT), year (INTEGER) and place (TEXT), in "
        "this order, and no others,",
        "! without further constraints, defaults or options.",
        "! Load all records of the CSV file into it and no others (its first line is the header; titles are quoted "
        "because some have commas, and the quotes do not belong to the title).",
        f"! Also create an index named {index} on the column {column} alone, for all of the records.",
    )
    draft.form(
        path,
        "sqlite",
        sentence="The database has SQLite's usual settings, no statistics, and no journal beside it; its layout in the "
        "file and the order of rows are up to you.",
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
    draft.solve(oracle, swap(oracle, "year INTEGER", "year TEXT"))


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
    _database(draft, path, {"customers": (_PEOPLE, people), "orders": (_ORDERS, orders)})
    old, new = str(people[0][2]), f"New {people[0][2]}"
    draft.say(
        draft.pick(
            f"Please make some changes to the SQLite database {path}.", f"The SQLite database {path} needs a clean-up."
        ),
        f"It has the tables {_COLUMNS}; customer_id refers to the customer's id, days are written YYYY-MM-DD.",
        "! \n- Delete all orders whose status is cancelled.",
        f"! \n- Set the status of all orders that are open and from before {year}-01-01 to expired.",
        f"! \n- In the table customers, change the city {old} to {new}.",
        "! \n- Then delete all customers who have no order left.",
        "! \nEverything else in the database must stay as it is, records and tables, and nothing may be added to it.",
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
        limit=f"{year}-01-01",
    )
    draft.solve(oracle, swap(oracle, "AND day < ?", "AND day <= ?"))


FAMILY = Family("sqlite", "Query, build and change SQLite databases", (_build, _query, _change), ("python3",))
