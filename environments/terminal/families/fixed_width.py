"""Family: records with columns of a fixed width."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS

__all__ = ["FAMILY"]

_LINES, _LINE_ORDER = "* has the right lines", "lines of * are in order"
_HEADER, _RECORDS, _ORDER = "* has the right header", "* has the right records", "records of * are in order"


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
    source = draft.file(f"{root}/{draft.pick('mainframe', 'export', 'ledger')}.dat", "".join(lines), keep=True)
    layout: list[str] = []
    place = 1
    for name, width in fields:
        layout.append(f"{name}: {place}-{place + width - 1}")
        place += width
    target = f"{root}/{draft.pick('records', 'table', 'converted')}.csv"
    expected = [["code", "name", "city", "amount"]]
    expected += [[record[name] for name in expected[0]] for record in records]
    draft.say(
        draft.pick(f"Convert {source} to CSV.", f"An old system produced {source}, with fields of fixed width."),
        "The fields are at these positions of a line (the first character is 1, both ends included):",
        draft.require(
            "\n" + "\n".join(layout),
            breach("codes without their last character", _RECORDS, after=f"sed -Ei '2,$ s/.,/,/' {target}"),
        ),
    )
    filling = "zeros" if zeros else "spaces"
    draft.say(
        draft.require(
            f"Text is padded with spaces on the right, the amount with {filling} on the left; the padding is not part "
            "of the values.",
            breach(
                "spaces after texts",
                _RECORDS,
                swap=('record["name"], record["city"],', 'record["name"] + " ", record["city"],'),
            ),
            breach(
                f"{filling} before amounts",
                _RECORDS,
                swap=('int(record["amount"])', f'record["amount"].rjust(12, {"0 "[not zeros]!r})'),
            ),
        ),
        draft.require(
            f"Write {target} as CSV with the header code,name,city,amount (in this order)",
            breach("another header", _HEADER, after=f"sed -i 1s/code/id/ {target}"),
            breach(
                "columns in another order",
                _RECORDS,
                swap=('record["name"], record["city"],', 'record["city"], record["name"],'),
            ),
            breach("semicolons", _HEADER, _RECORDS, swap=("csv.writer(target)", 'csv.writer(target, delimiter=";")')),
        ),
        draft.require(
            "and the records in the order of the file.",
            breach("records backwards", _ORDER, swap=(f"in open({source!r})", f"in [*open({source!r})][::-1]")),
            breach("a record left out", _RECORDS, after=f"sed -i '$ d' {target}"),
            breach("a record twice", _RECORDS, after=f"tail -n 1 {target} >> {target}"),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.rows(target, expected)
    oracle = python(
        """
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
        """,
        source=source,
        target=target,
        fields=fields,
    )
    draft.honest_csv("csv.writer(target")
    draft.solve(oracle, swap(oracle, "[start:start + width]", "[start + 1:start + width + 1]"), str(expected))


def _write(draft: Draft) -> None:
    root = draft.project()
    fields = _fields(draft)
    fields[2] = ("city", draft.number(4, 7))
    records = [_record(draft) for _ in range(draft.number(8, 14))]
    records[0]["city"] = "Helsinki"
    source = draft.file(
        f"{root}/{draft.pick('payments', 'orders', 'transfers')}.csv",
        "code,name,city,amount\n" + "".join(f"{','.join(record.values())}\n" for record in records),
        keep=True,
    )
    target = source.replace(".csv", ".fix")
    lines = [
        "".join(
            record[name].rjust(width, "0") if name == "amount" else record[name][:width].ljust(width)
            for name, width in fields
        )
        for record in records
    ]
    total = sum(int(record["amount"]) for record in records)
    size = sum(width for _, width in fields)
    lines.append(f"TOTAL{total:0{size - 5}d}")
    expected = "".join(f"{line}\n" for line in lines)
    layout = "\n".join(f"- {name}: {width} characters" for name, width in fields)
    draft.say(
        draft.pick(f"The bank wants {source} as a fixed-width file.", f"Turn {source} into a fixed-width file."),
        "It is a CSV file with a header and no quotes.",
        draft.require(
            "Each record becomes a line whose fields follow each other without separators:",
            breach("a space between fields", _LINES, swap=('line = ""', 'line = " "')),
            breach("a record left out", _LINES, after=f"sed -i 1d {target}"),
            breach("a record twice", _LINES, after=f"sed -i 1p {target}"),
            breach(
                "records backwards",
                _LINE_ORDER,
                swap=(f"in csv.DictReader(open({source!r}))", f"in [*csv.DictReader(open({source!r}))][::-1]"),
            ),
        ),
        draft.require(
            f"\n{layout}",
            breach(
                "a field one character wider",
                _LINES,
                swap=("value[:width].ljust(width)", "value[:width].ljust(width + 1)"),
            ),
            breach("fields in another order", _LINES, swap=(f"in {fields!r}", f"in {fields[::-1]!r}")),
        ),
    )
    draft.say(
        draft.require(
            "Text is padded with spaces on the right,",
            breach("spaces on the left", _LINES, swap=("value[:width].ljust", "value[:width].rjust")),
            breach("other padding", _LINES, swap=("ljust(width)", "ljust(width, '.')")),
        ),
        draft.require(
            "and cut off on the right if it is too long;",
            breach("not cut off", _LINES, swap=("value[:width].ljust", "value.ljust")),
            breach("cut off on the left", _LINES, swap=("value[:width]", "value[-width:]")),
        ),
        draft.require(
            "the amount is padded with zeros on the left.",
            breach("amounts with spaces", _LINES, swap=("value.zfill(width)", "value.rjust(width)")),
        ),
        draft.require(
            "The header is left out.",
            breach("the header", _LINES, after=f"sed -i 1icode {target}"),
        ),
        draft.require(
            f"After the records comes one more line of the same length ({size} characters): TOTAL, followed at once by "
            "the sum of all amounts, padded with zeros on the left to fill the line.",
            breach("no such line", _LINES, after=f"sed -i '$ d' {target}"),
            breach(
                "the line first",
                _LINE_ORDER,
                after=f"{{ tail -n 1 {target}; head -n -1 {target}; }} > ~/x && mv ~/x {target}",
            ),
            breach("a longer line", _LINES, swap=(f"{size} - 5", f"{size}")),
            breach("the number of records", _LINES, swap=('int(record["amount"])', "1")),
        ),
        f"Write this to {target}.",
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
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
        """,
        source=source,
        target=target,
        fields=fields,
        size=size,
    )
    draft.pieces(target)
    draft.solve(oracle, swap(oracle, "value[:width].ljust", "value.ljust"), expected)


def _blocks(draft: Draft) -> None:
    """Write a task about records of several lines."""
    root = draft.project()
    items: list[dict[str, str]] = []
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
        items.append(item)
        pairs = draft.shuffled(list(item.items()))
        text += "".join(f"{key}:{draft.pick('', ' ', '   ')}{value}\n" for key, value in pairs) + "\n" * draft.number(
            1, 2
        )
    source = draft.file(f"{root}/{draft.pick('stock', 'records', 'cards')}.txt", text.rstrip() + "\n", keep=True)
    target = source.replace(".txt", ".tsv")
    rows = [(i["item"], i.get("place", "-"), i["count"]) for i in items if i["count"] != "0"]
    rows.sort(key=lambda row: (row[0], row[1], int(row[2])))
    expected = "".join("\t".join(row) + "\n" for row in rows)
    draft.say(
        draft.pick(f"Turn the records in {source} into a table.", f"{source} has records of several lines each."),
        "Records are separated by one or more empty lines. A line is KEY: VALUE (the spaces after the colon vary, and "
        "the order of the keys too); every record has an item and a count, some have a place and other keys.",
        draft.require(
            f"Write {target} with one line per record: item, place and count, separated by tabs.",
            breach("spaces in place of tabs", _LINES, swap=('sep="\\t"', 'sep=" "')),
            breach("the count first", _LINES, swap=("print(*row,", "print(*row[::-1],")),
            breach("a line twice", _LINES, after=f"sed -i 1p {target}"),
            breach("a header", _LINES, after=f"sed -i 1iitem {target}"),
        ),
        draft.require(
            "A missing place is written as a single hyphen.",
            breach("nothing for a missing place", _LINES, swap=('record.get("place", "-")', 'record.get("place", "")')),
            breach(
                "records without a place left out",
                _LINES,
                swap=('if record["count"] != "0"', 'if record["count"] != "0" and "place" in record'),
            ),
        ),
        draft.require(
            "Records whose count is 0 are left out.",
            breach("records whose count is 0", _LINES, swap=('if record["count"] != "0"', 'if record["count"]')),
        ),
        draft.require(
            "Sort by item,",
            breach(
                "items backwards",
                _LINE_ORDER,
                swap=(
                    "in sorted(rows)",
                    "in sorted(sorted(rows, key=lambda row: row[1:]), key=lambda row: row[0], reverse=True)",
                ),
            ),
        ),
        draft.require(
            "then by place (both in byte order),",
            breach(
                "places backwards",
                _LINE_ORDER,
                swap=(
                    "in sorted(rows)",
                    "in sorted(sorted(rows, key=lambda row: (row[1], -row[2]), reverse=True), key=lambda row: row[0])",
                ),
            ),
        ),
        draft.require(
            "then by count as a number.",
            breach(
                "counts as texts",
                _LINE_ORDER,
                swap=("in sorted(rows)", "in sorted(rows, key=lambda row: (*row[:2], str(row[2])))"),
            ),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import re
        rows = []
        for block in re.split("\\n\\n+", open(@source@).read().strip()):
            record = dict(re.split(": *", line, maxsplit=1) for line in block.splitlines())
            if record["count"] != "0":
                rows.append((record["item"], record.get("place", "-"), int(record["count"])))
        with open(@target@, "w") as target:
            for row in sorted(rows):
                print(*row, sep="\\t", file=target)
        """,
        source=source,
        target=target,
    )
    draft.pieces(target)
    draft.solve(oracle, swap(oracle, 'if record["count"] != "0"', 'if record["count"]'), expected)


FAMILY = Family("fixed_width", "Fixed-width and many-line records", (_read, _blocks, _write), ("python3",))
