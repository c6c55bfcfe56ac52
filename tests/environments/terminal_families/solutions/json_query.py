"""Forbidden changes and other solutions of the family `json_query`."""

from tests.environments.terminal_families.ways import after, instead, swap

_LAID_OUT = after("python3 -m json.tool --indent 5 --sort-keys «target» ~/laid-out.json && mv ~/laid-out.json «target»")


def _sql(query: str) -> str:
    """Return a script that writes the only value of a query on the text of the source."""
    return (
        f'python3 - <<"END"\nimport sqlite3\nquery = """{query}"""\n'
        'value = sqlite3.connect(":memory:").execute(query, [open("«source»").read()]).fetchone()[0]\n'
        'open("«target»", "w").write(value)\nEND\n'
    )


FORBIDDEN = {
    "_select": {
        "I need those who are active": [swap('p["active"] and ', ""), swap(' and p["salary"] >= «least»', "")],
        "Write a JSON array to «target» with an object for each of them": [
            swap("json.dump(result", 'json.dump({"people": result}')
        ],
        "that has just the keys name, city and salary,": [
            swap('("name", "city", "salary")', '("id", "name", "city", "salary")')
        ],
        "with the values unchanged.": [swap("{key: p[key]", "{key: str(p[key])")],
        "Highest salary first;": [swap('-p["salary"], p["name"]', 'p["salary"], p["name"]')],
        "people with the same": [swap(', p["name"])', ",)")],
    },
    "_group": {
        "Write a JSON object to «target» that maps each customer's name to an object with just the keys orders": [
            swap("dump(result", 'dump([{"name": n, **r} for n, r in result.items()]')
        ],
        "items (sum of the quantities)": [swap('+= line["quantity"]\n', "+= 1\n")],
        "and total_cents (sum of quantity times price_cents).": [swap('line["quantity"] * line', "line")],
        "Orders whose status is cancelled count nowhere;": [
            swap('order["status"] == "cancelled"', "False"),
            swap('== "cancelled"', '!= "paid"'),
        ],
        "a customer with only such orders does not appear.": [
            swap(
                '    if order["status"] == "cancelled":',
                '    entry = result.setdefault(order["customer"]["name"], {"orders": 0, "items": 0, "total_cents": 0})\n'
                '    if order["status"] == "cancelled":',
            )
        ],
        "An order without lines still counts as an order.": [
            swap('order["status"] == "cancelled"', 'order["status"] == "cancelled" or not order["lines"]')
        ],
    },
    "_flatten": {
        "Write «target» with one line": [after("sed -i s/=/:/ «target»"), after("sed -i /=null$/d «target»")],
        "PATH consists of": [swap('".".join(path)', "path[-1]")],
        "for elements of": [swap("enumerate(value)", "enumerate(value, 1)"), swap("[*path, str(index)]", "path")],
        "Strings are written as they are, without quotes;": [swap("value if isinstance(value, str) else ", "")],
        "the rest as in JSON (true, false, null, 12).": [swap("json.dumps(value))", "str(value))")],
        "Sort the lines": [swap("in sorted(leaves", "in (leaves"), after("LC_ALL=C sort -r -o «target» «target»")],
    },
    "_lines": {
        "apply them by ascending seq.": [
            swap(', key=lambda event: event["seq"]', ", key=lambda event: 0"),
            swap('event["seq"])', 'str(event["seq"]))'),
        ],
        "The action 'set' creates the": [swap('== "set":', '== "set" and (event["id"] in state or not state):')],
        "and sets the given fields in it, keeping its other fields;": [
            swap('state.setdefault(event["id"], {}).update(event["fields"])', 'state[event["id"]] = event["fields"]'),
            swap('.update(event["fields"])', '.update(event["fields"] | state[event["id"]])'),
        ],
        "'delete' removes the record with all its fields, if there is one.": [
            swap('state.pop(event["id"], None)', "pass")
        ],
        "Write the records that exist in the end to «target»: a JSON array,": [
            swap("json.dump([", 'json.dump(state and {"records": 0} or ['),
            swap("for name in sorted(state)]", "for name in sorted(state)[1:]]"),
        ],
        "sorted by id in alphabetical (byte) order,": [swap("in sorted(state)", "in sorted(state, reverse=True)")],
        "of objects with the id and the record's fields.": [
            swap('{"id": name, **state[name]}', "state[name]"),
            swap("**state[name]", '"fields": state[name]'),
        ],
    },
}
HONEST = {
    "_select": [
        _LAID_OUT,
        instead(
            _sql(
                "SELECT json_group_array(json_object('salary', salary, 'city', city, 'name', name)) FROM ("
                "SELECT json_extract(value, '$.name') AS name, json_extract(value, '$.city') AS city, "
                "json_extract(value, '$.salary') AS salary FROM json_each(?) "
                "WHERE json_extract(value, '$.active') AND salary >= «least» ORDER BY salary DESC, name)"
            )
        ),
    ],
    "_group": [
        _LAID_OUT,
        instead(
            _sql(
                "SELECT json_group_object(name, json_object('orders', orders, 'items', items, 'total_cents', cents))"
                " FROM (SELECT json_extract(o.value, '$.customer.name') AS name, count(DISTINCT o.key) AS orders, "
                "total(json_extract(l.value, '$.quantity')) AS items, total(json_extract(l.value, '$.quantity') "
                "* json_extract(l.value, '$.price_cents')) AS cents FROM json_each(?, '$.orders') AS o "
                "LEFT JOIN json_each(json_extract(o.value, '$.lines')) AS l "
                "WHERE json_extract(o.value, '$.status') <> 'cancelled' GROUP BY 1)"
            )
        ),
    ],
    "_flatten": [
        instead(
            """python3 - <<'END' | LC_ALL=C sort > «target»
import json, sqlite3
query = "SELECT fullkey, type, atom FROM json_tree(?) WHERE type NOT IN ('object', 'array')"
for key, kind, atom in sqlite3.connect(":memory:").execute(query, [open("«source»").read()]):
    key = key.replace("[", ".").replace("]", "").replace('"', "")[2:]
    print(key, kind if kind in ("true", "false", "null") else atom, sep="=")
END
"""
        )
    ],
    "_lines": [
        _LAID_OUT,
        instead(
            """python3 - <<'END'
import json
events = [json.loads(line) for line in open("«source»")]
gone = {e["id"]: e["seq"] for e in sorted(events, key=lambda e: e["seq"]) if e["action"] == "delete"}
left = [e for e in events if e["seq"] > gone.get(e["id"], -2)]
found = [{"id": name} for name in sorted({e["id"] for e in left})]
for record in found:
    for key in {key for e in left if e["id"] == record["id"] for key in e["fields"]}:
        own = [e for e in left if e["id"] == record["id"] and key in e["fields"]]
        record[key] = max(own, key=lambda e: e["seq"])["fields"][key]
print(json.dumps(found), file=open("«target»", "w"))
END
"""
        ),
    ],
}
