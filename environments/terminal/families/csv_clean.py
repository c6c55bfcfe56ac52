"""Family: clean-up of CSV files."""

import csv
import io

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, WORDS


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
    delimiter, spoken = draft.pick((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars"))
    rows[0] = ["S9999", "globe, boxed", "one, two\nthree", "5", "12.50"]
    rows[1][3], rows[2][0], rows[2][1], rows[2][3] = "0", "S0999", f"lamp{delimiter}large", "7"
    draft.file(source, _written([header, *rows]))
    draft.say(
        draft.pick(f"Shorten {source} for me.", f"I need a part of {source} in another format."),
        "It is a comma-separated CSV file with a header; fields with commas, quotes or line breaks are quoted in the "
        "usual way (a quote inside is doubled).",
        f"! Write {target} with the columns name, price and sku, in this order, header included,",
        f"! separated by {spoken} instead of commas.",
        "! Records whose stock is 0 are left out;",
        "! the others keep their order.",
        f"! Quote a field only if it contains a double quote or one of the {spoken}, by the same rules; do not quote "
        "any other field.",
        draft.every_line(),
    )
    oracle = python("""
        import csv
        with open(@source@, newline="") as source, open(@target@, "w", newline="") as target:
            writer = csv.writer(target, delimiter=@delimiter@, lineterminator="\\n")
            writer.writerow(["name", "price", "sku"])
            for row in csv.DictReader(source):
                if row["stock"] != "0":
                    writer.writerow([row["name"], row["price"], row["sku"]])
        """)
    draft.solve(oracle, swap(oracle, 'if row["stock"] != "0"', 'if row["stock"]'))


def _normalise(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('signups', 'contacts', 'leads')}.csv"
    target = source.replace(".csv", "-clean.csv")
    rows: list[list[str]] = []
    for index in range(draft.number(10, 16)):
        first, last, city = draft.pick(*FIRST_NAMES), draft.pick(*LAST_NAMES), draft.pick(*CITIES)
        email = f"{first}.{last}{index}@{draft.pick(*WORDS)}.example".lower()
        kind = index if index < 4 else draft.number(0, 6)
        shown = {0: email.upper(), 1: f" {email} "}.get(kind, email)
        name = f"  {first}   {last} " if kind == 1 else f"{first} {last}"
        if kind == 2:
            shown = draft.pick("", "  ") if index > 2 else email.replace("@", " at ")
        if kind == 3:
            city = draft.pick("", "   ")
        rows.append([name, shown, f" {city}" if kind == 0 else draft.pick(city, f" {city}", f"{city} ")])
    draft.file(source, _written([["name", "email", "city"], *rows]))
    draft.say(
        draft.pick(f"Clean up {source}.", f"The data in {source} was typed in by hand and needs cleaning."),
        "It is a CSV file with the columns name, email and city.",
        "! Remove spaces at the beginning and end of every field",
        "! and make several spaces in a row inside a name one.",
        "! Turn e-mail addresses into small letters.",
        "! Leave out records whose email has no @.",
        "! Where the city is empty, write unknown.",
        f"! Write {target} as CSV with the columns email, name, city in this order, with a header,",
        "! the records in the original order.",
    )
    draft.form(target, "csv")
    oracle = python("""
        import csv
        with open(@source@) as source, open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["email", "name", "city"])
            for row in csv.DictReader(source):
                email = row["email"].strip().lower()
                if "@" in email:
                    writer.writerow([email, " ".join(row["name"].split()), row["city"].strip() or "unknown"])
        """)
    draft.solve(oracle, swap(oracle, '" ".join(row["name"].split())', 'row["name"].strip()'))


def _merge(draft: Draft) -> None:
    root = draft.project()
    files = [f"{name}.csv" for name in sorted(draft.some(("april", "branch", "central", "north", "south", "web"), 3))]
    headers = draft.shuffled([["id", "name", "amount"], ["amount", "id", "name"], ["name", "amount", "id"]])
    # One number of each length, so that the numeric order differs from the order as text.
    ids = [
        str(number)
        for number in (draft.number(2, 9), draft.number(10, 19), *draft.some(range(100, 400), draft.number(10, 16)))
    ]
    for place, (file, header) in enumerate(zip(files, headers, strict=True)):
        chosen = [*ids[:3], *draft.some(ids[3:], draft.number(4, 7))] if place else ids[:7]
        rows: list[list[str]] = []
        for number in draft.shuffled(chosen):
            name = f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}"
            record = {"id": number, "name": name, "amount": str(draft.number(1, 9999))}
            rows.append([record[column] for column in header])
        draft.file(f"{root}/{file}", _written([header, *rows]))
    target = f"{root}/{draft.pick('all', 'merged', 'combined')}.csv"
    draft.say(
        draft.pick(f"Merge the CSV files in {root}.", f"{root} has several CSV files that should be one."),
        f"These are {', '.join(files)}. Each has the columns id, name and amount, but not in the same order; go by "
        "their headers.",
        "! Ids occur repeatedly: if the same id is in more than one file, the record of the file named last in this "
        "list wins. Within a file ids are unique.",
        f"! Write {target} as CSV with the header id,name,amount",
        "! and one record per id,",
        "! sorted by id as a number, smallest first.",
    )
    draft.form(target, "csv")
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
    )
    draft.solve(oracle, swap(oracle, 'records[int(row["id"])] = row', 'records.setdefault(int(row["id"]), row)'))


FAMILY = Family("csv_clean", "Reformat, normalise and merge CSV files", (_columns, _normalise, _merge), ("python3",))
