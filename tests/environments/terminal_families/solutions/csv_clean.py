"""Forbidden changes and other solutions of the family `csv_clean`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_columns": {
        "Write «target» with the columns name, price and sku, in this order, header included,": [
            swap('[row["name"], row["price"],', '[row["price"], row["name"],'),
            swap('row["sku"]]', 'row["sku"], row["stock"]]'),
        ],
        "separated by «spoken» instead of commas.": [swap("delimiter=«repr(delimiter)»", "delimiter=','")],
        "Records whose stock is 0 are left out;": [
            swap('if row["stock"] != "0"', 'if row["stock"]'),
            swap('!= "0"', 'not in ("0", "7")'),
        ],
        "the others keep their order.": [
            swap("in csv.DictReader(source)", "in sorted(csv.DictReader(source), key=lambda row: row['sku'])")
        ],
        "Quote a field only if it contains a double quote or one of the «spoken», by the same rules; do not quote": [
            swap("lineterminator=", "quoting=csv.QUOTE_ALL, lineterminator=")
        ],
    },
    "_normalise": {
        "Remove spaces at the beginning and end of every field": [
            swap('" ".join(row["name"].split())', '__import__("re").sub(" +", " ", row["name"])'),
            swap(".strip().lower()", ".lower()"),
        ],
        "and make several spaces in a row inside a name one.": [
            swap('" ".join(row["name"].split())', 'row["name"].strip()')
        ],
        "Turn e-mail addresses into small letters.": [swap(".strip().lower()", ".strip()")],
        "Leave out records whose email has no @.": [swap('if "@" in email', "if email")],
        "Where the city is empty, write unknown.": [swap(' or "unknown"', "")],
        "Write «target» as CSV with the columns email, name, city in this order, with a header,": [
            swap('writer.writerow(["email", "name", "city"])', "pass"),
            swap(
                'writer.writerow([email, " ".join(row["name"].split()),',
                'writer.writerow([" ".join(row["name"].split()), email,',
            ),
        ],
        "the records in the original": [swap("in csv.DictReader(source)", "in list(csv.DictReader(source))[::-1]")],
    },
    "_merge": {
        "Ids occur repeatedly: if the same id is in more than one file, the record of the file named last in this": [
            swap('records[int(row["id"])] = row', 'records.setdefault(int(row["id"]), row)')
        ],
        "Write «target» as CSV with the header id,name,amount": [
            swap('["id", "name", "amount"]', '["id", "amount", "name"]'),
            swap("writer.writeheader()", "pass"),
        ],
        "and one record per id,": [
            swap("in sorted(records)", "in sorted(records)[1:]"),
            after("tail -n 1 «target» >> «target»"),
        ],
        "sorted by id as a number, smallest first.": [swap("in sorted(records)", "in sorted(records, key=str)")],
    },
}
HONEST = {
    "_columns": [
        swap(
            'writer.writerow([row["name"], row["price"], row["sku"]])',
            "words = [row['name'], row['price'], row['sku']]; print(*('\"' + word.replace('\"', '\"\"') + '\"' "
            "if '\"' in word or «repr(delimiter)» in word else word for word in words), sep=«repr(delimiter)», file=target)",
        )
    ],
    "_normalise": [
        instead(
            """{ echo email,name,city; tail -n +2 «source» | sed -E 's/ +/ /g; s/(^|,) /\\1/g; s/ (,|$)/\\1/g' |
awk -F, -v OFS=, '$2 ~ /@/ { print tolower($2), $1, $3 == "" ? "unknown" : $3 }'; } > «target»
"""
        ),
        swap("csv.writer(target)", "csv.writer(target, quoting=csv.QUOTE_ALL)"),
    ],
    "_merge": [
        instead(
            """cd «root» && { echo id,name,amount; awk -F, 'FNR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
{ last[$at["id"]] = $at["id"] "," $at["name"] "," $at["amount"] } END { for (id in last) print last[id] }' «' '.join(files)» |
sort -t, -k 1n; } > «target»
"""
        ),
        swap('"amount"])', '"amount"], quoting=csv.QUOTE_NONNUMERIC)'),
    ],
}
