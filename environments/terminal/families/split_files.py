"""Family: files cut into parts and reassembled."""

from __future__ import annotations

import hashlib

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, DEPARTMENTS, FIRST_NAMES, PRODUCTS

__all__ = ["FAMILY"]


def _split(draft: Draft) -> None:
    root = draft.project()
    stem = draft.pick("events", "list", "addresses", "journal")
    size = draft.number(7, 15)
    lines = [
        f"{draft.number(1000, 9999)} {draft.prose(4)}\n"
        for _ in range(size * draft.number(3, 5) + draft.number(1, size - 1))
    ]
    draft.file(f"{root}/{stem}.txt", "".join(lines), keep=True)
    digits = draft.number(2, 3)
    folder = f"{root}/{draft.pick('parts', 'pieces', 'chunks')}"
    expected = {
        f"{stem}-{number + 1:0{digits}d}.txt": "".join(lines[start : start + size]).encode()
        for number, start in enumerate(range(0, len(lines), size))
    }
    name = folder.rpartition("/")[2]
    right, more = f"files of {name} have the right content", f"{name} holds nothing else"
    draft.honest("closed to others", after=f"chmod -R go-rwx {folder}")
    draft.honest(
        "by awk",
        instead=f"mkdir {folder}; cd {folder}; awk -v form='{stem}-%0{digits}d.txt' "
        f"'{{ print > sprintf(form, int((NR - 1) / {size}) + 1) }}' {root}/{stem}.txt",
    )
    draft.say(
        draft.pick(
            f"Split {root}/{stem}.txt into parts.", f"{root}/{stem}.txt is too long for us; please cut it into parts."
        ),
        draft.require(
            f"Each part has {size} lines, only the last one may have fewer.",
            breach("one line more", right, swap=(f"-l {size}", f"-l {size + 1}")),
            breach("lines cut in two", right, after=f"cd {folder} && truncate -s -3 {stem}-{1:0{digits}d}.txt"),
        ),
        draft.require(
            f"The parts are {folder}/{stem}-{1:0{digits}d}.txt, {stem}-{2:0{digits}d}.txt and so on,",
            breach("counted from 0", right, more, swap=("--numeric-suffixes=1", "--numeric-suffixes=0")),
            breach("no .txt", right, more, swap=("--additional-suffix=.txt ", "")),
            breach("another stem", right, more, swap=(f"{folder}/{stem}-", f"{folder}/part-")),
        ),
        draft.require(
            "in the order of the lines,",
            breach(
                "backwards",
                right,
                instead=f"mkdir {folder}; tac {root}/{stem}.txt | split -l {size} --numeric-suffixes=1 -a {digits} "
                f"--additional-suffix=.txt - {folder}/{stem}-",
            ),
        ),
        draft.require(
            f"with {digits} digits.", breach("one digit more", right, more, swap=(f"-a {digits}", f"-a {digits + 1}"))
        ),
        f"{folder} does not exist yet.",
        draft.require(
            "It must hold nothing else.",
            breach("one more file", more, after=f"echo more > {folder}/README"),
            breach("one more directory", more, after=f"mkdir {folder}/more"),
            breach("one more link", more, after=f"ln -s {root}/{stem}.txt {folder}/all"),
        ),
        draft.leave(),
    )
    draft.initial.absent(folder)
    draft.final.files(folder, expected)
    oracle = (
        f"mkdir {folder}\nsplit -l {size} --numeric-suffixes=1 -a {digits} --additional-suffix=.txt {root}/{stem}.txt "
        f"{folder}/{stem}-\n"
    )
    draft.solve(oracle, swap(oracle, "--numeric-suffixes=1", "--numeric-suffixes=0"), "\n".join(expected))


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
    draft.file(source, f"{header}\n" + "".join(row for _, row in rows), keep=True)
    folder = f"{root}/by-{column}"
    expected = {
        f"{name.lower()}.csv": (f"{header}\n" + "".join(row for other, row in rows if other == name)).encode()
        for name in names
    }
    name = folder.rpartition("/")[2]
    right, more = f"files of {name} have the right content", f"{name} holds nothing else"
    first = f"{names[0].lower()}.csv"
    draft.honest("closed to others", after=f"chmod -R go-rwx {folder}")
    draft.honest(
        "from Python",
        instead=python(
            """
            import os
            os.mkdir(@folder@)
            header, *lines = open(@source@).readlines()
            for name in {line.split(",")[2].lower() for line in lines}:
                with open(os.path.join(@folder@, name + ".csv"), "w") as file:
                    file.writelines([header, *(line for line in lines if line.split(",")[2].lower() == name)])
            """,
            folder=folder,
            source=source,
        ),
    )
    draft.say(
        draft.pick(f"Split {source} by {column}.", f"I need a separate CSV file for each {column} in {source}."),
        draft.require(
            f"For each {column} there, write {folder}/NAME.csv, where NAME is the {column} in small letters.",
            breach("names as they are", right, more, swap=("tolower($3)", "$3")),
            breach("one left out", right, after=f"rm {folder}/{first}"),
            breach("another suffix", right, more, after=f"mv {folder}/{first} {folder}/{first}.txt"),
        ),
        draft.require(
            "It has the header line of the original",
            breach("no header", right, swap=("{ print header > file }", "{ }")),
            breach("the header with each record", right, swap=("!seen[file]++ ", "")),
        ),
        draft.require(
            f"and the records with that {column}, exactly as they are",
            breach("small letters", right, swap=("{ print > file }", "{ print tolower($0) > file }")),
            breach("the column left out", right, swap=("{ print > file }", '{ print $1 "," $2 "," $4 > file }')),
            breach("a record twice", right, after=f"tail -n 1 {folder}/{first} >> {folder}/{first}"),
        ),
        draft.require(
            "and in the original order.",
            breach(
                "backwards",
                right,
                after=f"cd {folder}; (head -n 1 {first}; tail -n +2 {first} | tac) > ~/t; cat ~/t > {first}",
            ),
        ),
        draft.require(
            f"Upper and lower case of the {column} make no difference: records that differ only in that belong in the "
            "same file.",
            breach("capitals left out", right, after=f"sed -i '/,{names[0].upper()},/d' {folder}/{first}"),
        ),
        "(No field contains commas or quotes.)",
        f"{folder} does not exist yet.",
        draft.require(
            "It must hold nothing else.",
            breach("one more file", more, after=f"echo more > {folder}/README"),
            breach("one more directory", more, after=f"mkdir {folder}/more"),
        ),
        draft.require(
            "Every line ends with a newline, including the last one.",
            breach("no newline", right, after=f"truncate -s -1 {folder}/{first}"),
            breach("other ends of lines", right, after=f"sed -i 's/$/\\r/' {folder}/{first}"),
        ),
        draft.leave(),
    )
    draft.initial.absent(folder)
    draft.final.files(folder, expected)
    oracle = (
        f'mkdir {folder}\nawk -F , \'NR == 1 {{ header = $0; next }} {{ file = "{folder}/" tolower($3) ".csv" }} '
        f"!seen[file]++ {{ print header > file }} {{ print > file }}' {source}\n"
    )
    draft.solve(oracle, swap(oracle, "tolower($3)", "$3"), "\n".join(sorted(expected)))


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
            draft.file(path, bytes(byte ^ 1 for byte in part), keep=True)
            draft.file(f"{root}/spare/{name}.part{number}", part, keep=True)
        else:
            draft.file(path, part, keep=True)
            # At least one that is neither needed nor good.
            if draft.chance(0.3) or number - 1 == (bad + 1) % count:
                draft.file(f"{root}/spare/{name}.part{number}", part[::-1] + b"!", keep=True)
    draft.file(f"{root}/parts/SHA256SUMS", "".join(lines), keep=True)
    target = f"{root}/{name}.bin"
    right = f"{name} has the right content"
    draft.honest("closed to others, with a time of its own", after=f"chmod 600 {target}; touch -d 2001-01-01 {target}")
    draft.honest(
        "by the tools of the shell",
        instead=f"""cd {root}/parts && cp -r . ~/work && cd ~/work || exit 1
sha256sum -c SHA256SUMS 2> /dev/null | sed -n 's/: FAILED$//p' | while read -r part; do cp {root}/spare/$part .; done
for number in $(seq {count}); do cat {name}.part$number; done > {target}
""",
    )
    draft.say(
        draft.pick(
            f"Put the parts in {root}/parts together again.",
            f"{root}/parts holds a file that was cut into {count} parts.",
        ),
        f"They are {name}.part1 to {name}.part{count}.",
        draft.require(
            "Join them in the order of their numbers.",
            breach(
                "10 before 2", right, swap=(f"in range(1, {count} + 1)", f"in sorted(range(1, {count} + 1), key=str)")
            ),
            breach("the last one left out", right, swap=(f"{count} + 1)", f"{count})")),
        ),
        f"{root}/parts/SHA256SUMS has the checksum of every part (as sha256sum writes it). One part is damaged; "
        f"{root}/spare has other copies of some parts, not all of which are good.",
        draft.require(
            f"Write the joined file to {target}, with the right version of each part.",
            breach("the damaged one", right, swap=("!= right:", "is None:")),
            breach(
                "every spare one",
                right,
                swap=(
                    "if hashlib.sha256(data).hexdigest() != right:",
                    f"import os\n    if os.path.exists({root!r} + '/spare/' + name):",
                ),
            ),
            breach("a newline at the end", right, after=f"echo >> {target}"),
            breach("a link to it", right, after=f"mv {target} ~/joined && ln -s ~/joined {target}"),
        ),
        draft.leave(),
    )
    draft.initial.absent(target)
    draft.final.contents(f"{name} has the right content", {target: data})
    oracle = python(
        """
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
        """,
        count=count,
        name=name,
        root=root,
        target=target,
    )
    draft.solve(oracle, swap(oracle, f"in range(1, {count} + 1)", f"in sorted(range(1, {count} + 1), key=str)"), target)


FAMILY = Family("split_files", "Split files and join them again", (_split, _by_column, _join), ("python3",))
