"""Family: character encodings and line ends."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, WORDS

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
    for name in draft.some(WORDS, draft.number(3, 6)):
        text = _lines(draft, draft.number(2, 6))
        path = f"{draft.pick('', 'old/', 'old/er/')}{name}.txt"
        draft.file(f"{root}/{path}", text.encode("latin-1"))
    draft.say(
        draft.pick(
            f"The text files below {root} are encoded in ISO-8859-1 (Latin-1).",
            f"An old system left us text files in ISO-8859-1 (Latin-1) in {root} and its subdirectories.",
        ),
        "! Write a copy of each in UTF-8 (without a byte order mark)",
        f"! to the same relative path below {target}, which does not exist yet,",
        "! and nothing else there.",
        "! Apart from the encoding the text must be exactly the same.",
    )
    oracle = (
        f"cd {root} || exit 1\nfind . -type f | while read -r file; do\n"
        f'  mkdir -p "$(dirname "{target}/$file")"\n  iconv -f ISO-8859-1 -t UTF-8 "$file" > "{target}/$file"\ndone\n'
    )
    near = swap(oracle, 'iconv -f ISO-8859-1 -t UTF-8 "$file"', 'cat "$file"')
    draft.solve(oracle, near)


def _line_ends(draft: Draft) -> None:
    root = draft.project()
    stays = draft.pick("bat", "cmd", "reg")
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
    draft.say(
        draft.pick(
            f"Files below {root} have Windows line ends.", f"Convert the line ends of the files below {root}, please."
        ),
        "! In every file below it, at any depth, replace each CR LF pair by a single LF, in place.",
        f"! Files whose name ends in .{stays} need their Windows line ends and must stay byte for byte as they are.",
        "! A CR that is not followed by LF stays.",
        "! If a file has no line end at its very end, do not add one.",
    )
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
        stays=f".{stays}",
    )
    near = swap(oracle, 'b"\\r\\n", b"\\n"', 'b"\\r", b""')
    draft.solve(oracle, near)


def _mixed(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('documents', 'mails', 'subtitles')}"
    kinds = ["utf-8", "latin-1", "utf-16-le", "utf-16-be", "utf-8-sig"]
    kinds += [draft.pick(*kinds) for _ in range(draft.number(1, 5))]
    for kind, name in zip(draft.shuffled(kinds), draft.some(CITIES, len(kinds)), strict=True):
        text = _lines(draft, draft.number(2, 5))
        mark = "\ufeff" if kind.startswith("utf-16") else ""
        draft.file(f"{root}/{name.lower()}.txt", (mark + text).encode(kind))
    draft.say(
        draft.pick(
            f"The files in {root} come from several systems and have different encodings.",
            f"I want all files in {root} in the same encoding.",
        ),
        "Some are in UTF-16 (little or big endian, always with a byte order mark), some in UTF-8 (several of them with "
        "a byte order mark), and the rest in ISO-8859-1. A file that has no byte order mark and is not valid UTF-8 is "
        "ISO-8859-1.",
        "! Convert them all, in place, to UTF-8 without a byte order mark.",
        "! Line ends and text stay the same.",
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, '"utf-8-sig"', '"utf-8"'))


FAMILY = Family("encodings", "Convert encodings and line ends", (_latin, _line_ends, _mixed), ("python3", "iconv"))
