"""Forbidden changes and other solutions of the family `set_operations`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_two": {
        "Write the names that are «spoken» to «target»:": [swap("comm «option» ", "comm «wrong» ")],
        "each name once,": [after("tail -n 1 «target» >> «target»")],
        "one per line,": [after("paste -s -d ' ' «target» > ~/t; cat ~/t > «target»")],
        "sorted in byte order (LC_ALL=C).": [after("LC_ALL=C sort -r -o «target» «target»")],
    },
    "_several": {
        "Ignore empty lines, lines beginning with #, and spaces before and after a name.": [
            swap('name and not name.startswith("#")', "name"),
            swap("line.strip()", 'line.lstrip().rstrip("\\n")'),
        ],
        "A name that is repeated within one list counts once for that list.": [
            swap("{line.strip() for line in open(path)}", "[line.strip() for line in open(path)]")
        ],
        "Write all names that are in «spoken» of the three lists to «target», one per line,": [
            swap("in «repr(right_counts)»", "in «repr(wrong)»")
        ],
        "sorted in byte order,": [after("LC_ALL=C sort -r -o «target» «target»")],
        "each name once.": [after("tail -n 1 «target» >> «target»")],
    },
}
HONEST = {
    "_two": [
        python(r"""
one, other = (set(open(path).read().split()) for path in ["«root»/«b if what == 'second' else a».txt", "«root»/«a if what == 'second' else b».txt"])
open(@target@, "w").write("".join(name + "\n" for name in sorted(one «{'both': '&', 'either': '^'}.get(what, '-')» other)))
""")
    ],
    "_several": [
        instead("""
cd «root»; for list in «' '.join((f'{day}.list' for day in days))»; do
  sed 's/^ *//; s/ *$//; /^#/d; /^$/d' $list | sort -u
done | LC_ALL=C sort | uniq -c | awk '$1 >= «right_counts[0]» && $1 <= «right_counts[-1]» { print $2 }' > «target»""")
    ],
}
