"""Forbidden changes and other solutions of the family `sqlite`."""

from tests.environments.terminal_families.ways import Way, after, instead, swap


def _run(*statements: str, last: str = "") -> Way:
    """Return a way that runs SQL on the solved database, and Python after it."""
    lines = "".join(f"database.executescript({statement!r})\n" for statement in statements)
    return after(f"python3 - <<'END'\nimport os, sqlite3\ndatabase = sqlite3.connect('«path»')\n{lines}{last}\nEND")


#: Changes of a shop's tables, but of none of their rows.
_ALTERED = [
    _run("CREATE TABLE SQLite2 (id INTEGER)"),
    _run("CREATE INDEX more ON orders (day)"),
    _run("CREATE TRIGGER more AFTER DELETE ON orders BEGIN DELETE FROM customers; END"),
    _run("ALTER TABLE customers RENAME TO people; CREATE VIEW customers AS SELECT * FROM people"),
    _run(
        "CREATE TABLE anew («_ORDERS.replace(' PRIMARY KEY', '').replace(' NOT NULL', '')»);"
        "INSERT INTO anew SELECT * FROM orders; DROP TABLE orders; ALTER TABLE anew RENAME TO orders"
    ),
    _run("PRAGMA page_size = 8192; VACUUM"),
    _run("PRAGMA journal_mode = WAL; CREATE TABLE t (a); DROP TABLE t", last="os._exit(0)"),
]

FORBIDDEN = {
    "_query": {
        "Write «target» as CSV with the header name,orders,cents.": [swap('("name", "orders", "cents"), ', "")],
        "It has one record for every customer:": [
            swap(" AND status = '«status»'", ""),
            swap("GROUP BY customers.id", "GROUP BY city"),
        ],
        "Customers without such orders are included with 0 and 0.": [
            swap("LEFT JOIN", "JOIN"),
            swap("COALESCE(SUM(cents), 0)", "SUM(cents)"),
        ],
        "Highest sum first;": [swap("DESC, name", ", name"), swap("total DESC, name", "name")],
        "equal sums by name in alphabetical order.": [swap("DESC, name", "DESC, name DESC")],
        "Do not change the database:": [_run("UPDATE orders SET cents = cents + 1 WHERE id = 1003"), *_ALTERED],
    },
    "_build": {
        "Create «path» with one table called «table»,": [
            _run("CREATE TABLE SQLite2 (x)"),
            _run("CREATE VIEW more AS SELECT * FROM «table»"),
        ],
        "The table has the columns id (INTEGER, primary key),": [
            swap("year INTEGER", "year NUMERIC"),
            swap("id INTEGER PRIMARY KEY", "id INTEGER"),
        ],
        "without further constraints, defaults or options.": [
            swap("title TEXT", "title TEXT NOT NULL"),
            swap("PRIMARY KEY", "PRIMARY KEY AUTOINCREMENT"),
        ],
        "Load all records of the CSV file into it and no others": [
            swap("[1:]", "[2:]"),
            swap("list(csv.reader(source))", "[line.strip().replace('\"', '').split(',')[:4] for line in source]"),
        ],
        "Also create an index named «index» on the column «column» alone,": [
            swap("INDEX «index»", "INDEX idx_«index»"),
            swap("(«column»)", "(«column», title)"),
        ],
    },
    "_change": {
        "\n- Delete all orders whose status is cancelled.": [
            swap("DELETE FROM orders WHERE status = 'cancelled'", "DELETE FROM orders WHERE 0"),
            _run("INSERT INTO orders VALUES (1, «kept», 'lamp', 1, 'cancelled', '2024-01-01')"),
        ],
        "\n- Set the status of all orders that are open": [
            swap("day < ?", "day <= ?"),
            swap("status = 'open' AND", ""),
        ],
        "\n- In the table customers, change the city": [swap("WHERE city = ?", "WHERE city = ? AND 0")],
        "\n- Then delete all customers who have no order left.": [
            swap("WHERE id NOT IN", "WHERE 0 AND id NOT IN"),
            swap("(SELECT customer_id FROM orders)", "(SELECT customer_id FROM orders UNION SELECT «orders[0][1]»)"),
        ],
        "\nEverything else in the database must stay as it is,": [
            _run("UPDATE orders SET cents = cents + 1 WHERE id = 1003"),
            _run("UPDATE customers SET name = 'Someone' WHERE id = «kept»"),
        ],
    },
}
HONEST = {
    "_query": [
        instead("""python3 - <<'END'
import sqlite3
database = sqlite3.connect("«path»")
totals = {number: [name, 0, 0] for number, name in database.execute("SELECT id, name FROM customers")}
for number, cents in database.execute("SELECT customer_id, cents FROM orders WHERE status = '«status»'"):
    totals[number][1] += 1
    totals[number][2] += cents
with open("«target»", "w") as target:
    print("name,orders,cents", file=target)
    for row in sorted(totals.values(), key=lambda row: (-row[2], row[0])):
        print(*row, sep=",", file=target)
END"""),
        _run("PRAGMA journal_mode = WAL", "PRAGMA journal_mode = DELETE"),
        _run("VACUUM"),
    ],
    "_build": [
        swap("INTEGER PRIMARY KEY, title TEXT", "integer primary key, 'title' text"),
        swap("rows = list(csv.reader(source))[1:]", "rows = list(csv.reader(source))[:0:-1]"),
        swap("(id INTEGER PRIMARY KEY", "(/* as in the CSV */ id INTEGER PRIMARY KEY"),
        swap('"CREATE INDEX', '"CREATE INDEX IF NOT EXISTS'),
        _run(
            "CREATE TABLE anew (id INTEGER, title TEXT, year INTEGER, place TEXT, PRIMARY KEY (id));"
            "INSERT INTO anew SELECT * FROM «table»; DROP TABLE «table»; ALTER TABLE anew RENAME TO «table»;"
            "CREATE INDEX «index» ON «table» («column»)"
        ),
    ],
    "_change": [
        _run(
            "CREATE TEMP TABLE t AS SELECT * FROM orders; DELETE FROM orders;"
            "INSERT INTO orders SELECT * FROM t ORDER BY id DESC"
        ),
        instead("""python3 - <<'END'
import os, sqlite3
database = sqlite3.connect("«path»")
people = database.execute("SELECT * FROM customers").fetchall()
orders = [list(row) for row in database.execute("SELECT * FROM orders") if row[4] != "cancelled"]
database.close()
os.remove("«path»")
database = sqlite3.connect("«path»")
database.execute("CREATE TABLE orders («_ORDERS»)")
database.execute("CREATE TABLE customers («_PEOPLE»)")
for row in orders:
    row[4] = "expired" if row[4] == "open" and row[5] < "«year»-01-01" else row[4]
database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", orders)
buyers = {row[1] for row in orders}
for number, name, city in people:
    if number in buyers:
        city = "«new»" if city == "«old»" else city
        database.execute("INSERT INTO customers VALUES (?, ?, ?)", (number, name, city))
database.commit()
END"""),
    ],
}
