"""Forbidden changes and other solutions of the family `fixed_width`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_read": {
        "«'\\n' + '\\n'.join(layout)»": [after("sed -Ei '2,$ s/.,/,/' «target»")],
        "Text is padded with spaces on the right, the amount with «filling» on the left; the padding is not part of the values.": [
            swap('record["name"], record["city"],', 'record["name"] + " ", record["city"],'),
            swap('int(record["amount"])', "record[\"amount\"].rjust(12, «repr('0 '[not zeros])»)"),
        ],
        "Write «target» as CSV with the header code,name,city,amount (in this order)": [
            swap('record["name"], record["city"],', 'record["city"], record["name"],'),
            swap("csv.writer(target)", 'csv.writer(target, delimiter=";")'),
        ],
        "and the records in the order of the file, the amount without leading zeros.": [
            swap("in open(«repr(source)»)", "in [*open(«repr(source)»)][::-1]")
        ],
    },
    "_write": {
        "Each record becomes a line whose fields follow each other without separators:": [
            swap('line = ""', 'line = " "'),
            swap("in csv.DictReader(open(«repr(source)»))", "in [*csv.DictReader(open(«repr(source)»))][::-1]"),
        ],
        "\n«layout»": [
            swap("value[:width].ljust(width)", "value[:width].ljust(width + 1)"),
            swap("in «repr(fields)»", "in «repr(fields[::-1])»"),
        ],
        "Text is padded with spaces on the right,": [
            swap("value[:width].ljust", "value[:width].rjust"),
            swap("ljust(width)", "ljust(width, '.')"),
        ],
        "and cut off on the right if it is too long;": [
            swap("value[:width].ljust", "value.ljust"),
            swap("value[:width]", "value[-width:]"),
        ],
        "the amount is padded with zeros on the left.": [swap("value.zfill(width)", "value.rjust(width)")],
        "The header is left out.": [after("sed -i 1icode «target»")],
        "After the records comes one more line of the same length («size» characters): TOTAL, followed at once by the sum of all amounts, padded with zeros on the left to fill the line.": [
            swap("«size» - 5", "«size»"),
            swap('int(record["amount"])', "1"),
        ],
    },
    "_blocks": {
        "Write «target» with one line per record: item, place and count, separated by tabs.": [
            swap('sep="\\t"', 'sep=" "'),
            swap("print(*row,", "print(*row[::-1],"),
        ],
        "A missing place is written as a single hyphen.": [
            swap('record.get("place", "-")', 'record.get("place", "")'),
            swap('if record["count"] != "0"', 'if record["count"] != "0" and "place" in record'),
        ],
        "Records whose count is 0 are left out.": [swap('if record["count"] != "0"', 'if record["count"]')],
        "Sort by item,": [
            swap(
                "in sorted(rows)",
                "in sorted(sorted(rows, key=lambda row: row[1:]), key=lambda row: row[0], reverse=True)",
            )
        ],
        "then by place (both in byte order),": [
            swap(
                "in sorted(rows)",
                "in sorted(sorted(rows, key=lambda row: (row[1], -row[2]), reverse=True), key=lambda row: row[0])",
            )
        ],
        "then by count as a number.": [
            swap("in sorted(rows)", "in sorted(rows, key=lambda row: (*row[:2], str(row[2])))")
        ],
    },
}
HONEST = {
    "_read": [
        swap("csv.writer(target)", "csv.writer(target, lineterminator=chr(10))"),
        swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"),
    ],
    "_write": [
        instead(
            "awk -F , -v form='«''.join(f'%-{w}.{w}s' if n != 'amount' else f'%0{w}d' for n, w in fields)»' 'NR > 1 { printf form, $1, $2, $3, $4; print \"\"; sum += $4 }\n"
            'END { printf "TOTAL%0«size - 5»d\\n", sum }\' «source» > «target»'
        )
    ],
    "_blocks": [
        instead(
            'awk -v RS= -F \'\\n\' \'{ place = "-"; for (i = 1; i <= NF; i++) { value = $i; sub(/^[a-z]+: */, "", value)\n'
            "if ($i ~ /^item:/) item = value; if ($i ~ /^place:/) place = value; if ($i ~ /^count:/) count = value }\n"
            'if (count != "0") print item "\\t" place "\\t" count }\' «source» | LC_ALL=C sort -t $\'\\t\' -k 1,1 -k 2,2 -k 3,3n > «target»'
        )
    ],
}
