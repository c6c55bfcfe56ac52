"""Forbidden changes and other solutions of the family `checksums`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_make": {
        "Write «target» with the «kind.upper()» checksum of every regular file below «root» at any depth,": [
            swap("«kind»sum >", "«'md5' if kind != 'md5' else 'sha1'»sum >"),
            swap("find . -type f", "find . -maxdepth 1 -type f"),
        ],
        "the list itself apart,": [after("«kind»sum «name» > ~/own && cat ~/own >> «name»")],
        "in the format that «kind»sum prints: the checksum in small hexadecimal digits, two spaces, and the path relative to «root» without a leading ./": [
            swap("-printf '%P\\n'", "-print"),
            swap("«kind»sum >", "«kind»sum -b >"),
        ],
        "\nSort the lines by path in byte order (LC_ALL=C).": [
            swap("LC_ALL=C sort", "LC_ALL=C sort -r"),
            after("sort -o «name» «name»"),
        ],
    },
    "_verify": {
        "Write «report» with one line for each problem: a word, one space, and the relative path.": [
            after("sed -i 's/ /  /' «report»"),
            after("sed -i 's# #&«root»/#' «report»"),
        ],
        "The word is CHANGED for a file whose checksum is not the one in the manifest,": [
            after("sed -i /^CHANGED/d «report»"),
            after("sed -i s/^CHANGED/FAILED/ «report»"),
        ],
        "MISSING for one that the manifest lists but that is not there,": [
            swap("{*listed, *there}", "there"),
            after("sed -i s/^MISSING/CHANGED/ «report»"),
        ],
        "and UNKNOWN for a file that is below «root» at any depth but not in the manifest": [
            swap("{*listed, *there}", "listed"),
            after("sed -i s/^UNKNOWN/CHANGED/ «report»"),
        ],
        "(the manifest itself does not count).": [swap('del there["MANIFEST.sha256"]', "")],
        "Sort the lines by path in byte order (LC_ALL=C).": [
            after("LC_ALL=C sort -o «report» «report»"),
            swap("sorted({*listed, *there})", "sorted({*listed, *there}, reverse=True)"),
        ],
        "Files that are all right are not mentioned.": [swap("elif there[path] != listed[path]:", "else:")],
    },
    "_restore": {
        "Repair «root»/live: replace each damaged file by a copy from whichever backup has the right version, so that all checksums match.": [
            swap("in backup-*", "in backup-1")
        ]
    },
}
HONEST = {
    "_make": [
        python("""
import hashlib, os
os.chdir(@root@)
found = [os.path.relpath(os.path.join(place, name)) for place, _, names in os.walk(".") for name in names]
with open(@name@, "w") as file:
    for path in sorted(found):
        print(hashlib.new(@kind@, open(path, "rb").read()).hexdigest(), "", path, file=file)
""")
    ],
    "_verify": [
        instead(r"""
cd «root» || exit 1
{
    sha256sum -c MANIFEST.sha256 2> /dev/null | sed -En 's/^(.*): FAILED$/\1/p' | while read -r path; do
        echo "CHANGED $path"
    done
    cut -c 67- MANIFEST.sha256 | while read -r path; do [ -e "$path" ] || echo "MISSING $path"; done
    find . -type f ! -path ./MANIFEST.sha256 -printf '%P\n' | while read -r path; do
        cut -c 67- MANIFEST.sha256 | grep -qxF "$path" || echo "UNKNOWN $path"
    done
} | LC_ALL=C sort -k 2 > «report»
""")
    ],
    "_restore": [
        python(r"""
import glob, hashlib, os, shutil
os.chdir(@root@)
for line in open("checksums.txt"):
    sum, path = line.rstrip("\n").split("  ", 1)
    for copy in ["live/" + path, *glob.glob("backup-*/" + path)]:
        if hashlib.sha256(open(copy, "rb").read()).hexdigest() == sum:
            shutil.copyfile(copy, "/tmp/copy")
    shutil.copyfile("/tmp/copy", "live/" + path)
"""),
        swap('cp "$place', 'cp -p "$place'),
        swap('cp "$place', 'cp --remove-destination "$place'),
    ],
}
