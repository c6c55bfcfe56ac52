"""Family: CSV tables, joined and added up."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, LAST_NAMES, PRODUCTS


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
    draft.file(f"{root}/{left}.csv", _csv(f"id,{key},value", draft.shuffled(entries)))
    draft.file(f"{root}/{right}.csv", _csv(f"{key},name,city", people))
    target = f"{root}/{left}-{draft.pick('joined', 'named', 'complete')}.csv"
    draft.say(
        draft.pick(
            f"Join {root}/{left}.csv with {root}/{right}.csv.", f"{root} has the CSV files {left}.csv and {right}.csv."
        ),
        f"They belong together by {key}.",
        f"! Write {target} with the header id,name,city,value",
        f"! and a record for each record of {left}.csv,",
        "! sorted by id as a number, smallest first.",
        f"! Records whose {key} does not occur in {right}.csv are left out.",
    )
    draft.form(target, "csv")
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
        left=f"{root}/{left}.csv",
        right=f"{root}/{right}.csv",
    )
    draft.solve(oracle, swap(oracle, 'int(row["id"])', 'row["id"]'))


def _outer(draft: Draft) -> None:
    root = draft.project()
    codes = [f"{name[:3].upper()}{draft.number(10, 99)}" for name in draft.some(PRODUCTS, draft.number(6, 9))]
    codes = list(dict.fromkeys(codes))
    products = [[code, f"{draft.pick(*PRODUCTS)}, {draft.pick('small', 'large', 'blue')}"] for code in codes]
    sales = [
        [draft.pick(*codes[2:]), str(draft.number(1, 9)), _euros(draft.number(99, 9999))]
        for _ in range(draft.number(15, 25))
    ]
    listed = draft.file(f"{root}/products.csv", "code,name\n" + "".join(f'{c},"{n}"\n' for c, n in products))
    draft.file(f"{root}/sales.csv", _csv("code,quantity,price", sales))
    target = f"{root}/{draft.pick('revenue', 'totals', 'bestsellers')}.csv"
    draft.say(
        draft.pick(f"What did each product in {root}/products.csv bring in?", f"Add up {root}/sales.csv by product."),
        f"{listed} has the columns code and name (names may contain commas and are quoted then), "
        f"{root}/sales.csv has code, quantity and price (of one piece, with two decimals).",
        f"! Write {target}, CSV with the header code,name,quantity,revenue:",
        "! a record for every product, also for those without any sales (0 and 0.00),",
        "! with the sum of the quantities",
        "! and the sum of quantity times price,",
        "! with exactly two decimals.",
        "! Highest revenue first;",
        "! products with equal revenue by code.",
    )
    draft.form(target, "csv")
    oracle = python("""
        import csv
        from decimal import Decimal
        rows = {row["code"]: [row["code"], row["name"], 0, Decimal("0.00")] for row in csv.DictReader(open(@listed@))}
        for sale in csv.DictReader(open(@root/sales.csv@)):
            rows[sale["code"]][2] += int(sale["quantity"])
            rows[sale["code"]][3] += int(sale["quantity"]) * Decimal(sale["price"])
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["code", "name", "quantity", "revenue"])
            writer.writerows(row for row in sorted(rows.values(), key=lambda row: (-row[3], row[0])) if row)
        """)
    draft.solve(oracle, swap(oracle, " if row)", " if row[2])"))


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
    draft.file(f"{root}/members.csv", _csv("member,team", draft.shuffled(members)))
    draft.file(f"{root}/expenses.csv", _csv("date,member,amount,status", draft.shuffled(expenses)))
    target = f"{root}/{draft.pick('by-team', 'pivot', 'overview')}.csv"
    draft.say(
        draft.pick(
            f"I need a table of the approved expenses in {root}/expenses.csv.",
            f"Make a pivot table of {root}/expenses.csv.",
        ),
        f"{root}/members.csv says which team each member belongs to.",
        "! Count only expenses whose status is approved.",
        f"! Write {target} as CSV. Header: team, then every month (YYYY-MM) in which there is at least one approved "
        "expense, in chronological order, then total.",
        "! One record for every team in members.csv, in alphabetical order:",
        "! the team's sum for each month and over all months,",
        "! always with two decimals (0.00 where there is nothing).",
    )
    draft.form(target, "csv")
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, 'row["status"] == "approved"', 'row["status"] != "pending"'))


FAMILY = Family("csv_join", "Join CSV tables and add them up", (_inner, _outer, _pivot), ("python3",))
