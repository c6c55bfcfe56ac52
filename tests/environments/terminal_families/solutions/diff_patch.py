"""Forbidden changes and other solutions of the family `diff_patch`."""

from tests.environments.terminal_families.ways import after, instead, swap

_APPLIED = [instead("«near»"), after("patch -s -R -p1 < «file»"), after("patch -s -f -p1 < «file» > ~/again; true")]

FORBIDDEN = {
    "_apply": {
        "Apply the patch «file» to «root».": _APPLIED,
        "A colleague sent me «file»; please apply it to «root».": _APPLIED,
        "Leave no files such as .orig or .rej below «root».": [swap("patch -s", "patch -s -b")],
    },
    "_trees": {
        "Write «report» with one": [after("sed -i 's/ /\\t/' «report»"), after("sed -i 's# #&«new»/#' «report»")],
        "The letter is A for a file that only": [swap("{*old, *new}", "old"), after("sed -i s/^A/N/ «report»")],
        "D for one that only «old» has,": [swap("{*old, *new}", "new"), after("sed -i y/AD/DA/ «report»")],
        "and M for one that both have with": [swap("old[path] != new[path]", "len(old[path]) != len(new[path])")],
        "Files that are equal are not mentioned.": [swap("elif old[path] != new[path]", "else")],
        "Sort the lines by path in byte order (LC_ALL=C).": [
            after("LC_ALL=C sort -o «report» «report»"),
            swap("in sorted({*old, *new})", "in sorted({*old, *new})[::-1]"),
        ],
    },
    "_settings": {
        "Both have lines of the form key=value, where spaces around = mean nothing; empty lines and lines": [
            swap("key.strip(): value", "key: value"),
            swap('if line and not line.startswith("#")', 'if "=" in line'),
        ],
        "Write «report» with one line per": [after("sed -i 1i---old «report»"), after("sed -i '$ d' «report»")],
        "sorted by key in byte order, in these forms:": [
            after("LC_ALL=C sort -s -k 1,1 -o «report» «report»"),
            swap("in sorted({*old, *new})", "in sorted({*old, *new})[::-1]"),
        ],
        "\n- key=value\n+ key=value\n~ key=old -> new": [
            after("sed -i s/^~/!/ «report»"),
            swap("{old[key]} -> {new[key]}", "{new[key]} -> {old[key]}"),
        ],
        "\nfor a key that only the old file has,": [swap("{*old, *new}", "new")],
        "for one that only the new file has,": [swap("{*old, *new}", "old")],
        "and for one whose value is different.": [swap("elif old[key] != new[key]", "elif False")],
        "There is exactly one space after": [after("sed -i 's/ //' «report»"), after("sed -i 's/=/ = /' «report»")],
        "Settings that are the same in both are not mentioned.": [swap("elif old[key] != new[key]", "else")],
    },
}
HONEST = {
    "_apply": [
        instead("patch -s -d «root» -p1 -i «file»"),
        instead(
            """python3 - <<'END'
import re
from pathlib import Path
for block in re.split(r"(?m)^(?=--- a/)", Path("«file»").read_text())[1:]:
    path = Path("«root»", block.split("\\n")[0][6:])
    old, new, place = path.read_text().splitlines(True), [], 0
    for hunk in re.split(r"(?m)^(?=@@ )", block)[1:]:
        start, lines = int(re.match(r"@@ -(\\d+)", hunk)[1]) - 1, hunk.splitlines(True)[1:]
        new += old[place:start] + [line[1:] for line in lines if line[0] in " +"]
        place = start + sum(line[0] in " -" for line in lines)
    path.write_text("".join(new + old[place:]))
END
"""
        ),
    ],
    "_trees": [
        instead(
            """cd «root» || exit 1
{
    (cd «new» && find . -type f -printf '%P\\n') | while read -r path; do [ -e "«old»/$path" ] || echo "A $path"; done
    (cd «old» && find . -type f -printf '%P\\n') | while read -r path; do
        [ -e "«new»/$path" ] || echo "D $path"
        [ ! -e "«new»/$path" ] || cmp -s "«old»/$path" "«new»/$path" || echo "M $path"
    done
} | LC_ALL=C sort -k 2 > «report»
"""
        )
    ],
    "_settings": [
        instead(
            """cd «root» && for name in old new; do
  sed -E '/^(#|$)/d; s/ *= */ /' $name.properties | LC_ALL=C sort -k 1,1 > ~/$name
done
LC_ALL=C join -a 1 -a 2 -e - -o 0,1.2,2.2 ~/old ~/new | while read -r key before now; do
  if [ "$now" = - ]; then echo "- $key=$before"; elif [ "$before" = - ]; then echo "+ $key=$now"
  elif [ "$before" != "$now" ]; then echo "~ $key=$before -> $now"; fi
done > «report»
"""
        )
    ],
}
