"""Forbidden changes and other solutions of the family `versions`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_sort": {
        "Compare versions": [swap("sort -V", "LC_ALL=C sort"), after("sort -s -t . -k 2,2n -o «target» «target»")],
        "and write the lines to «target»,": [
            after("sed -i 's/^/version /' «target»"),
            after("sed -i 's/[.][0-9]*$//' «target»"),
        ],
        "«'newest' if newest_first else 'oldest'» first.": [after("tac «target» > ~/t; cat ~/t > «target»")],
    },
    "_latest": {
        "Versions with a suffix after a hyphen (such as -rc.1) are": [swap('if "-" in version', "if not version")],
        "Versions compare number by number.": [swap("(0,)), numbers)", "(0,)), numbers, key=str)")],
        "Write the latest stable version of each package to «target»": [
            swap("max(latest.get(name, (0,)), numbers)", "min(latest.get(name, (99,)), numbers)"),
            after("sed -i '$d' «target»"),
        ],
        "in the same form,": [after("sed -i 's/ /==/' «target»"), after("sed -i 's/[.][0-9]*$//' «target»")],
        "one line per package,": [
            swap("latest[name] = max(latest.get(name, (0,)), numbers)", 'latest[f"{name} {line}"] = numbers')
        ],
        "sorted by package name.": [after("sort -r -o «target» «target»")],
    },
    "_updates": {
        "A safe update is the highest available version": [
            swap(
                "best[name] = max(best[name], version)",
                "best[name] = min((v for v in (best[name], version) if v > installed[name]), default=best[name])",
            )
        ],
        "that has the same MAJOR as the installed one": [swap("if version[0] == installed[name][0]", "if version")],
        "and is newer than it;": [swap("best[name] > installed[name]", "best[name] >= installed[name]")],
        "versions compare number by number.": [
            swap("max(best[name], version)", "max(best[name], version, key=lambda v: '.'.join(map(str, v)))")
        ],
        "Write one line for each package that has a safe update to «target»,": [after("sed -i '$d' «target»")],
        "sorted by name:": [after("sort -r -o «target» «target»")],
        "\n    name INSTALLED -> UPDATE": [swap("{old} -> {new}", "{old} => {new}")],
    },
}
HONEST = {
    "_sort": [
        instead(
            """python3 - <<'END'
import re
lines = open("«source»").readlines()
lines.sort(key=lambda line: [int(part) for part in re.findall("[0-9]+", line)], reverse=«newest_first»)
open("«target»", "w").writelines(lines)
END
"""
        )
    ],
    "_latest": [
        instead("grep -v -- '[0-9]-' «source» | sort -k 1,1 -k 2,2Vr | awk '!seen[$1]++' | LC_ALL=C sort > «target»")
    ],
    "_updates": [
        instead(
            """cd «root» && sed 's/==/ /' installed.txt | LC_ALL=C sort | while read -r name old; do
  new=$({ sed -n "s/^$name==//p" available.txt | grep "^${old%%.*}[.]"; echo "$old"; } | sort -V | tail -n 1)
  [ "$new" = "$old" ] || echo "$name $old -> $new"
done > «target»
"""
        )
    ],
}
