"""Forbidden changes and other solutions of the family `find_files`."""

from tests.environments.terminal_families.ways import after, instead, swap

FORBIDDEN = {
    "_output": {
        "Write their absolute paths to «output», one per line,": [after("sed -i s#^«root»/## «output»")],
        "sorted in plain byte order (as LC_ALL=C sort does).": [
            after("LC_ALL=C sort -r -o «output» «output»"),
            after("sort -f -o «output» «output»"),
        ],
    },
    "_by_size": {
        "«question»": [swap(" -type f", " -maxdepth 1 -type f"), swap("+«limit»c", "-«limit»c")],
        "A file of exactly «limit» bytes does not count.": [swap("+«limit»c", "+«limit - 1»c")],
        "Symbolic links do not count either.": [swap("find ", "find -L ")],
    },
    "_by_content": {
        "Look at every file below it whose name ends in .conf, at any depth.": [
            swap(" --include='*.conf'", ""),
            swap("'*.conf'", "'*.conf*'"),
        ],
        "A file sets it if one of its lines begins with «setting»= (at the very start of the line, so commented-out lines and other settings whose name merely ends the same do not count).": [
            swap("'^«setting»=", "'«setting»="),
            swap("grep -rl", "grep -rL"),
        ],
    },
    "_by_mode": {
        "Wanted are all regular files (not links), at any depth,": [
            swap("find ", "find -L "),
            swap(" -type f", " -maxdepth 1 -type f"),
        ],
        "that are executable by their owner": [swap(" -perm -u+x", "")],
        "and whose first line is exactly «shell»": [
            swap("«test» &&", ""),
            swap("«test»", "head -n 1 \"$file\" | grep -q '^«shell»'"),
        ],
    },
}
HONEST = {
    "_output": [
        after("sort «output» > ~/found; LC_ALL=C sort -u ~/found > «output»"),
        after("cp «output» ~/new && mv ~/new «output»"),
    ],
    "_by_size": [
        instead(r"""
find «root» -type f -printf '%s %p\n' | awk '$1 > «limit» { print $2 }' > ~/found
LC_ALL=C sort ~/found > «output»""")
    ],
    "_by_content": [
        instead("""
find «root» -name '*.conf' -exec awk '/^«setting»=/ { print FILENAME; exit }' {} ';' > ~/found
LC_ALL=C sort ~/found > «output»""")
    ],
    "_by_mode": [
        instead("""
find «root» -type f -perm -100 -exec awk 'FNR == 1 && $0 == "«shell»" { print FILENAME }' {} + > ~/found
LC_ALL=C sort ~/found > «output»""")
    ],
}
