"""Family: JSON, selected, grouped and reshaped."""

from __future__ import annotations

import json
from typing import Any

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]

_VALUE, _LINES = "* has the right value", "* has the right lines"


def _honest_json(draft: Draft, target: str) -> None:
    """Add honest ways that vary the format of a JSON file."""
    draft.honest("a newline at the end", after=f"echo >> {target}")
    draft.honest(
        "another layout",
        after=f"python3 -m json.tool --indent 5 {target} ~/laid-out.json && mv ~/laid-out.json {target}",
    )
    draft.honest(
        "keys in alphabetical order",
        after=f"python3 -m json.tool --sort-keys {target} ~/sorted.json && cp ~/sorted.json {target}",
    )


def _select(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('employees', 'people', 'staff')}.json"
    people: list[dict[str, Any]] = [
        {
            "id": draft.number(100, 999) * 20 + index,
            "name": f"{first} {last}",
            "department": draft.pick(*DEPARTMENTS[:5]),
            "city": draft.pick(*CITIES),
            "salary": draft.number(20, 99) * 1000,
            "active": draft.chance(0.6),
        }
        for index, (first, last) in enumerate(zip(draft.some(FIRST_NAMES, 18), draft.some(LAST_NAMES, 18), strict=True))
    ]
    least = draft.number(30, 60) * 1000
    people[0] |= {"active": True, "salary": least}
    people[1] |= {"active": False, "salary": least + 5000}
    people[2] |= {"active": True, "salary": least - 1000}
    # Two people with the same salary: full names, last names and the file order them differently.
    pairs = [str(person["name"]).split() for person in people[3:5]]
    (first, second), (third, fourth) = (sorted(words) for words in zip(*pairs, strict=True))
    people[3] |= {"active": True, "salary": least + 1000, "name": f"{first} {fourth}"}
    people[4] |= {"active": True, "salary": least + 1000, "name": f"{second} {third}"}
    shown = draft.shuffled(people)
    at, other = shown.index(people[3]), shown.index(people[4])
    shown[max(at, other)], shown[min(at, other)] = people[3], people[4]
    draft.file(source, json.dumps(shown, indent=draft.pick(None, 1, 2)) + "\n", keep=True)
    chosen = [person for person in people if person["active"] and person["salary"] >= least]
    chosen.sort(key=lambda person: (-person["salary"], person["name"]))
    value = [{"name": person["name"], "city": person["city"], "salary": person["salary"]} for person in chosen]
    target = f"{root}/{draft.pick('selected', 'shortlist', 'result')}.json"
    draft.say(
        draft.pick(
            f"Please pick some people from {source}, a JSON array of objects.",
            f"{source} is a JSON array of employees.",
        ),
        draft.require(
            f"I need those who are active (active is true) and earn at least {least} (salary).",
            breach("those who are not active too", _VALUE, swap=('p["active"] and ', "")),
            breach("those who are not active", _VALUE, swap=('p["active"] and', 'not p["active"] and')),
            breach("whatever they earn", _VALUE, swap=(f' and p["salary"] >= {least}', "")),
            breach("more than that", _VALUE, swap=(f">= {least}", f"> {least}")),
            breach("a little less too", _VALUE, swap=(f">= {least}", f">= {least - 1000}")),
        ),
        draft.require(
            f"Write a JSON array to {target} with an object for each of them",
            breach(
                "a line for each in place of an array",
                _VALUE,
                swap=(
                    f'json.dump(result, open({target!r}, "w"), indent=2)',
                    f'print(*map(json.dumps, result), sep="\\n", file=open({target!r}, "w"))',
                ),
            ),
            breach("an array in an object", _VALUE, swap=("json.dump(result", 'json.dump({"people": result}')),
            breach("one of them left out", _VALUE, swap=("json.dump(result", "json.dump(result[:-1]")),
            breach("one of them twice", _VALUE, swap=("json.dump(result", "json.dump([*result, result[-1]]")),
            breach(
                "an array of arrays", _VALUE, swap=("json.dump(result", "json.dump([[*r.values()] for r in result]")
            ),
        ),
        draft.require(
            "that has just the keys name, city and salary,",
            breach("all keys", _VALUE, swap=('("name", "city", "salary")', "p")),
            breach("the number too", _VALUE, swap=('("name", "city", "salary")', '("id", "name", "city", "salary")')),
            breach("no city", _VALUE, swap=('("name", "city", "salary")', '("name", "salary")')),
            breach("keys in capitals", _VALUE, swap=("{key: p[key]", "{key.upper(): p[key]")),
        ),
        draft.require(
            "with the values unchanged.",
            breach("texts in place of numbers", _VALUE, swap=("{key: p[key]", "{key: str(p[key])")),
            breach("thousands", _VALUE, swap=("{key: p[key]", '{key: p[key] // 1000 if key == "salary" else p[key]')),
            breach(
                "cities in capitals", _VALUE, swap=("{key: p[key]", '{key: p[key].upper() if key == "city" else p[key]')
            ),
        ),
        draft.require(
            "Highest salary first;",
            breach("lowest salary first", _VALUE, swap=('-p["salary"], p["name"]', 'p["salary"], p["name"]')),
            breach("by name alone", _VALUE, swap=('-p["salary"], p["name"]', 'p["name"]')),
            breach("in the order of the file", _VALUE, swap=("people.sort(", "sorted(people, ")),
        ),
        draft.require(
            "people with the same salary by name (the whole string, in alphabetical order).",
            breach("one salary in the order of the file", _VALUE, swap=(', p["name"])', ",)")),
            breach("one salary by last name", _VALUE, swap=(', p["name"])', ', p["name"].split()[1])')),
            breach(
                "one salary by name backwards",
                _VALUE,
                swap=(', p["name"])', ', [-ord(letter) for letter in p["name"]])'),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, value)
    oracle = python(
        """
        import json
        people = [p for p in json.load(open(@source@)) if p["active"] and p["salary"] >= @least@]
        people.sort(key=lambda p: (-p["salary"], p["name"]))
        result = [{key: p[key] for key in ("name", "city", "salary")} for p in people]
        json.dump(result, open(@target@, "w"), indent=2)
        """,
        source=source,
        target=target,
        least=least,
    )
    _honest_json(draft, target)
    draft.solve(oracle, swap(oracle, f">= {least}", f"> {least}"), json.dumps(value))


#: Start of a customer's entry in the oracle of ``_group``.
_ENTRY = 'entry = result.setdefault(order["customer"]["name"], {"orders": 0, "items": 0, "total_cents": 0})'


def _group(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('orders', 'purchases', 'checkouts')}.json"
    customers = draft.some(FIRST_NAMES, draft.number(5, 7))
    never = customers.pop()  # has only cancelled orders
    orders: list[dict[str, Any]] = []
    for index in range(draft.number(12, 20)):
        status = draft.pick("paid", "paid", "shipped", "cancelled")
        status = {0: "cancelled", 1: "shipped", 2: "paid", 7: "cancelled", 8: "cancelled"}.get(index, status)
        lines = [
            {"product": product, "quantity": draft.number(1, 5), "price_cents": draft.number(99, 9999)}
            for product in draft.some(PRODUCTS, draft.number(1, 4))
        ]
        customer = customers[index] if index < len(customers) else draft.pick(*customers)
        if index in (7, 8):
            customer = never
        if index == 2:
            lines[0]["quantity"] = 3
        orders.append({"number": 1000 + index, "customer": {"name": customer}, "status": status, "lines": lines})
    orders.append({"number": 999, "customer": {"name": customers[0]}, "status": "paid", "lines": []})
    draft.file(source, json.dumps({"orders": orders}, indent=draft.pick(None, 2)) + "\n", keep=True)
    value: dict[str, dict[str, int]] = {}
    for order in orders:
        if order["status"] != "cancelled":
            entry = value.setdefault(order["customer"]["name"], {"orders": 0, "items": 0, "total_cents": 0})
            entry["orders"] += 1
            entry["items"] += sum(line["quantity"] for line in order["lines"])
            entry["total_cents"] += sum(line["quantity"] * line["price_cents"] for line in order["lines"])
    target = f"{root}/{draft.pick('customers', 'totals', 'summary')}.json"
    draft.say(
        draft.pick(f"Summarise the orders in {source} by customer.", f"How much has each customer in {source} bought?"),
        'The file holds an object whose key "orders" has an array of orders: each has a customer (with a name), a '
        "status and lines with quantity and price_cents (the price of one piece).",
        draft.require(
            f"Write a JSON object to {target} that maps each customer's name to an object with just the keys orders "
            "(the number of orders),",
            breach(
                "an array of customers",
                _VALUE,
                swap=("dump(result", 'dump([{"name": n, **r} for n, r in result.items()]'),
            ),
            breach(
                "an array of the three numbers",
                _VALUE,
                swap=("dump(result", "dump({n: [*r.values()] for n, r in result.items()}"),
            ),
            breach(
                "one more key", _VALUE, swap=("dump(result", 'dump({n: {**r, "mean": 0} for n, r in result.items()}')
            ),
            breach("the totals of all beside them", _VALUE, swap=("dump(result", 'dump({**result, "all": {}}')),
            breach(
                "names in small letters", _VALUE, swap=("dump(result", "dump({n.lower(): r for n, r in result.items()}")
            ),
            breach("a customer left out", _VALUE, swap=("dump(result", "dump(dict([*result.items()][1:])")),
            breach(
                "a customer's last order alone",
                _VALUE,
                swap=('entry["orders"] += 1', 'entry["orders"] = 1; entry["items"] = 0'),
            ),
            breach(
                "numbers as text",
                _VALUE,
                swap=("dump(result", "dump({n: {k: str(v) for k, v in r.items()} for n, r in result.items()}"),
            ),
        ),
        draft.require(
            "items (sum of the quantities)",
            breach("the number of lines", _VALUE, swap=('+= line["quantity"]\n', "+= 1\n")),
        ),
        draft.require(
            "and total_cents (sum of quantity times price_cents).",
            breach("the sum of the prices", _VALUE, swap=('line["quantity"] * line', "line")),
            breach(
                "the total in whole units",
                _VALUE,
                swap=(
                    "dump(result",
                    'dump({n: {**r, "total_cents": r["total_cents"] / 100} for n, r in result.items()}',
                ),
            ),
        ),
        draft.require(
            "Orders whose status is cancelled count nowhere;",
            breach("cancelled orders too", _VALUE, swap=('order["status"] == "cancelled"', "False")),
            breach("paid orders alone", _VALUE, swap=('== "cancelled"', '!= "paid"')),
            breach("shipped orders alone", _VALUE, swap=('== "cancelled"', '!= "shipped"')),
        ),
        draft.require(
            "a customer with only such orders does not appear.",
            breach(
                "customers without orders that count",
                _VALUE,
                swap=(
                    '    if order["status"] == "cancelled":',
                    f'    {_ENTRY}\n    if order["status"] == "cancelled":',
                ),
            ),
        ),
        draft.require(
            "An order without lines still counts as an order.",
            breach(
                "no orders without lines",
                _VALUE,
                swap=('order["status"] == "cancelled"', 'order["status"] == "cancelled" or not order["lines"]'),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, value)
    oracle = python(
        """
        import json
        result = {}
        for order in json.load(open(@source@))["orders"]:
            if order["status"] == "cancelled":
                continue
            entry = result.setdefault(order["customer"]["name"], {"orders": 0, "items": 0, "total_cents": 0})
            entry["orders"] += 1
            for line in order["lines"]:
                entry["items"] += line["quantity"]
                entry["total_cents"] += line["quantity"] * line["price_cents"]
        json.dump(result, open(@target@, "w"), indent=2)
        """,
        source=source,
        target=target,
    )
    _honest_json(draft, target)
    draft.solve(oracle, swap(oracle, '== "cancelled"', '== "canceled"'), json.dumps(value))


def _tree(draft: Draft, depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {}
    for word in draft.some(WORDS, draft.number(2, 4)):
        kind = draft.number(0, 5) if depth else draft.number(2, 5)
        if kind < 2:
            node[word] = _tree(draft, depth - 1)
        elif kind == 2:
            node[word] = [draft.pick(draft.number(1, 99), draft.pick(*SERVICES)) for _ in range(draft.number(1, 3))]
        else:
            node[word] = draft.pick(draft.number(1, 9999), draft.pick(*CITIES), True, False, None)
    return node


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        items: list[tuple[str, Any]] = [(str(key), item) for key, item in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elif isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(value)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    else:
        return [(path, value if isinstance(value, str) else json.dumps(value))]
    return [leaf for key, item in items for leaf in _leaves(item, f"{path}.{key}" if path else key)]


def _flatten(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('settings', 'manifest', 'state')}.json"
    tree = {word: _tree(draft, 2) for word in draft.some(SERVICES, draft.number(2, 4))}
    tree["flags"] = {"list": [True, 0, draft.pick(*WORDS)], "nothing": None, "count": draft.number(1, 10**6)}
    draft.file(source, json.dumps(tree, indent=2) + "\n", keep=True)
    target = source.replace(".json", ".flat")
    expected = "".join(sorted(f"{path}={value}\n" for path, value in _leaves(tree, "")))
    draft.say(
        draft.pick(f"Flatten the JSON file {source}.", f"I need the JSON object in {source} as simple lines."),
        draft.require(
            f"Write {target} with one line PATH=VALUE for each string, number, boolean and null in it.",
            breach("a colon in place of the sign", _LINES, after=f"sed -i s/=/:/ {target}"),
            breach("spaces around the sign", _LINES, after=f"sed -i 's/=/ = /' {target}"),
            breach("no nulls", _LINES, after=f"sed -i /=null$/d {target}"),
            breach("no booleans", _LINES, after=f"sed -i /=true$/d {target}"),
            breach("no elements of arrays", _LINES, swap=("elif isinstance(value, list):", "elif value == []:")),
            breach("a line twice", _LINES, after=f"sed -i 1p {target}"),
            breach("one level alone", _LINES, after=f"sed -i '/[.].*[.].*=/d' {target}"),
            breach(
                "lines of objects too", _LINES, after=f"echo flags= >> {target} && LC_ALL=C sort -o {target} {target}"
            ),
        ),
        draft.require(
            "PATH consists of the keys that lead there, joined by dots;",
            breach("joined by slashes", _LINES, swap=('".".join(path)', '"/".join(path)')),
            breach("the last key alone", _LINES, swap=('".".join(path)', "path[-1]")),
            breach("a dot before the path", _LINES, swap=('".".join(path)', '"." + ".".join(path)')),
        ),
        draft.require(
            "for elements of arrays the index is used, counting from 0 (as in servers.0.name=web).",
            breach("counted from 1", _LINES, swap=("enumerate(value)", "enumerate(value, 1)")),
            breach("the index in brackets", _LINES, swap=("[*path, str(index)]", '[*path, f"[{index}]"]')),
            breach("no index", _LINES, swap=("[*path, str(index)]", "path")),
        ),
        draft.require(
            "Strings are written as they are, without quotes;",
            breach("strings in quotes", _LINES, swap=("value if isinstance(value, str) else ", "")),
            breach("strings in capitals", _LINES, swap=("(value if isinstance", "(value.upper() if isinstance")),
        ),
        draft.require(
            "the rest as in JSON (true, false, null, 12).",
            breach("as Python has it", _LINES, swap=("json.dumps(value))", "str(value))")),
            breach(
                "null as nothing", _LINES, swap=("json.dumps(value))", '("" if value is None else json.dumps(value)))')
            ),
            breach("numbers with decimals", _LINES, after=f"sed -Ei 's/=[0-9]+$/&.0/' {target}"),
        ),
        draft.require(
            "Sort the lines in byte order (LC_ALL=C).",
            breach("in the order of the file", "lines of * are in order", swap=("in sorted(leaves", "in (leaves")),
            breach("sorted backwards", "lines of * are in order", after=f"LC_ALL=C sort -r -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import json
        def leaves(value, path):
            if isinstance(value, dict):
                for key, item in value.items():
                    yield from leaves(item, [*path, key])
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    yield from leaves(item, [*path, str(index)])
            else:
                yield ".".join(path) + "=" + (value if isinstance(value, str) else json.dumps(value))
        with open(@target@, "w") as target:
            for line in sorted(leaves(json.load(open(@source@)), [])):
                print(line, file=target)
        """,
        source=source,
        target=target,
    )
    draft.honest("written through a temporary file", after=f"cp {target} {target}.new && mv {target}.new {target}")
    draft.honest(
        "flattened step by step",
        instead=python(
            """
            import json
            flat, more = {"": json.load(open(@source@))}, True
            while more:
                more, next_flat = False, {}
                for path, value in flat.items():
                    if isinstance(value, (dict, list)):
                        more = True
                        items = value.items() if isinstance(value, dict) else enumerate(value)
                        next_flat |= {f"{path}.{key}": item for key, item in items}
                    else:
                        next_flat[path] = value
                flat = next_flat
            lines = [p[1:] + "=" + (v if isinstance(v, str) else json.dumps(v)) + "\\n" for p, v in flat.items()]
            open(@target@, "wb").write("".join(sorted(lines)).encode())
            """,
            source=source,
            target=target,
        ),
    )
    draft.solve(oracle, swap(oracle, "json.dumps(value))", "str(value))"), expected)


#: The statement for "set" in the oracle of ``_lines``.
_UPDATE = 'state.setdefault(event["id"], {}).update(event["fields"])'


def _lines(draft: Draft) -> None:
    """Write a task about the latest value of each field in a stream of changes."""
    root = draft.project()
    source = f"{root}/{draft.pick('events', 'changes', 'updates')}.jsonl"
    target = f"{root}/{draft.pick('state', 'current', 'records')}.json"
    state: dict[str, dict[str, Any]] = {}
    lines: list[str] = []
    names = [f"{name}-{draft.number(1, 99)}" for name in draft.some(SERVICES, draft.number(5, 8))]
    # For each rule: two fields of one record, a record deleted for good, a record that returns with another field.
    last_words = [(names[1], "owner"), (names[1], "zone"), (names[2], "size"), (names[2], ""), (names[2], "zone")]
    last_words += [(names[3], "owner"), (names[3], ""), (names[3], "")]
    count = draft.number(18, 28)
    for index in range(count + len(last_words)):
        name = names[index % len(names)] if index < 8 else draft.pick(*names)
        action = "set" if index < 5 or draft.chance(0.75) else "delete"
        key = draft.pick("size", "owner", "zone")
        if index == 9:
            name, action, key = names[0], "set", "size"  # last when sorted as text
        elif index >= count:
            name, key = last_words[index - count]
            action = "set" if key else "delete"
        event: dict[str, Any] = {"seq": index, "id": name, "action": action}
        if action == "set":
            event["fields"] = {key: draft.pick(draft.number(1, 99), draft.pick(*FIRST_NAMES), draft.pick(*CITIES))}
            state.setdefault(name, {}).update(event["fields"])
        else:
            state.pop(name, None)
        lines.append(json.dumps(event))
    last: dict[str, Any] = {
        "seq": len(lines),
        "id": names[0],
        "action": "set",
        "fields": {"size": draft.number(100, 999)},
    }
    first = {"seq": -1, "id": names[0], "action": "set", "fields": {"size": 0}}
    state.setdefault(names[0], {}).update(last["fields"])
    text = "\n".join(draft.shuffled([*lines, json.dumps(last)])) + f"\n{json.dumps(first)}\n"
    draft.file(source, text, keep=True)
    value = [{"id": name, **state[name]} for name in sorted(state)]
    draft.say(
        draft.pick(
            f"Replay the changes in {source}.", f"{source} is a stream of changes, and I want the resulting state."
        ),
        "Its lines are JSON objects, and they got out of order:",
        draft.require(
            "apply them by ascending seq.",
            breach(
                "in the order of the file", _VALUE, swap=(', key=lambda event: event["seq"]', ", key=lambda event: 0")
            ),
            breach("by descending seq", _VALUE, swap=('event["seq"])', '-event["seq"])')),
            breach("by seq as text", _VALUE, swap=('event["seq"])', 'str(event["seq"]))')),
        ),
        draft.require(
            "The action 'set' creates the record with that id if there is none",
            breach(
                "records without a first one",
                _VALUE,
                swap=('== "set":', '== "set" and (event["id"] in state or not state):'),
            ),
        ),
        draft.require(
            "and sets the given fields in it, keeping its other fields;",
            breach("other fields lost", _VALUE, swap=(_UPDATE, 'state[event["id"]] = event["fields"]')),
            breach(
                "first values kept",
                _VALUE,
                swap=(_UPDATE, 'state[event["id"]] = event["fields"] | state.get(event["id"], {})'),
            ),
        ),
        draft.require(
            "'delete' removes the record with all its fields, if there is one.",
            breach("nothing deleted", _VALUE, swap=('state.pop(event["id"], None)', "pass")),
            breach(
                "a deleted record left empty", _VALUE, swap=('state.pop(event["id"], None)', 'state[event["id"]] = {}')
            ),
            breach("everything deleted", _VALUE, swap=('state.pop(event["id"], None)', "state.clear()")),
        ),
        draft.require(
            f"Write the records that exist in the end to {target}: a JSON array,",
            breach("an object", _VALUE, swap=("json.dump([", 'json.dump(state and {"records": 0} or [')),
            breach("a record left out", _VALUE, swap=("for name in sorted(state)]", "for name in sorted(state)[1:]]")),
            breach(
                "a record twice",
                _VALUE,
                swap=("for name in sorted(state)]", "for name in sorted([*state, min(state)])]"),
            ),
        ),
        draft.require(
            "sorted by id in alphabetical (byte) order,",
            breach("sorted backwards", _VALUE, swap=("in sorted(state)", "in sorted(state, reverse=True)")),
        ),
        draft.require(
            "of objects with the id and the record's fields.",
            breach("no ids", _VALUE, swap=('{"id": name, **state[name]}', "state[name]")),
            breach("the fields in an object of their own", _VALUE, swap=("**state[name]", '"fields": state[name]')),
            breach("the number of the last change too", _VALUE, swap=("**state[name]", '**state[name], "seq": 0')),
            breach(
                "empty fields too",
                _VALUE,
                swap=(
                    '{"id": name, **state[name]}',
                    '{"id": name, "size": None, "owner": None, "zone": None, **state[name]}',
                ),
            ),
            breach("the size alone", _VALUE, swap=("**state[name]", '"size": state[name].get("size")')),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.json(target, value)
    oracle = python(
        """
        import json
        state = {}
        for event in sorted(map(json.loads, open(@source@)), key=lambda event: event["seq"]):
            if event["action"] == "set":
                state.setdefault(event["id"], {}).update(event["fields"])
            else:
                state.pop(event["id"], None)
        json.dump([{"id": name, **state[name]} for name in sorted(state)], open(@target@, "w"))
        """,
        source=source,
        target=target,
    )
    _honest_json(draft, target)
    draft.solve(oracle, swap(oracle, ', key=lambda event: event["seq"])', ", key=lambda event: 0)"), json.dumps(value))


FAMILY = Family("json_query", "Select from, group and reshape JSON", (_select, _group, _flatten, _lines), ("python3",))
