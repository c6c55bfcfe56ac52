"""Family: files cut into parts and reassembled."""

import hashlib

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, PRODUCTS


def _split(draft: Draft) -> None:
    root = draft.project()
    stem = draft.pick("events", "list", "addresses", "journal")
    size = draft.number(7, 15)
    lines = [
        f"{draft.number(1000, 9999)} {draft.prose(4)}\n"
        for _ in range(size * draft.number(3, 5) + draft.number(1, size - 1))
    ]
    draft.file(f"{root}/{stem}.txt", "".join(lines))
    digits = draft.number(2, 3)
    folder = f"{root}/{draft.pick('parts', 'pieces', 'chunks')}"
    draft.say(
        draft.pick(
            f"Split {root}/{stem}.txt into parts.", f"{root}/{stem}.txt is too long for us; please cut it into parts."
        ),
        f"! Each part has {size} lines, only the last one may have fewer.",
        f"! The parts are {folder}/{stem}-{1:0{digits}d}.txt, {stem}-{2:0{digits}d}.txt and so on,",
        "! in the order of the lines,",
        f"! with {digits} digits.",
        f"{folder} does not exist yet.",
        "! It must hold nothing else.",
    )
    oracle = (
        f"mkdir {folder}\nsplit -l {size} --numeric-suffixes=1 -a {digits} --additional-suffix=.txt {root}/{stem}.txt "
        f"{folder}/{stem}-\n"
    )
    draft.solve(oracle, swap(oracle, "--numeric-suffixes=1", "--numeric-suffixes=0"))


def _by_column(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('orders', 'staff', 'assets')}.csv"
    column = draft.pick("city", "department")
    names = draft.some(CITIES if column == "city" else DEPARTMENTS, draft.number(4, 6))
    header = f"id,item,{column},owner"
    rows: list[tuple[str, str]] = []
    for number in range(draft.number(14, 24)):
        name = names[number] if number < len(names) else draft.pick(*names)
        shown = draft.pick(name, name.upper()) if number > len(names) else name
        rows.append((name, f"{number + 1},{draft.pick(*PRODUCTS)},{shown},{draft.pick(*FIRST_NAMES)}\n"))
    rows.append((names[0], f"{len(rows) + 1},{draft.pick(*PRODUCTS)},{names[0].upper()},{draft.pick(*FIRST_NAMES)}\n"))
    rows = draft.shuffled(rows)
    draft.file(source, f"{header}\n" + "".join(row for _, row in rows))
    folder = f"{root}/by-{column}"
    name = folder.rpartition("/")[2]
    draft.say(
        draft.pick(f"Split {source} by {column}.", f"I need a separate CSV file for each {column} in {source}."),
        f"! For each {column} there, write {folder}/NAME.csv, where NAME is the {column} in small letters.",
        "! It has the header line of the original",
        f"! and the records with that {column}, exactly as they are",
        "! and in the original order.",
        f"! Upper and lower case of the {column} make no difference: records that differ only in that belong in the "
        "same file.",
        "(No field contains commas or quotes.)",
        f"{folder} does not exist yet.",
        "! It must hold nothing else.",
        "! Every line ends with a newline, including the last one.",
    )
    oracle = (
        f'mkdir {folder}\nawk -F , \'NR == 1 {{ header = $0; next }} {{ file = "{folder}/" tolower($3) ".csv" }} '
        f"!seen[file]++ {{ print header > file }} {{ print > file }}' {source}\n"
    )
    draft.solve(oracle, swap(oracle, "tolower($3)", "$3"))


def _join(draft: Draft) -> None:
    root = draft.project()
    name = draft.pick("database", "video", "backup", "report")
    data = draft.random.randbytes(draft.number(1500, 3000))
    count = draft.number(10, 13)
    cuts = sorted(draft.some(range(1, len(data)), count - 1))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    bad = draft.number(0, count - 1)
    lines: list[str] = []
    for number, part in enumerate(parts, 1):
        path = f"{root}/parts/{name}.part{number}"
        lines.append(f"{hashlib.sha256(part).hexdigest()}  {name}.part{number}\n")
        if number - 1 == bad:
            draft.file(path, bytes(byte ^ 1 for byte in part))
            draft.file(f"{root}/spare/{name}.part{number}", part)
        else:
            draft.file(path, part)
            # At least one that is neither needed nor good.
            if draft.chance(0.3) or number - 1 == (bad + 1) % count:
                draft.file(f"{root}/spare/{name}.part{number}", part[::-1] + b"!")
    draft.file(f"{root}/parts/SHA256SUMS", "".join(lines))
    target = f"{root}/{name}.bin"
    draft.say(
        draft.pick(
            f"Put the parts in {root}/parts together again.",
            f"{root}/parts holds a file that was cut into {count} parts.",
        ),
        f"They are {name}.part1 to {name}.part{count}.",
        "! Join them in the order of their numbers.",
        f"{root}/parts/SHA256SUMS has the checksum of every part (as sha256sum writes it). One part is damaged; "
        f"{root}/spare has other copies of some parts, not all of which are good.",
        f"! Write the joined file to {target}, with the right version of each part.",
    )
    oracle = python("""
        import hashlib
        result = b""
        for number in range(1, @count@ + 1):
            name = f"{@name@}.part{number}"
            right = next(line.split()[0] for line in open(@root@ + "/parts/SHA256SUMS") if line.split()[1] == name)
            data = open(@root@ + "/parts/" + name, "rb").read()
            if hashlib.sha256(data).hexdigest() != right:
                data = open(@root@ + "/spare/" + name, "rb").read()
            result += data
        open(@target@, "wb").write(result)
        """)
    draft.solve(oracle, swap(oracle, f"in range(1, {count} + 1)", f"in sorted(range(1, {count} + 1), key=str)"))


FAMILY = Family("split_files", "Split files and join them again", (_split, _by_column, _join), ("python3",))
