"""Family: clean-up of CSV files."""

from __future__ import annotations

import csv
import io

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, WORDS

__all__ = ["FAMILY"]


def _written(rows: list[list[str]], delimiter: str = ",") -> str:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _columns(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('export', 'inventory', 'catalogue')}.csv"
    target = source.replace(".csv", "-short.csv")
    header = ["sku", "name", "note", "stock", "price"]
    rows = [
        [
            f"S{draft.number(1000, 9999)}",
            draft.pick(*PRODUCTS) + draft.pick("", ", boxed", ' 5" wide'),
            draft.pick(f"see {draft.pick(*WORDS)}, too", draft.prose(3), "two\nlines"),
            str(draft.number(0, 40)),
            f"{draft.number(1, 200)}.{draft.number(10, 99)}",
        ]
        for _ in range(draft.number(8, 14))
    ]
    rows[0][1], rows[1][3], rows[2][3], rows[3][2] = "globe, boxed", "0", "7", "one, two\nthree"
    delimiter, spoken = draft.pick((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars"))
    draft.file(source, _written([header, *rows]), keep=True)
    backwards = [row[0] for row in rows if row[3] != "0"] == sorted(row[0] for row in rows if row[3] != "0")
    right, sign = "* has the right lines", delimiter.replace("\t", "\\t")
    kept = [["name", "price", "sku"], *([row[1], row[4], row[0]] for row in rows if row[3] != "0")]
    draft.say(
        draft.pick(f"Shorten {source} for me.", f"I need a part of {source} in another format."),
        "It is a comma-separated CSV file with a header; fields with commas, quotes or line breaks are quoted in the "
        "usual way (a quote inside is doubled).",
        draft.require(
            f"Write {target} with the columns name, price and sku, in this order, header included,",
            breach(
                "columns in another order", right, swap=('[row["name"], row["price"],', '[row["price"], row["name"],')
            ),
            breach("one more column", right, swap=('row["sku"]]', 'row["sku"], row["stock"]]')),
            breach("no header", right, swap=('writer.writerow(["name", "price", "sku"])', "pass")),
        ),
        draft.require(
            f"separated by {spoken} instead of commas.",
            breach("commas", right, swap=(f"delimiter={delimiter!r}", "delimiter=','")),
            breach("a space after each of them", right, after=f"sed -i '1s/{sign}/& /g' {target}"),
        ),
        draft.require(
            "Records whose stock is 0 are left out;",
            breach("records without stock", right, swap=('if row["stock"] != "0"', 'if row["stock"]')),
            breach("records with a little stock left out", right, swap=('!= "0"', 'not in ("0", "7")')),
        ),
        draft.require(
            "the others keep their order.",
            breach(
                "records sorted",
                "lines of * are in order",
                swap=(
                    "in csv.DictReader(source)",
                    f"in sorted(csv.DictReader(source), key=lambda row: row['sku'], reverse={backwards})",
                ),
            ),
        ),
        draft.require(
            f"Quote a field only if it contains a double quote or one of the {spoken}, by the same rules; do not quote "
            "any other field.",
            breach("every field quoted", right, swap=("lineterminator=", "quoting=csv.QUOTE_ALL, lineterminator=")),
            breach("fields with a comma quoted", right, after=f"sed -i 's/globe, boxed/\"&\"/' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, _written(kept, delimiter))
    oracle = python(
        """
        import csv
        with open(@source@, newline="") as source, open(@target@, "w", newline="") as target:
            writer = csv.writer(target, delimiter=@delimiter@, lineterminator="\\n")
            writer.writerow(["name", "price", "sku"])
            for row in csv.DictReader(source):
                if row["stock"] != "0":
                    writer.writerow([row["name"], row["price"], row["sku"]])
        """,
        source=source,
        target=target,
        delimiter=delimiter,
    )
    draft.honest(
        "written without the module",
        swap=(
            'writer.writerow([row["name"], row["price"], row["sku"]])',
            "words = [row['name'], row['price'], row['sku']]; print(*('\"' + word.replace('\"', '\"\"') + '\"' "
            f"if '\"' in word or {delimiter!r} in word else word for word in words), sep={delimiter!r}, file=target)",
        ),
    )
    draft.pieces(target)
    draft.solve(oracle, swap(oracle, 'if row["stock"] != "0"', 'if row["stock"]'), str(kept))


def _normalise(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('signups', 'contacts', 'leads')}.csv"
    target = source.replace(".csv", "-clean.csv")
    rows: list[list[str]] = []
    expected = [["email", "name", "city"]]
    for index in range(draft.number(10, 16)):
        first, last, city = draft.pick(*FIRST_NAMES), draft.pick(*LAST_NAMES), draft.pick(*CITIES)
        email = f"{first}.{last}{index}@{draft.pick(*WORDS)}.example".lower()
        kind = index if index < 4 else draft.number(0, 6)
        shown = email.upper() if kind == 0 else email
        name = f"  {first}   {last} " if kind == 1 else f"{first} {last}"
        if kind == 2:
            shown = draft.pick("", "  ", email.replace("@", " at "))
        if kind == 3:
            city = draft.pick("", "   ")
        rows.append([name, shown, draft.pick(city, f" {city}", f"{city} ")])
        if kind != 2:
            expected.append([email, f"{first} {last}", city.strip() or "unknown"])
    draft.file(source, _written([["name", "email", "city"], *rows]), keep=True)
    right = "* has the right records"
    draft.say(
        draft.pick(f"Clean up {source}.", f"The data in {source} was typed in by hand and needs cleaning."),
        "It is a CSV file with the columns name, email and city.",
        draft.require(
            "Remove spaces at the beginning and end of every field",
            breach(
                "spaces around names",
                right,
                swap=('" ".join(row["name"].split())', '__import__("re").sub(" +", " ", row["name"])'),
            ),
            breach(
                "spaces around cities",
                right,
                swap=('row["city"].strip() or "unknown"', 'row["city"] if row["city"].strip() else "unknown"'),
            ),
        ),
        draft.require(
            "and make several spaces in a row inside a name one.",
            breach(
                "several spaces inside a name", right, swap=('" ".join(row["name"].split())', 'row["name"].strip()')
            ),
            breach(
                "no space inside a name", right, swap=('" ".join(row["name"].split())', '"".join(row["name"].split())')
            ),
        ),
        draft.require(
            "Turn e-mail addresses into small letters.",
            breach("capital letters in addresses", right, swap=(".strip().lower()", ".strip()")),
        ),
        draft.require(
            "Leave out records whose email has no @.",
            breach("records without an @", right, swap=('if "@" in email', "if True")),
            breach(
                "one more record left out",
                right,
                swap=('if "@" in email', f'if "@" in email and not email.startswith({expected[1][0][:-8]!r})'),
            ),
        ),
        draft.require(
            "Where the city is empty, write unknown.",
            breach("an empty city", right, swap=(' or "unknown"', "")),
            breach("another word", right, swap=('or "unknown"', 'or "Unknown"')),
        ),
        draft.require(
            f"Write {target} as CSV with the columns email, name, city in this order, with a header,",
            breach(
                "another header",
                "* has the right header",
                swap=('writer.writerow(["email", "name", "city"])', 'writer.writerow(["mail", "name", "city"])'),
            ),
            breach(
                "columns in another order",
                right,
                swap=(
                    'writer.writerow([email, " ".join(row["name"].split()),',
                    'writer.writerow([" ".join(row["name"].split()), email,',
                ),
            ),
            breach(
                "semicolons",
                "* has the right header",
                right,
                swap=("csv.writer(target)", 'csv.writer(target, delimiter=";")'),
            ),
        ),
        draft.require(
            "the records in the original order.",
            breach(
                "records backwards",
                "records of * are in order",
                swap=("in csv.DictReader(source)", "in list(csv.DictReader(source))[::-1]"),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        with open(@source@) as source, open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["email", "name", "city"])
            for row in csv.DictReader(source):
                email = row["email"].strip().lower()
                if "@" in email:
                    writer.writerow([email, " ".join(row["name"].split()), row["city"].strip() or "unknown"])
        """,
        source=source,
        target=target,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, '" ".join(row["name"].split())', 'row["name"].strip()'), str(expected))


def _merge(draft: Draft) -> None:
    root = draft.project()
    files = [f"{name}.csv" for name in sorted(draft.some(("april", "branch", "central", "north", "south", "web"), 3))]
    headers = draft.shuffled([["id", "name", "amount"], ["amount", "id", "name"], ["name", "amount", "id"]])
    final: dict[str, list[str]] = {}
    # One number of each length, so that the numeric order differs from the order as text.
    ids = [
        str(number)
        for number in (draft.number(2, 9), draft.number(10, 19), *draft.some(range(100, 400), draft.number(10, 16)))
    ]
    right = "* has the right records"
    for place, (file, header) in enumerate(zip(files, headers, strict=True)):
        chosen = [*ids[:3], *draft.some(ids[3:], draft.number(4, 7))] if place else ids[:7]
        rows: list[list[str]] = []
        for number in draft.shuffled(chosen):
            record = {
                "id": number,
                "name": f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}",
                "amount": str(draft.number(1, 9999)),
            }
            rows.append([record[column] for column in header])
            final[number] = [record["id"], record["name"], record["amount"]]
        draft.file(f"{root}/{file}", _written([header, *rows]), keep=True)
    order = sorted(final, key=int)
    expected = [["id", "name", "amount"], *(final[number] for number in order)]
    target = f"{root}/{draft.pick('all', 'merged', 'combined')}.csv"
    draft.say(
        draft.pick(f"Merge the CSV files in {root}.", f"{root} has several CSV files that should be one."),
        f"These are {', '.join(files)}. Each has the columns id, name and amount, but not in the same order; go by "
        "their headers.",
        draft.require(
            "Ids occur repeatedly: if the same id is in more than one file, the record of the file named last in this "
            "list wins. Within a file ids are unique.",
            breach(
                "the first record wins",
                right,
                swap=('records[int(row["id"])] = row', 'records.setdefault(int(row["id"]), row)'),
            ),
            breach(
                "the fields of two records mixed",
                right,
                swap=(
                    'records[int(row["id"])] = row',
                    'records[int(row["id"])] = {**row, "name": records.get(int(row["id"]), row)["name"]}',
                ),
            ),
        ),
        draft.require(
            f"Write {target} as CSV with the header id,name,amount",
            breach(
                "columns in another order",
                "* has the right header",
                right,
                swap=('["id", "name", "amount"]', '["id", "amount", "name"]'),
            ),
            breach("another header", "* has the right header", after=f"sed -i 1s/amount/sum/ {target}"),
        ),
        draft.require(
            "and one record per id,",
            breach("a record left out", right, swap=("in sorted(records)", "in sorted(records)[1:]")),
            breach("a record twice", right, after=f"tail -n 1 {target} >> {target}"),
            breach("a header in the midst", right, after=f"head -n 1 {target} >> {target}"),
        ),
        draft.require(
            "sorted by id as a number, smallest first.",
            breach(
                "sorted as text",
                "records of * are in order",
                swap=("in sorted(records)", "in sorted(records, key=str)"),
            ),
            breach(
                "largest first", "records of * are in order", swap=("in sorted(records)", "in sorted(records)[::-1]")
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
        import csv
        records = {}
        for path in @files@:
            for row in csv.DictReader(open(path)):
                records[int(row["id"])] = row
        with open(@target@, "w") as target:
            writer = csv.DictWriter(target, ["id", "name", "amount"])
            writer.writeheader()
            writer.writerows(records[number] for number in sorted(records))
        """,
        files=[f"{root}/{file}" for file in files],
        target=target,
    )
    draft.honest_csv('csv.DictWriter(target, ["id", "name", "amount"]')
    draft.solve(
        oracle, swap(oracle, 'records[int(row["id"])] = row', 'records.setdefault(int(row["id"]), row)'), str(expected)
    )


FAMILY = Family("csv_clean", "Reformat, normalise and merge CSV files", (_columns, _normalise, _merge), ("python3",))
