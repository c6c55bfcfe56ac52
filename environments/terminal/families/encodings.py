"""Family: character encodings and line ends."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, WORDS

__all__ = ["FAMILY"]

_CONTENT, _ALONE = "files of * have the right content", "* holds nothing else"

#: Words with letters that Latin-1 and UTF-8 encode differently.
_ACCENTED = (
    "Größe",
    "café",
    "niño",
    "Ærø",
    "smörgås",
    "château",
    "façade",
    "übung",
    "señor",
    "piñata",
    "Zürich",
    "Malmö",
    "crème brûlée",
    "São Paulo",
    "Ångström",
    "jalapeño",
    "naïve",
    "rôle",
    "Köln",
    "déjà vu",
)


def _lines(draft: Draft, count: int) -> str:
    return "".join(f"{draft.pick(*_ACCENTED)} {draft.prose(4)} {draft.pick(*_ACCENTED)}\n" for _ in range(count))


def _latin(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('texts', 'legacy', 'export')}"
    target = f"{root}-utf8"
    expected: dict[str, bytes] = {}
    for name in draft.some(WORDS, draft.number(3, 6)):
        text = _lines(draft, draft.number(2, 6))
        path = f"{draft.pick('', 'old/', 'old/er/')}{name}.txt"
        draft.file(f"{root}/{path}", text.encode("latin-1"), keep=True)
        expected[path] = text.encode()
    one = min(expected)
    draft.root = root
    draft.say(
        draft.pick(
            f"The text files below {root} are encoded in ISO-8859-1 (Latin-1).",
            f"An old system left us text files in ISO-8859-1 (Latin-1) in {root} and its subdirectories.",
        ),
        draft.require(
            "Write a copy of each in UTF-8 (without a byte order mark)",
            breach(
                "copies that are not converted", _CONTENT, swap=('iconv -f ISO-8859-1 -t UTF-8 "$file"', 'cat "$file"')
            ),
            breach("a byte order mark", _CONTENT, after=f"sed -i '1s/^/\\xef\\xbb\\xbf/' {target}/{one}"),
            breach("another encoding", _CONTENT, swap=("-t UTF-8", "-t UTF-16")),
            breach(
                "converted twice",
                _CONTENT,
                after=f'cd {target} && iconv -f ISO-8859-1 -t UTF-8 "{one}" > ~/x && cp ~/x "{one}"',
            ),
            breach("a copy missing", _CONTENT, after=f"rm {target}/{one}"),
        ),
        draft.require(
            f"to the same relative path below {target}, which does not exist yet,",
            breach(
                "all in one directory",
                _CONTENT,
                _ALONE,
                after=f"cd {target} && mkdir flat && find . -type f -exec mv -t flat {{}} +",
            ),
            breach("another name", _CONTENT, _ALONE, after=f"mv {target}/{one} {target}/{one}.utf8"),
        ),
        draft.require(
            "and nothing else there.",
            breach("one more file", _ALONE, after=f"echo x > {target}/log.txt"),
            breach("one more directory, empty", _ALONE, after=f"mkdir {target}/empty"),
            breach("one more link", _ALONE, after=f"ln -s {root} {target}/originals"),
        ),
        draft.require(
            "Apart from the encoding the text must be exactly the same.",
            breach("letters without their accents", _CONTENT, swap=("-t UTF-8", "-t ASCII//TRANSLIT")),
            breach("other line ends", _CONTENT, after=f"sed -i 's/$/\\r/' {target}/{one}"),
            breach("no newline at the end", _CONTENT, after=f"truncate -s -1 {target}/{one}"),
        ),
        draft.untouched("The originals must stay unchanged."),
    )
    draft.initial.absent(target)
    draft.final.files(target, expected)
    oracle = (
        f"cd {root} || exit 1\nfind . -type f | while read -r file; do\n"
        f'  mkdir -p "$(dirname "{target}/$file")"\n  iconv -f ISO-8859-1 -t UTF-8 "$file" > "{target}/$file"\ndone\n'
    )
    near = swap(oracle, 'iconv -f ISO-8859-1 -t UTF-8 "$file"', 'cat "$file"')
    draft.honest(
        "converted by Python",
        instead=python(
            """
            import pathlib
            for path in pathlib.Path(@root@).rglob("*.txt"):
                copy = pathlib.Path(@target@) / path.relative_to(@root@)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes().decode("latin-1").encode())
            """,
            root=root,
            target=target,
        ),
    )
    draft.honest("copied, then converted", after=f"cp -r {target} ~/copy && rm -r {target} && mv ~/copy {target}")
    draft.solve(oracle, near, "\n".join(sorted(expected)))


def _line_ends(draft: Draft) -> None:
    root = draft.project()
    stays = draft.pick("bat", "cmd", "reg")
    expected: dict[str, bytes] = {}
    windows = kept = open_end = ""
    for index, name in enumerate(draft.some(WORDS, draft.number(7, 11))):
        lines = [draft.prose(draft.number(2, 6)) for _ in range(draft.number(2, 7))]
        if index == 1:
            lines[0] += "\r in the middle"
        ends = {0: ["\r\n"], 1: ["\r\n"], 2: ["\r\n", "\n"], 3: ["\n"]}.get(index, ["\r\n"])
        text = "".join(line + draft.pick(*ends) for line in lines)
        if index == 6 or (index not in (0, 1, 4) and draft.chance(0.3)):
            text = text.rstrip("\r\n")
        extension = stays if index in (4, 5) else draft.pick("txt", "py", "csv", "md")
        path = f"{draft.pick('', f'{draft.pick(*DEPARTMENTS)}/')}{name}.{extension}"
        draft.file(f"{root}/{path}", text)
        windows, kept, open_end = (
            path if index == number else known for number, known in ((0, windows), (4, kept), (6, open_end))
        )
        expected[path] = (text if extension == stays else text.replace("\r\n", "\n")).encode()
    draft.say(
        draft.pick(
            f"Files below {root} have Windows line ends.",
            f"Convert the line ends of the files below {root}, please.",
        ),
        draft.require(
            "In every file below it, at any depth, replace each CR LF pair by a single LF, in place.",
            breach("one file left as it was", _CONTENT, after=f"sed -i 's/\\r*$/\\r/' {windows}"),
            breach("line ends gone", _CONTENT, swap=('b"\\n"))', 'b""))')),
            breach("two line ends in place of one", _CONTENT, swap=('b"\\n"))', 'b"\\n\\n"))')),
            breach("copies beside the files", _CONTENT, _ALONE, after=f"mv {windows} {windows}.unix"),
        ),
        draft.require(
            f"Files whose name ends in .{stays} need their Windows line ends and must stay byte for byte as they are.",
            breach("those files converted too", _CONTENT, swap=(f"if not name.endswith('.{stays}')", "if name")),
            breach("one of those files gone", _CONTENT, after=f"rm {kept}"),
        ),
        draft.require(
            "A CR that is not followed by LF stays.",
            breach("every CR removed", _CONTENT, swap=('b"\\r\\n", b"\\n"', 'b"\\r", b""')),
        ),
        draft.require(
            "If a file has no line end at its very end, do not add one.",
            breach("a line end added", _CONTENT, after=f"echo >> {open_end}"),
            breach("the last line end removed", _CONTENT, after=f"truncate -s -1 {windows}"),
        ),
        draft.require(
            "There must be nothing new below it: no files, links or directories.",
            breach("backups left", _ALONE, after=f"cp {windows} {windows}.bak"),
            breach("one more link", _ALONE, after="ln -s /etc/hostname more"),
            breach("one more directory, empty", _ALONE, after="mkdir more"),
        ),
    )
    draft.final.files(root, expected)
    oracle = python(
        """
        import os
        for place, _, names in os.walk(@root@):
            for name in names:
                if not name.endswith(@stays@):
                    path = os.path.join(place, name)
                    data = open(path, "rb").read()
                    open(path, "wb").write(data.replace(b"\\r\\n", b"\\n"))
        """,
        root=root,
        stays=f".{stays}",
    )
    near = swap(oracle, 'b"\\r\\n", b"\\n"', 'b"\\r", b""')
    draft.honest("converted by sed", instead=f"find {root} -type f ! -name '*.{stays}' -exec sed -i 's/\\r$//' {{}} +")
    draft.honest("new files in place of the old", after=f"cp {windows} ~/new && mv ~/new {windows}")
    draft.honest("backups in the home", after=f"cp -r . ~/backup-of-{root.rpartition('/')[2]}")
    draft.solve(oracle, near, f"all but *.{stays}")


def _mixed(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('documents', 'mails', 'subtitles')}"
    expected: dict[str, bytes] = {}
    kinds = ["utf-8", "latin-1", "utf-16-le", "utf-16-be", "utf-8-sig"]
    kinds += [draft.pick(*kinds) for _ in range(draft.number(1, 5))]
    for kind, name in zip(draft.shuffled(kinds), draft.some(CITIES, len(kinds)), strict=True):
        text = _lines(draft, draft.number(2, 5))
        mark = "\ufeff" if kind.startswith("utf-16") else ""
        draft.file(f"{root}/{name.lower()}.txt", (mark + text).encode(kind))
        expected[f"{name.lower()}.txt"] = text.encode()
    draft.say(
        draft.pick(
            f"The files in {root} come from several systems and have different encodings.",
            f"I want all files in {root} in the same encoding.",
        ),
        "Some are in UTF-16 (little or big endian, always with a byte order mark), some in UTF-8 (several of them with "
        "a byte order mark), and the rest in ISO-8859-1. A file that has no byte order mark and is not valid UTF-8 is "
        "ISO-8859-1.",
        draft.require(
            "Convert them all, in place, to UTF-8 without a byte order mark.",
            breach("byte order marks left", _CONTENT, swap=('"utf-8-sig"', '"utf-8"')),
            breach("ISO-8859-1 left", _CONTENT, swap=('text = data.decode("latin-1")', "continue")),
            breach("UTF-16 left", _CONTENT, swap=('text = data.decode("utf-16")', "continue")),
            breach("a file missing", _CONTENT, after=f"rm {min(expected)}"),
        ),
        draft.require(
            "Line ends and text stay the same,",
            breach("letters lost", _CONTENT, swap=('data.decode("latin-1")', 'data.decode("ascii", "ignore")')),
            breach("other line ends", _CONTENT, after=f"sed -i 's/$/\\r/' {min(expected)}"),
            breach("no newline at the end", _CONTENT, after=f"truncate -s -1 {min(expected)}"),
        ),
        draft.require(
            "and there must be nothing else in the directory.",
            breach("a copy of a file", _ALONE, after=f"cp {min(expected)} {min(expected)}.utf8"),
            breach("one more link", _ALONE, after="ln -s /etc/hostname more"),
            breach("one more directory, empty", _ALONE, after="mkdir more"),
        ),
    )
    draft.final.files(root, expected)
    oracle = python(
        """
        import glob
        for path in glob.glob(@root@ + "/*"):
            data = open(path, "rb").read()
            if data[:2] in (b"\\xff\\xfe", b"\\xfe\\xff"):
                text = data.decode("utf-16")
            else:
                try:
                    text = data.decode("utf-8-sig")
                except UnicodeDecodeError:
                    text = data.decode("latin-1")
            open(path, "wb").write(text.encode("utf-8"))
        """,
        root=root,
    )
    draft.root = root
    draft.honest("new files in place of the old", after="for name in *; do cp $name ~/new && mv ~/new $name; done")
    draft.honest("the originals kept in the home", after=f"cp -r {root} ~/originals")
    draft.solve(oracle, swap(oracle, '"utf-8-sig"', '"utf-8"'), "\n".join(sorted(expected)))


FAMILY = Family("encodings", "Convert encodings and line ends", (_latin, _line_ends, _mixed), ("python3", "iconv"))
