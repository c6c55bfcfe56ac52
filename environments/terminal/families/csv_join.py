"""Family: CSV tables, joined and added up."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS

__all__ = ["FAMILY"]

_HEADER, _RECORDS, _ORDER = "* has the right header", "* has the right records", "records of * are in order"


def _csv(header: str, rows: list[list[str]]) -> str:
    return f"{header}\n" + "".join(f"{','.join(row)}\n" for row in rows)


def _euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _inner(draft: Draft) -> None:
    root = draft.project()
    left, right = draft.pick(
        ("orders", "customers"), ("shifts", "employees"), ("visits", "patients"), ("bids", "bidders")
    )
    key = f"{right[:-1]}_id"
    numbers = [str(number) for number in draft.some(range(100, 999), draft.number(6, 10))]
    names = [
        f"{first} {last}" for first, last in zip(draft.some(FIRST_NAMES, 10), draft.some(LAST_NAMES, 10), strict=True)
    ]
    people = [[number, name, draft.pick(*CITIES)] for number, name in zip(numbers, names, strict=False)]
    entries = [
        [str(index), "1" + draft.pick(*numbers) if index % 6 == 3 else draft.pick(*numbers), str(draft.number(1, 900))]
        for index in range(1, draft.number(14, 24))
    ]
    draft.file(f"{root}/{left}.csv", _csv(f"id,{key},value", draft.shuffled(entries)), keep=True)
    draft.file(f"{root}/{right}.csv", _csv(f"{key},name,city", people), keep=True)
    found = {number: (name, city) for number, name, city in people}
    expected = [["id", "name", "city", "value"]]
    expected += [[e[0], *found[e[1]], e[2]] for e in sorted(entries, key=lambda e: int(e[0])) if e[1] in found]
    target = f"{root}/{left}-{draft.pick('joined', 'named', 'complete')}.csv"
    draft.say(
        draft.pick(
            f"Join {root}/{left}.csv with {root}/{right}.csv.", f"{root} has the CSV files {left}.csv and {right}.csv."
        ),
        f"They belong together by {key}.",
        draft.require(
            f"Write {target} with the header id,name,city,value",
            breach("another header", _HEADER, after=f"sed -i 1s/value/amount/ {target}"),
            breach("one more column", _HEADER, swap=('"city", "value"])', '"city", "value", "more"])')),
            breach("semicolons", _HEADER, _RECORDS, after=f"sed -i 's/,/;/g' {target}"),
        ),
        draft.require(
            f"and a record for each record of {left}.csv,",
            breach("a record left out", _RECORDS, after=f"sed -i '$ d' {target}"),
            breach(
                "a record for each name",
                _RECORDS,
                swap=(f"people.get(row[{key!r}])", f"people.pop(row[{key!r}], None)"),
            ),
            breach("the value of another record", _RECORDS, swap=('row["value"]]', 'row["value"] + "0"]')),
            breach(
                "the name of another record",
                _RECORDS,
                swap=('person["name"], person["city"]', 'person["name"].upper(), person["city"]'),
            ),
        ),
        draft.require(
            "sorted by id as a number, smallest first.",
            breach("sorted as text", _ORDER, swap=('int(row["id"])', 'row["id"]')),
            breach("largest first", _ORDER, swap=('int(row["id"])', '-int(row["id"])')),
        ),
        draft.require(
            f"Records whose {key} does not occur in {right}.csv are left out.",
            breach(
                "records without a match",
                _RECORDS,
                swap=(
                    f"if person := people.get(row[{key!r}])",
                    f'if person := people.get(row[{key!r}], {{"name": "", "city": ""}})',
                ),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        people = {row[@key@]: row for row in csv.DictReader(open(@right@))}
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["id", "name", "city", "value"])
            for row in sorted(csv.DictReader(open(@left@)), key=lambda row: int(row["id"])):
                if person := people.get(row[@key@]):
                    writer.writerow([row["id"], person["name"], person["city"], row["value"]])
        """,
        key=key,
        left=f"{root}/{left}.csv",
        right=f"{root}/{right}.csv",
        target=target,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, 'int(row["id"])', 'row["id"]'), str(expected))


def _outer(draft: Draft) -> None:
    root = draft.project()
    codes = [f"{name[:3].upper()}{draft.number(10, 99)}" for name in draft.some(PRODUCTS, draft.number(6, 9))]
    codes = list(dict.fromkeys(codes))
    products = [[code, f"{draft.pick(*PRODUCTS)}, {draft.pick('small', 'large', 'blue')}"] for code in codes]
    sales = [
        [draft.pick(*codes[2:]), str(draft.number(1, 9)), _euros(draft.number(99, 9999))]
        for _ in range(draft.number(15, 25))
    ]
    draft.file(f"{root}/products.csv", "code,name\n" + "".join(f'{c},"{n}"\n' for c, n in products), keep=True)
    draft.file(f"{root}/sales.csv", _csv("code,quantity,price", sales), keep=True)
    totals = {
        code: (
            sum(int(q) for c, q, _ in sales if c == code),
            sum(int(q) * int(p.replace(".", "")) for c, q, p in sales if c == code),
        )
        for code in codes
    }
    names = {code: name for code, name in products}  # noqa: C416 - lists of two, not pairs
    order = sorted(codes, key=lambda code: (-totals[code][1], code))
    expected = [["code", "name", "quantity", "revenue"]]
    expected += [[code, names[code], str(totals[code][0]), _euros(totals[code][1])] for code in order]
    target = f"{root}/{draft.pick('revenue', 'totals', 'bestsellers')}.csv"
    draft.say(
        draft.pick(f"What did each product in {root}/products.csv bring in?", f"Add up {root}/sales.csv by product."),
        f"{root}/products.csv has the columns code and name (names may contain commas and are quoted then), "
        f"{root}/sales.csv has code, quantity and price (of one piece, with two decimals).",
        draft.require(
            f"Write {target}, CSV with the header code,name,quantity,revenue:",
            breach("another header", _HEADER, after=f"sed -i 1s/revenue/total/ {target}"),
            breach("semicolons", _HEADER, _RECORDS, swap=("csv.writer(target)", 'csv.writer(target, delimiter=";")')),
        ),
        draft.require(
            "a record for every product, also for those without any sales (0 and 0.00),",
            breach("products without sales left out", _RECORDS, swap=(" if row)", " if row[2])")),
            breach("a record twice", _RECORDS, after=f"tail -n 1 {target} >> {target}"),
            breach("another name", _RECORDS, swap=('row["name"], 0', 'row["name"].split(",")[0], 0')),
            breach(
                "nothing in place of 0", _RECORDS, swap=(" if row)", " if row.__setitem__(2, row[2] or '') is None)")
            ),
        ),
        draft.require(
            "with the sum of the quantities",
            breach("the number of sales", _RECORDS, swap=('[2] += int(sale["quantity"])', "[2] += 1")),
        ),
        draft.require(
            "and the sum of quantity times price,",
            breach("the sum of the prices", _RECORDS, swap=('+= int(sale["quantity"]) * Decimal', "+= Decimal")),
        ),
        draft.require(
            "with exactly two decimals.",
            breach("one decimal where it is enough", _RECORDS, after=f"sed -Ei 's/0(\\r?)$/\\1/' {target}"),
            breach("three decimals", _RECORDS, after=f"sed -Ei '2,$ s/(\\r?)$/0\\1/' {target}"),
        ),
        draft.require(
            "Highest revenue first;",
            breach("lowest revenue first", _ORDER, swap=("(-row[3], row[0])", "(row[3], row[0])")),
            breach(
                "products in the order of their file",
                _ORDER,
                swap=("sorted(rows.values(), key=lambda row: (-row[3], row[0]))", "rows.values()"),
            ),
        ),
        draft.require(
            "products with equal revenue by code.",
            breach(
                "equal revenue by code backwards",
                _ORDER,
                swap=("(-row[3], row[0])", "(-row[3], [-ord(letter) for letter in row[0]])"),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        from decimal import Decimal
        rows = {row["code"]: [row["code"], row["name"], 0, Decimal("0.00")] for row in csv.DictReader(open(@products@))}
        for sale in csv.DictReader(open(@sales@)):
            rows[sale["code"]][2] += int(sale["quantity"])
            rows[sale["code"]][3] += int(sale["quantity"]) * Decimal(sale["price"])
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["code", "name", "quantity", "revenue"])
            writer.writerows(row for row in sorted(rows.values(), key=lambda row: (-row[3], row[0])) if row)
        """,
        products=f"{root}/products.csv",
        sales=f"{root}/sales.csv",
        target=target,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, " if row)", " if row[2])"), str(expected))


def _pivot(draft: Draft) -> None:
    root = draft.project()
    teams = sorted(draft.some(DEPARTMENTS, draft.number(4, 6)))
    year = draft.number(2019, 2025)
    months = [f"{year}-{month:02d}" for month in sorted(draft.some(range(1, 13), draft.number(3, 4)))]
    members = [[str(number), draft.pick(*teams)] for number in draft.some(range(10, 99), draft.number(8, 12))]
    members += [[str(number), team] for number, team in zip(range(100, 110), teams, strict=False)]
    kinds = ("approved", "approved", "approved", "rejected", "pending")
    expenses = [
        [
            f"{draft.pick(*months)}-{draft.number(1, 28):02d}",
            draft.pick(*members)[0],
            _euros(draft.number(100, 50000)),
            ("rejected", "pending")[index] if index < 2 else draft.pick(*kinds),
        ]
        for index in range(draft.number(25, 45))
    ]
    expenses += [[f"{month}-01", members[-1][0], "12.50", "approved"] for month in months]
    draft.file(f"{root}/members.csv", _csv("member,team", draft.shuffled(members)), keep=True)
    draft.file(f"{root}/expenses.csv", _csv("date,member,amount,status", draft.shuffled(expenses)), keep=True)
    team_of = {number: team for number, team in members}  # noqa: C416 - lists of two, not pairs
    cells = {(team, month): 0 for team in teams for month in months}
    for day, number, amount, status in expenses:
        if status == "approved":
            cells[team_of[number], day[:7]] += int(amount.replace(".", ""))
    teams = [team for team in teams if team in team_of.values()]
    expected = [["team", *months, "total"]]
    for team in teams:
        row = [cells[team, month] for month in months]
        expected.append([team, *map(_euros, row), _euros(sum(row))])
    target = f"{root}/{draft.pick('by-team', 'pivot', 'overview')}.csv"
    draft.say(
        draft.pick(
            f"I need a table of the approved expenses in {root}/expenses.csv.",
            f"Make a pivot table of {root}/expenses.csv.",
        ),
        f"{root}/members.csv says which team each member belongs to.",
        draft.require(
            "Count only expenses whose status is approved.",
            breach(
                "expenses that are not rejected",
                _RECORDS,
                swap=('row["status"] == "approved"', 'row["status"] != "rejected"'),
            ),
            breach(
                "rejected expenses too", _RECORDS, swap=('row["status"] == "approved"', 'row["status"] != "pending"')
            ),
        ),
        draft.require(
            f"Write {target} as CSV. Header: team, then every month (YYYY-MM) in which there is at least one approved "
            "expense, in chronological order, then total.",
            breach("another header", _HEADER, after=f"sed -i 1s/team/name/ {target}"),
            breach(
                "months in another form", _HEADER, after=f"sed -Ei '1s/([0-9]{{4}})-([0-9]{{2}})/\\2-\\1/g' {target}"
            ),
            breach(
                "months backwards",
                _HEADER,
                _RECORDS,
                swap=("for _, month in cells})\nwith", "for _, month in cells}, reverse=True)\nwith"),
            ),
            breach("no total", _HEADER, _RECORDS, after=f"sed -Ei 's/,[^,]*$//' {target}"),
            breach(
                "a month without expenses",
                _HEADER,
                _RECORDS,
                swap=("for _, month in cells})", f"for _, month in [*cells, ('', '{year + 1}-01')]}})"),
            ),
        ),
        draft.require(
            "One record for every team in members.csv, in alphabetical order:",
            breach(
                "teams backwards",
                _ORDER,
                swap=("in sorted(set(team_of.values()))", "in sorted(set(team_of.values()))[::-1]"),
            ),
            breach(
                "a team left out",
                _RECORDS,
                swap=("in sorted(set(team_of.values()))", "in sorted(set(team_of.values()))[1:]"),
            ),
            breach(
                "a record for every member",
                _RECORDS,
                swap=("in sorted(set(team_of.values()))", "in sorted(team_of.values())"),
            ),
        ),
        draft.require(
            "the team's sum for each month and over all months,",
            breach("the last expense in place of the sum", _RECORDS, swap=('cells.get(place, Decimal("0.00")) + ', "")),
            breach("the total of the first months alone", _RECORDS, swap=("sum(row)]", "sum(row[:-1])]")),
        ),
        draft.require(
            "always with two decimals (0.00 where there is nothing).",
            breach("one decimal where it is enough", _RECORDS, after=f"sed -Ei '2,$ s/(\\.[0-9])0\\b/\\1/g' {target}"),
            breach("three decimals", _RECORDS, swap=("sum(row)]", 'f"{sum(row):.3f}"]')),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        from decimal import Decimal
        team_of = {row["member"]: row["team"] for row in csv.DictReader(open(@root@ + "/members.csv"))}
        cells = {}
        for row in csv.DictReader(open(@root@ + "/expenses.csv")):
            if row["status"] == "approved":
                place = team_of[row["member"]], row["date"][:7]
                cells[place] = cells.get(place, Decimal("0.00")) + Decimal(row["amount"])
        months = sorted({month for _, month in cells})
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["team", *months, "total"])
            for team in sorted(set(team_of.values())):
                row = [cells.get((team, month), Decimal("0.00")) for month in months]
                writer.writerow([team, *row, sum(row)])
        """,
        root=root,
        target=target,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, 'row["status"] == "approved"', 'row["status"] != "pending"'), str(expected))


FAMILY = Family("csv_join", "Join CSV tables and add them up", (_inner, _outer, _pivot), ("python3",))
