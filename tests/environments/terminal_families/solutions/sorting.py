"""Forbidden changes and other solutions of the family `sorting`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_numeric": {
        "Write the same lines to «target»,": [after("sed -i 's/.* //' «target»"), after("sed -i 's/ /\\t/' «target»")],
        "sorted by the number, «'largest' if descending else 'smallest'» first.": [
            swap("-k 2,2n", "-k 2,2"),
            swap("2,2n«'r' if descending else ''»", "2,2n«'' if descending else 'r'»"),
        ],
        "Lines with equal numbers are ordered by name, A to Z (byte order).": [swap("-k 1,1", "-k 1,1r")],
    },
    "_unique": {
        "Two lines are the same if they differ at most in upper and lower case.": [swap("tolower($0)", "$0")],
        "Write «target» with just one line of each set of equal lines:": [
            after("head -n 2 «target» > ~/t; cat ~/t > «target»")
        ],
        "the «'last' if keep_last else 'first'» one in the file, spelled exactly as it is there.": [
            after("tr A-Z a-z < «target» > ~/t; cat ~/t > «target»"),
            swap("«'tac ' + source + ' | ' if keep_last else '+++'»", "cat «source» | "),
        ],
        "The lines that are kept stay in their original order; do not sort them.": [
            after("LC_ALL=C sort -f -o «target» «target»"),
            after("tac «target» > ~/t; cat ~/t > «target»"),
        ],
    },
    "_frequencies": {
        "A word is a longest possible run of the letters A-Z and a-z;": [
            swap('re.findall("[a-z]+", text)', "text.split()")
        ],
        "upper and lower case are the same.": [swap(".read().lower()", ".read()")],
        "Words shorter than «least» letters are left out.": [swap("len(word) >= «least»", "word")],
        "Write the «top» most frequent ones to «target», one per line:": [swap("[:«top»]", "[:«top + 1»]")],
        "the count, a tab, the word in small letters.": [
            swap("print(count, word", "print(word, count"),
            swap('sep="\\t"', 'sep=" "'),
        ],
        "Most frequent first;": [after("sort -n -o «target» «target»")],
        "words with the same count in alphabetical order.": [after("sort -k 1,1nr -k 2,2r -o «target» «target»")],
    },
}
HONEST = {
    "_numeric": [
        python(r"""
rows = [line.split() for line in open(@source@)]
rows.sort(key=lambda row: («repr(-1 if descending else 1)» * int(row[1]), row[0]))
open(@target@, "w").writelines(" ".join(row) + "\n" for row in rows)
""")
    ],
    "_unique": [
        python(r"""
lines = open(@source@).read().splitlines()[::«repr(-1 if keep_last else 1)»]
kept = {}
for line in lines:
    kept.setdefault(line.lower(), line)
open(@target@, "w").write("".join(line + "\n" for line in list(kept.values())[::«repr(-1 if keep_last else 1)»]))
""")
    ],
    "_frequencies": [
        instead(
            "tr A-Z a-z < «source» | tr -cs a-z '\\n' | awk 'length >= «least»' | LC_ALL=C sort | uniq -c | LC_ALL=C sort -k 1,1nr -k 2,2 | head -n «top» | sed 's/^ *//; s/ /\\t/' > «target»"
        )
    ],
}
