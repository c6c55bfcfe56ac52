"""Forbidden changes and other solutions of the family `disk_usage`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_per_directory": {
        "For each directory directly inside it, add up the sizes in bytes of all regular files in it at any depth (the files' own sizes, not disk blocks).": [
            swap("%s $folder", "1 $folder"),
            swap("-type f ", ""),
        ],
        "Write the result to «report», one line per directory: the total, one space, the name of the directory (without path).": [
            after("sed -Ei 's/(.*) (.*)/\\2 \\1/' «report»"),
            after("sed -i 's/ /\\t/' «report»"),
        ],
        "Largest total first;": [swap("-k 1,1nr", "-k 1,1n")],
        "equal totals in alphabetical order of the names.": [swap("-k 2,2", "-k 2,2r")],
    },
    "_largest": {
        "Write the «count» of them to «report», one per line:": [
            swap("head -n «count»", "head -n «count + 1»"),
            swap("head -n", "tail -n"),
        ],
        "size in bytes, a tab, and the path relative to «root» (without a leading ./),": [
            swap("%P", "%p"),
            swap("%s\\t%P", "%s %P"),
        ],
        "largest first.": [after("tac «report» > ~/x && mv ~/x «report»")],
    },
    "_per_extension": {
        "Write «report»: a JSON object that maps each extension (what follows the last dot of the name, in small letters, without the dot, so that a.TXT and b.txt count together)": [
            swap('.rpartition(".")[2].lower()', '.rpartition(".")[2]'),
            swap('name.rpartition(".")[2].lower()', '"." + name.rpartition(".")[2].lower()'),
        ],
        'to an object {"files": NUMBER OF FILES, "bytes": SUM OF THEIR SIZES}.': [
            swap('entry["files"] += 1', 'entry["files"] += 2'),
            swap(
                "os.path.getsize(os.path.join(place, name))", "-(-os.path.getsize(os.path.join(place, name)) // 1024)"
            ),
        ],
        "Files without a dot in their name do not count,": [swap('if "." in name', "if name")],
        "nor does anything inside a directory named «hidden», at any depth.": [
            swap("if name != «repr(hidden)»", "if name"),
            swap(
                "folders[:] = [name for name in folders if name",
                "names = [name for name in names if os.path.basename(place)",
            ),
        ],
    },
}
HONEST = {
    "_per_directory": [
        python("""
import os
total = {name: 0 for name in os.listdir(@root@)}
for name in total:
    for place, _, names in os.walk(os.path.join(@root@, name)):
        total[name] += sum(os.path.getsize(os.path.join(place, file)) for file in names)
with open(@report@, "w") as report:
    for name in sorted(total, key=lambda name: (-total[name], name)):
        print(total[name], name, file=report)
""")
    ],
    "_largest": [
        instead(r"""
cd «root» || exit 1
find . -type f -print0 | xargs -0 ls -l | awk '{ print $5 "\t" substr($9, 3) }' | sort -nr > ~/all
head -n «count» ~/all > «report»
"""),
        after("du -ab . > ~/all.txt"),
    ],
    "_per_extension": [swap('"w"))', '"w"), indent=4)'), swap('"w"))', '"w"), sort_keys=True)')],
}
