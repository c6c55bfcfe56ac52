"""Forbidden changes and other solutions of the family `duplicates`."""

from tests.environments.terminal_families.ways import after, python, swap

FORBIDDEN = {
    "_report": {
        "Files are duplicates of each other if their contents are identical, whatever their names.": [
            swap("-exec sha256sum {} +", "-printf '%s  %p\\n'"),
            swap("seen[$1]++", 'split($2, p, "/") && seen[$1 p[5]]++'),
        ],
        "Among the files with the same content the one whose absolute path comes first in byte order (LC_ALL=C) is the original; all the others are redundant.": [
            swap("-k 1,1 -k 2", "-k 1,1 -k 2r"),
            swap("seen[$1]++ {", "seen[$1]++ == 1 {"),
        ],
        "Write the absolute paths of all redundant files to «report», one per line,": [
            after("sed -i s#«root»/## «report»"),
            after("paste -d ' ' - - < «report» > ~/pairs; mv ~/pairs «report»"),
        ],
        "sorted in byte order.": [swap("LC_ALL=C sort >", "LC_ALL=C sort -r >")],
    },
    "_delete": {
        "Wherever several regular files below it have identical content, keep only the one whose absolute path comes «'last' if last else 'first'» in byte order (as LC_ALL=C sort would order the paths) and delete the others.": [
            swap("«order»", "«other»"),
            swap("seen[$1]++ {", "seen[$1]++ > 1 {"),
        ],
        "Files whose content exists only once stay.": [swap("'seen[$1]++ { print $2 }'", "'{ print $2 }'")],
        "No remaining file may be moved,": [
            after("find . -mindepth 1 -type d -empty -delete"),
            swap("xargs -r rm", "xargs -r -n 1 ln -sf /etc/hostname"),
        ],
    },
    "_groups": {
        "Write a JSON object to «report» with the keys wasted_bytes and groups and no others.": [
            swap('"groups": groups}', '"groups": groups, "version": 1}'),
            swap('{"wasted_bytes": wasted, "groups": groups}', "[wasted, groups]"),
        ],
        "wasted_bytes is the number of bytes that would be saved by keeping just one file of each set of files with identical content.": [
            swap('* (len(group["files"]) - 1)', '* len(group["files"])'),
            swap('"wasted_bytes": wasted', '"wasted_bytes": str(wasted)'),
        ],
        "groups is an array with one object for each such set of two or more files,": [swap("if len(paths) > 1", "")],
        "with the keys size (size in bytes of one of the files)": [
            swap('{"size": len(data),', '{"size": len(data) * len(paths),')
        ],
        "and files (array of the paths, relative to «root», sorted in byte order).": [
            swap("os.path.relpath(path, «repr(root)»)", "path"),
            swap('"files": sorted(paths)', '"files": sorted(paths)[::-1]'),
        ],
        "Order the groups by the first path of each in byte order.": [
            swap('group["files"][0])', 'group["files"][0], reverse=True)')
        ],
    },
}
HONEST = {
    "_report": [
        python(r"""
import os
seen, extra = set(), []
paths = [os.path.join(place, name) for place, _, names in os.walk(@root@) for name in names]
for path in sorted(paths):
    data = open(path, "rb").read()
    if data in seen:
        extra.append(path)
    seen.add(data)
open(@report@, "w").write("".join(path + "\n" for path in extra))
"""),
        swap("sha256sum", "md5sum"),
    ],
    "_delete": [swap("xargs -r rm", "xargs -r mv --backup=numbered -t ~"), swap("sha256sum", "sha1sum")],
    "_groups": [
        swap(", indent=2", ""),
        swap('{"wasted_bytes": wasted, "groups": groups}', '{"groups": groups, "wasted_bytes": wasted}'),
    ],
}
