"""Forbidden changes and other solutions of the family `csv_join`."""

from tests.environments.terminal_families.ways import after, swap

FORBIDDEN = {
    "_inner": {
        "Write «target» with the header id,name,city,value": [
            after("sed -i 1s/value/amount/ «target»"),
            swap('"city", "value"])', '"city", "value", "more"])'),
        ],
        "and a record for each record of «left».csv,": [
            swap("people.get(row[«repr(key)»])", "people.pop(row[«repr(key)»], None)"),
            swap('row["value"]]', 'row["value"] + "0"]'),
        ],
        "sorted by id as a number, smallest first.": [swap('int(row["id"])', 'row["id"]')],
        "Records whose «key» does not occur in «right».csv are left out.": [
            swap(
                "if person := people.get(row[«repr(key)»])",
                'if person := people.get(row[«repr(key)»], {"name": "", "city": ""})',
            )
        ],
    },
    "_outer": {
        "Write «target», CSV with the header code,name,quantity,revenue:": [
            after("sed -i 1s/revenue/total/ «target»"),
            swap("csv.writer(target)", 'csv.writer(target, delimiter=";")'),
        ],
        "a record for every product, also for those without any sales (0 and 0.00),": [
            swap(" if row)", " if row[2])"),
            swap('row["name"], 0', 'row["name"].split(",")[0], 0'),
        ],
        "with the sum of the quantities": [swap('[2] += int(sale["quantity"])', "[2] += 1")],
        "and the sum of quantity times price,": [swap('+= int(sale["quantity"]) * Decimal', "+= Decimal")],
        "with exactly two decimals.": [
            after("sed -Ei 's/0(\\r?)$/\\1/' «target»"),
            after("sed -Ei '2,$ s/(\\r?)$/0\\1/' «target»"),
        ],
        "Highest revenue first;": [
            swap("(-row[3], row[0])", "(row[3], row[0])"),
            swap("sorted(rows.values(), key=lambda row: (-row[3], row[0]))", "rows.values()"),
        ],
        "products with equal revenue by code.": [
            swap("(-row[3], row[0])", "(-row[3], [-ord(letter) for letter in row[0]])")
        ],
    },
    "_pivot": {
        "Count only expenses whose status is approved.": [
            swap('row["status"] == "approved"', 'row["status"] != "rejected"')
        ],
        "Write «target» as CSV. Header: team, then every month (YYYY-MM) in which there is at least one approved expense, in chronological order, then total.": [
            swap("for _, month in cells})\nwith", "for _, month in cells}, reverse=True)\nwith"),
            swap("for _, month in cells})", "for _, month in [*cells, ('', '«year + 1»-01')]})"),
        ],
        "One record for every team in members.csv, in alphabetical order:": [
            swap("in sorted(set(team_of.values()))", "in sorted(set(team_of.values()))[::-1]")
        ],
        "the team's sum for each month and over all months,": [
            swap('cells.get(place, Decimal("0.00")) + ', ""),
            swap("sum(row)]", "sum(row[:-1])]"),
        ],
        "always with two decimals (0.00 where there is nothing).": [
            after("sed -Ei '2,$ s/(\\.[0-9])0\\b/\\1/g' «target»"),
            swap("sum(row)]", 'f"{sum(row):.3f}"]'),
        ],
    },
}
HONEST = {
    "_inner": [
        swap("csv.writer(target)", "csv.writer(target, lineterminator=chr(10))"),
        swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"),
    ],
    "_outer": [
        swap("csv.writer(target)", "csv.writer(target, lineterminator=chr(10))"),
        swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"),
    ],
    "_pivot": [
        swap("csv.writer(target)", "csv.writer(target, lineterminator=chr(10))"),
        swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"),
    ],
}
