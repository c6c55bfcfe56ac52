"""Family: records with columns of a fixed width."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS


def _fields(draft: Draft) -> list[tuple[str, int]]:
    return [
        ("code", draft.number(5, 8)), ("name", draft.number(20, 24)), ("city", draft.number(10, 14)),
        ("amount", draft.number(7, 10)),
    ]  # fmt: skip


def _record(draft: Draft) -> dict[str, str]:
    return {
        "code": f"{draft.pick('A', 'B', 'X')}{draft.number(1, 9999)}",
        "name": f"{draft.pick(*FIRST_NAMES)} {draft.pick(*LAST_NAMES)}",
        "city": draft.pick(*CITIES),
        "amount": str(draft.number(1, 99999)),
    }


def _read(draft: Draft) -> None:
    root = draft.project()
    fields = draft.shuffled(_fields(draft))
    records = [_record(draft) for _ in range(draft.number(8, 15))]
    zeros = draft.chance(0.5)
    lines: list[str] = []
    for record in records:
        line = ""
        for name, width in fields:
            filled = record[name].rjust(width, "0" if zeros else " ") if name == "amount" else record[name].ljust(width)
            line += filled
        lines.append(f"{line}\n")
    source = draft.file(f"{root}/{draft.pick('mainframe', 'export', 'ledger')}.dat", "".join(lines))
    layout: list[str] = []
    place = 1
    for name, width in fields:
        layout.append(f"{name}: {place}-{place + width - 1}")
        place += width
    target = f"{root}/{draft.pick('records', 'table', 'converted')}.csv"
    draft.say(
        draft.pick(f"Convert {source} to CSV.", f"An old system produced {source}, with fields of fixed width."),
        "The fields are at these positions of a line (the first character is 1, both ends included):",
        "! \n" + "\n".join(layout),
    )
    filling = "zeros" if zeros else "spaces"
    draft.say(
        f"! Text is padded with spaces on the right, the amount with {filling} on the left; the padding is not part "
        "of the values.",
        f"! Write {target} as CSV with the header code,name,city,amount (in this order)",
        "! and the records in the order of the file, the amount without leading zeros.",
    )
    draft.form(target, "csv")
    oracle = python("""
        import csv
        with open(@target@, "w") as target:
            writer = csv.writer(target)
            writer.writerow(["code", "name", "city", "amount"])
            for line in open(@source@):
                record, start = {}, 0
                for name, width in @fields@:
                    record[name] = line[start:start + width].strip()
                    start += width
                writer.writerow([record["code"], record["name"], record["city"], int(record["amount"])])
        """)
    draft.solve(oracle, swap(oracle, "[start:start + width]", "[start + 1:start + width + 1]"))


def _write(draft: Draft) -> None:
    root = draft.project()
    fields = _fields(draft)
    fields[2] = ("city", draft.number(4, 7))
    records = [_record(draft) for _ in range(draft.number(8, 14))]
    records[0]["city"] = "Helsinki"
    source = draft.file(
        f"{root}/{draft.pick('payments', 'orders', 'transfers')}.csv",
        "code,name,city,amount\n" + "".join(f"{','.join(record.values())}\n" for record in records),
    )
    target = source.replace(".csv", ".fix")
    size = sum(width for _, width in fields)
    layout = "\n".join(f"- {name}: {width} characters" for name, width in fields)
    draft.say(
        draft.pick(f"The bank wants {source} as a fixed-width file.", f"Turn {source} into a fixed-width file."),
        "It is a CSV file with a header and no quotes.",
        "! Each record becomes a line whose fields follow each other without separators:",
        f"! \n{layout}",
    )
    draft.say(
        "! Text is padded with spaces on the right,",
        "! and cut off on the right if it is too long;",
        "! the amount is padded with zeros on the left.",
        "! The header is left out.",
        f"! After the records comes one more line of the same length ({size} characters): TOTAL, followed at once by "
        "the sum of all amounts, padded with zeros on the left to fill the line.",
        f"Write this to {target}.",
        draft.every_line(),
    )
    oracle = python("""
        import csv
        total = 0
        with open(@target@, "w") as target:
            for record in csv.DictReader(open(@source@)):
                line = ""
                for name, width in @fields@:
                    value = record[name]
                    line += value.zfill(width) if name == "amount" else value[:width].ljust(width)
                total += int(record["amount"])
                print(line, file=target)
            print("TOTAL" + str(total).zfill(@size@ - 5), file=target)
        """)
    draft.solve(oracle, swap(oracle, "value[:width].ljust", "value.ljust"))


def _blocks(draft: Draft) -> None:
    """Write a task about records of several lines."""
    root = draft.project()
    text = ""
    for number in range(draft.number(7, 12)):
        item = {"item": draft.pick(*PRODUCTS), "place": draft.pick(*CITIES), "count": str(draft.number(0, 90))}
        if number in (1, 4):
            del item["place"]
        # One record that does not count; three of one item, from two places, two with counts that sort wrongly as text.
        if number == 2:
            item["count"] = "0"
        if number in (3, 5, 6):
            item["item"], item["place"] = PRODUCTS[0], CITIES[number == 3]
            item["count"] = {3: "7", 5: "10", 6: "9"}[number]
        if number == 4:
            item["item"], item["count"] = PRODUCTS[1], "8"
        if number == 5:
            item["note"] = f"from: {draft.pick(*CITIES)}"
        pairs = draft.shuffled(list(item.items()))
        text += "".join(f"{key}:{draft.pick('', ' ', '   ')}{value}\n" for key, value in pairs) + "\n" * draft.number(
            1, 2
        )
    source = draft.file(f"{root}/{draft.pick('stock', 'records', 'cards')}.txt", text.rstrip() + "\n")
    target = source.replace(".txt", ".tsv")
    draft.say(
        draft.pick(f"Turn the records in {source} into a table.", f"{source} has records of several lines each."),
        "Records are separated by one or more empty lines. A line is KEY: VALUE (the spaces after the colon vary, and "
        "the order of the keys too); every record has an item and a count, some have a place and other keys.",
        f"! Write {target} with one line per record: item, place and count, separated by tabs.",
        "! A missing place is written as a single hyphen.",
        "! Records whose count is 0 are left out.",
        "! Sort by item,",
        "! then by place (both in byte order),",
        "! then by count as a number.",
        draft.every_line(),
    )
    oracle = python("""
        import re
        rows = []
        for block in re.split("\\n\\n+", open(@source@).read().strip()):
            record = dict(re.split(": *", line, maxsplit=1) for line in block.splitlines())
            if record["count"] != "0":
                rows.append((record["item"], record.get("place", "-"), int(record["count"])))
        with open(@target@, "w") as target:
            for row in sorted(rows):
                print(*row, sep="\\t", file=target)
        """)
    draft.solve(oracle, swap(oracle, 'if record["count"] != "0"', 'if record["count"]'))


FAMILY = Family("fixed_width", "Fixed-width and many-line records", (_read, _blocks, _write), ("python3",))
