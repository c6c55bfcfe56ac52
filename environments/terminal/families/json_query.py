"""Family: JSON, selected, grouped and reshaped."""

import json
from typing import Any

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES, WORDS


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
    draft.file(source, json.dumps(shown, indent=draft.pick(None, 1, 2)) + "\n")
    target = f"{root}/{draft.pick('selected', 'shortlist', 'result')}.json"
    draft.say(
        draft.pick(
            f"Please pick some people from {source}, a JSON array of objects.",
            f"{source} is a JSON array of employees.",
        ),
        f"! I need those who are active (active is true) and earn at least {least} (salary).",
        f"! Write a JSON array to {target} with an object for each of them",
        "! that has just the keys name, city and salary,",
        "! with the values unchanged.",
        "! Highest salary first;",
        "! people with the same salary by name (the whole string, in alphabetical order).",
    )
    draft.form(target, "json")
    oracle = python("""
        import json
        people = [p for p in json.load(open(@source@)) if p["active"] and p["salary"] >= @least@]
        people.sort(key=lambda p: (-p["salary"], p["name"]))
        result = [{key: p[key] for key in ("name", "city", "salary")} for p in people]
        json.dump(result, open(@target@, "w"), indent=2)
        """)
    draft.solve(oracle, swap(oracle, f">= {least}", f"> {least}"))


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
    draft.file(source, json.dumps({"orders": orders}, indent=draft.pick(None, 2)) + "\n")
    target = f"{root}/{draft.pick('customers', 'totals', 'summary')}.json"
    draft.say(
        draft.pick(f"Summarise the orders in {source} by customer.", f"How much has each customer in {source} bought?"),
        'The file holds an object whose key "orders" has an array of orders: each has a customer (with a name), a '
        "status and lines with quantity and price_cents (the price of one piece).",
        f"! Write a JSON object to {target} that maps each customer's name to an object with just the keys orders "
        "(the number of orders),",
        "! items (sum of the quantities)",
        "! and total_cents (sum of quantity times price_cents).",
        "! Orders whose status is cancelled count nowhere;",
        "! a customer with only such orders does not appear.",
        "! An order without lines still counts as an order.",
    )
    draft.form(target, "json")
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, '== "cancelled"', '== "canceled"'))


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


def _flatten(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('settings', 'manifest', 'state')}.json"
    tree = {word: _tree(draft, 2) for word in draft.some(SERVICES, draft.number(2, 4))}
    tree["flags"] = {"list": [True, 0, draft.pick(*WORDS)], "nothing": None, "count": draft.number(1, 10**6)}
    draft.file(source, json.dumps(tree, indent=2) + "\n")
    target = source.replace(".json", ".flat")
    draft.say(
        draft.pick(f"Flatten the JSON file {source}.", f"I need the JSON object in {source} as simple lines."),
        f"! Write {target} with one line PATH=VALUE for each string, number, boolean and null in it.",
        "! PATH consists of the keys that lead there, joined by dots;",
        "! for elements of arrays the index is used, counting from 0 (as in servers.0.name=web).",
        "! Strings are written as they are, without quotes;",
        "! the rest as in JSON (true, false, null, 12).",
        "! Sort the lines in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, "json.dumps(value))", "str(value))"))


def _lines(draft: Draft) -> None:
    """Write a task about the latest value of each field in a stream of changes."""
    root = draft.project()
    source = f"{root}/{draft.pick('events', 'changes', 'updates')}.jsonl"
    target = f"{root}/{draft.pick('state', 'current', 'records')}.json"
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
        lines.append(json.dumps(event))
    last = {"seq": len(lines), "id": names[0], "action": "set", "fields": {"size": draft.number(100, 999)}}
    first = {"seq": -1, "id": names[0], "action": "set", "fields": {"size": 0}}
    text = "\n".join(draft.shuffled([*lines, json.dumps(last)])) + f"\n{json.dumps(first)}\n"
    draft.file(source, text)
    draft.say(
        draft.pick(
            f"Replay the changes in {source}.", f"{source} is a stream of changes, and I want the resulting state."
        ),
        "Its lines are JSON objects, and they got out of order:",
        "! apply them by ascending seq.",
        "! The action 'set' creates the record with that id if there is none",
        "! and sets the given fields in it, keeping its other fields;",
        "! 'delete' removes the record with all its fields, if there is one.",
        f"! Write the records that exist in the end to {target}: a JSON array,",
        "! sorted by id in alphabetical (byte) order,",
        "! of objects with the id and the record's fields.",
    )
    draft.form(target, "json")
    oracle = python("""
        import json
        state = {}
        for event in sorted(map(json.loads, open(@source@)), key=lambda event: event["seq"]):
            if event["action"] == "set":
                state.setdefault(event["id"], {}).update(event["fields"])
            else:
                state.pop(event["id"], None)
        json.dump([{"id": name, **state[name]} for name in sorted(state)], open(@target@, "w"))
        """)
    draft.solve(oracle, swap(oracle, ', key=lambda event: event["seq"])', ", key=lambda event: 0)"))


FAMILY = Family("json_query", "Select from, group and reshape JSON", (_select, _group, _flatten, _lines), ("python3",))
