"""Forbidden changes and other solutions of the family `encodings`."""

from tests.environments.terminal_families.ways import after, instead, python, swap

FORBIDDEN = {
    "_latin": {
        "Write a copy of each in UTF-8 (without a byte order mark)": [
            swap('iconv -f ISO-8859-1 -t UTF-8 "$file"', 'cat "$file"'),
            swap("-t UTF-8", "-t UTF-16"),
        ],
        "to the same relative path below «target», which does not exist yet,": [
            after("cd «target» && mkdir flat && find . -type f -exec mv -t flat {} +")
        ],
        "and nothing else there.": [after("mkdir «target»/empty"), after("ln -s «root» «target»/originals")],
        "Apart from the encoding the text must be exactly the same.": [
            swap("-t UTF-8", "-t ASCII//TRANSLIT"),
            swap('"$file" >', '"$file" | tr -d é >'),
        ],
    },
    "_line_ends": {
        "In every file below it, at any depth, replace each CR LF pair by a single LF, in place.": [
            swap('b"\\n"))', 'b""))'),
            swap("os.walk(«repr(root)»)", "[next(os.walk(«repr(root)»))]"),
        ],
        "Files whose name ends in .«stays» need their Windows line ends and must stay byte for byte as they are.": [
            swap("if not name.endswith('.«stays»')", "if name")
        ],
        "A CR that is not followed by LF stays.": [swap('b"\\r\\n", b"\\n"', 'b"\\r", b""')],
        "If a file has no line end at its very end, do not add one.": [
            swap('b"\\n"))', 'b"\\n").rstrip(b"\\n") + b"\\n")')
        ],
    },
    "_mixed": {
        "Convert them all, in place, to UTF-8 without a byte order mark.": [
            swap('"utf-8-sig"', '"utf-8"'),
            swap('text = data.decode("latin-1")', "continue"),
        ],
        "Line ends and text stay the same.": [
            swap('data.decode("latin-1")', 'data.decode("ascii", "ignore")'),
            swap('text.encode("utf-8")', 'text.replace("\\n", "\\r\\n").encode("utf-8")'),
        ],
    },
}
HONEST = {
    "_latin": [
        python("""
import pathlib
for path in pathlib.Path(@root@).rglob("*.txt"):
    copy = pathlib.Path(@target@) / path.relative_to(@root@)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(path.read_bytes().decode("latin-1").encode())
"""),
        after("cp -r «target» ~/copy && rm -r «target» && mv ~/copy «target»"),
    ],
    "_line_ends": [
        instead("find «root» -type f ! -name '*.«stays»' -exec sed -i 's/\\r$//' {} +"),
        after("cp -r . ~/backup-of-«root.rpartition('/')[2]»"),
    ],
    "_mixed": [
        after("for name in «root»/*; do cp $name ~/new && mv ~/new $name; done"),
        instead(r"""
for file in «root»/*; do case $(head -c 2 $file | od -An -tx1) in ' ff fe'|' fe ff') code=UTF-16 ;;
*) if iconv -f UTF-8 -t UTF-8 $file > ~/n 2> ~/e; then code=UTF-8; else code=ISO-8859-1; fi ;; esac
iconv -f $code -t UTF-8 $file | sed '1s/^\xef\xbb\xbf//' > ~/n; cat ~/n > $file; done"""),
    ],
}
