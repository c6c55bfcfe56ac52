"""Family: faulty programs to repair, which then have to pass cases that are drawn for each examination."""

import random
from collections.abc import Sequence

from .checks import DRAWN, Case
from .draft import Draft, fill, swap
from .family import Family
from .vocabulary import CITIES, PRODUCTS, SERVICES, WORDS

#: The most lines of input, characters of a name, and the largest amount.
_LINES, _NAME, _AMOUNT = 1500, 60, 10**6
#: The most files of a directory, and lines of a file.
_FILES, _LONGEST = 9, 3000
_REPORT = '''#!/usr/bin/env python3
"""Adds up "name amount" lines from standard input and prints the totals."""
import sys


def read(stream):
    totals = {}
    for line in stream:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, amount = line.rsplit(" ", 1)
        totals[name] = totals.get(name, 0) + int(amount)
    return totals


def main():
    totals = read(sys.stdin)
    for name, total in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        print(f"{name}: {total}")
    print(f"@word@: {sum(totals.values())}")


main()
'''
_COUNT = """#!/bin/bash
# Usage: @name@ DIRECTORY
# Prints name and number of lines of each .@extension@ file directly in DIRECTORY, and the total.
set -u
total=0
count=0
for file in "$1"/*.@extension@; do
  [ -f "$file" ] || continue
  lines=$(wc -l < "$file")
  name=$(basename "$file" .@extension@)
  echo "$name $lines"
  total=$((total + lines))
  count=$((count + 1))
done
echo "@label@ $total in $count"
"""


def _repair(draft: Draft, path: str, good: str, faults: Sequence[tuple[str, str]]) -> None:
    """Write the program with two or three ``faults`` (right and wrong passage); the near miss leaves the last one."""
    faults = draft.shuffled(faults)[: draft.number(2, 3)]
    bad = good
    for right, wrong in faults:
        bad = swap(bad, right, wrong)
    draft.file(path, bad, 0o755)
    oracle = f"cat > {path} <<'END'\n{good}END\n"
    draft.form(path, "any", sentence="How you change the program is up to you.")
    draft.solve(oracle, swap(oracle, *faults[-1]))


def amounts(numbers: random.Random, turn: int, cities: list[str], most: int, longest: int, largest: int) -> Case:
    """Return lines. In one case there are the most of the longest names, in one the largest amounts or equal sums."""
    names = numbers.sample(cities, 3)
    names += [f"New {names[0]}", f"{names[1]} #2", f"{names[2]}  {' '.join(names)}", names[0].swapcase()]
    length = numbers.randrange(3, longest + 1) if turn else longest
    begin = "x" + "".join(chr(numbers.randrange(32, 127)) for _ in range(length - 3))
    names = [*(names if turn else ()), f"{begin}yz", f"{begin}zy", f"{begin}Yz"]
    lines: list[str] = []
    for _ in range(most if turn == 0 else numbers.randrange(1, numbers.choice((20, 20, most + 1)))):
        amount = numbers.choice((5, 10, numbers.randrange(-9, 500), numbers.randrange(-largest, largest + 1)))
        line = f"{numbers.choice(names)} {largest * numbers.choice((-1, 1)) if turn == 1 else amount}"
        lines += numbers.choice(([line], [line], [line], ["", line], ["# amounts", line], [f"#{names[0]} 7", line]))
    if turn == 2:
        lines = [f"{name} 7" for name in numbers.sample(names, len(names))]
    return [], "".join(f"{line}\n" for line in lines[-most:])


def totals(arguments: list[str], given: str, word: str) -> str:
    found: dict[str, int] = {}
    for line in given.splitlines():
        if line and not line.startswith("#"):
            name, _, amount = line.rpartition(" ")
            found[name] = found.get(name, 0) + int(amount)
    rows = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{name}: {total}\n" for name, total in rows) + f"{word}: {sum(found.values())}\n"


def _report(draft: Draft) -> None:
    """Write a Python program over a small table."""
    root = draft.project()
    path = f"{root}/{draft.pick('totals', 'report', 'summary')}.py"
    word = draft.pick(*WORDS)
    faults = [
        ("totals.get(name, 0) + int(amount)", "int(amount)"),
        ("(-item[1], item[0])", "(item[1], item[0])"),
        ('line.rsplit(" ", 1)', "line.split()"),
        ("sum(totals.values())", "len(totals)"),
    ]
    _repair(draft, path, fill(_REPORT, {"word": word}), faults)
    a, b, c = draft.some(CITIES, 3)
    example = f"# amounts\n{a} {draft.number(9, 500)}\nNew {b} {draft.number(9, 500)}\n\n{a} {draft.number(1, 99)}\n"
    draft.say(
        draft.pick(f"{path} does not do what it should.", f"There are bugs in {path}; please repair it."),
        "! It reads lines 'NAME AMOUNT' from standard input, where AMOUNT is a whole number after the last space and "
        "NAME may contain spaces;",
        "! empty lines and lines beginning with # are to be ignored.",
        "! It must print the sum of the amounts for each name as 'NAME: SUM',",
        "! largest sum first",
        "! and equal sums by name in byte order,",
        f"! and then the line '{word}: ' followed by the sum of all amounts.",
    )
    shown = "".join(f"    {line}".rstrip() + "\n" for line in example.splitlines())
    right = "".join(f"    {line}\n" for line in totals([], example, word).splitlines())
    draft.say(f"For the input\n\n{shown}\nit prints\n\n{right}")
    draft.say(
        "! It must stay an executable file at the same path,",
        "! end with the exit status 0",
        "! and print nothing else to standard output.",
        "! I will try it with other input as well.",
        f"(At most {_LINES} lines, all of them complete, of printable ASCII characters. A NAME has at most {_NAME} of "
        f"them, the first and the last of which are letters or digits; an AMOUNT lies between -{_AMOUNT} and {_AMOUNT} "
        "and is written in its shortest form.)",
    )
    edges = [example, f"{c} 5\nNew {a} 5\n{b} 5\n{a} 7\n{b} 2\n{word} 1\n", "", "\n# nothing\n"]
    draft.final.drawn(
        path,
        amounts,
        totals,
        material=[list(CITIES), _LINES, _NAME, _AMOUNT],
        always=[([], text) for text in edges],
        word=word,
    )


def folder_of(
    numbers: random.Random, turn: int, words: list[str], extension: str, most: int, longest: int
) -> dict[str, str]:
    """Return files by name; no name begins with another's, so that their order does not depend on the ending.

    In one case there are the most files, in one the longest.
    """
    text = "a line\n" * 30
    files = {"other.dat": text, f"{extension}.dat": text, f"not-{extension}": text}
    files |= {
        f"{numbers.choice(words)}.{ending}": text for ending in (extension.upper(), f"{extension}.old", f"{extension}x")
    }
    for word in numbers.sample(words, most if turn == 0 else numbers.randrange(6)):
        names = (word, word.title(), f"{word} {numbers.choice(words)}", f"{word}.{extension} x")
        odd = (f"{word}\\tail 5%", f"{word}[1] *", f"-n {word}")
        lines = ("a line\n", "\n", " a \\\n", "b")
        count = longest if turn == 1 else numbers.randrange(numbers.choice((30, 300)))
        name = numbers.choice((*names, *odd))
        files[f"{name}.{extension}"] = "".join(numbers.choice(lines) for _ in range(count))
    return files


def counts(files: dict[str, str], label: str, extension: str) -> str:
    names = sorted(name for name in files if name.endswith(f".{extension}"))
    rows = [f"{name[: -len(extension) - 1]} {files[name].count(chr(10))}\n" for name in names]
    total = sum(files[name].count("\n") for name in names)
    return "".join(rows) + f"{label} {total} in {len(names)}\n"


_COUNTING = f"""
    numbers = random.Random(SEED)
    drawn = (folder_of(numbers, turn, words, extension, most, longest) for turn in range({DRAWN}))
    for files in [{{}}, *always, *drawn]:
        with tempfile.TemporaryDirectory() as place:
            folder = os.path.join(place, numbers.choice(words) + numbers.choice(("", " of mine", "  *", " -n [a]")))
            os.mkdir(folder)
            for name, text in files.items():
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
            os.mkdir(os.path.join(folder, f"folder.{{extension}}"))
            with open(os.path.join(folder, f"folder.{{extension}}", f"below.{{extension}}"), "w") as file:
                file.write("a line\\n")
            status, printed = run(path, folder + numbers.choice(("", "", "/")), folder=place)
            assert {{*os.listdir(folder)}} == {{*files, f"folder.{{extension}}"}}, os.listdir(folder)
            assert all(content(os.path.join(folder, name)) == text.encode() for name, text in files.items()), "changed"
        assert status == 0, f"exit status {{status}}, {{sorted(files)}}"
        assert printed == counts(files, label, extension).encode(), f"{{sorted(files)}}: {{printed[:200]!r}}"
"""


def _count(draft: Draft) -> None:
    """Write a shell script that fails on spaces in names."""
    root = draft.project()
    path = f"{root}/{draft.pick('list', 'inventory', 'count')}.sh"
    extension = draft.pick("txt", "csv", "log")
    label = draft.pick(*PRODUCTS)
    faults = [
        ('wc -l < "$file"', 'wc -c < "$file"'),
        (f'"$1"/*.{extension}', f"$(ls $1/*.{extension})"),
        ("total=$((total + lines))", "total=$lines"),
        (f'basename "$file" .{extension}', 'basename "$file"'),
    ]
    values = {"name": path.rpartition("/")[2], "extension": extension, "label": label}
    _repair(draft, path, fill(_COUNT, values), faults)
    for name in draft.some(WORDS, 3):
        draft.file(f"{root}/sample/{name}.{draft.pick(extension, extension, 'dat')}", draft.text(draft.number(40, 200)))
    draft.say(
        draft.pick(
            f"The script {path} has bugs. Please repair it.", f"{path} gives wrong results; find out why and repair it."
        ),
        "! It is called with a directory as its only argument. For every regular file directly in that directory "
        f"whose name ends in .{extension} it must print the name without .{extension}, a space and the number of "
        "newlines in the file,",
        "! in byte order of the names (with LANG=C.UTF-8),",
        f"! and then a line '{label} TOTAL in COUNT' with the sum of those numbers and the number of files.",
        "! Names may contain spaces.",
        f"! Without any such file only '{label} 0 in 0' is printed.",
        "! Nothing else may be printed to standard output,",
        "! and nothing in that directory may change.",
    )
    draft.say(
        f"{root}/sample is a directory to try it with.",
        "! It must stay an executable file at the same path,",
        "! and end with the exit status 0;",
        f"I will use directories of my own as well: with at most {_FILES} such files of at most {_LONGEST} lines, and "
        "with other regular files and directories. All names are of printable ASCII characters; none of them begins "
        "with a full stop.",
    )
    always = [{f"{name}.{extension}": "a line\n" * 3 + "end" for name in ("Zeta", "alpha", "beta gamma", "delta")}]
    draft.final.judged(
        "drawn cases", _COUNTING, folder_of, counts,
        path=path, words=list(SERVICES), extension=extension, label=label, always=always, most=_FILES, longest=_LONGEST,
    )  # fmt: skip


FAMILY = Family("debugging", "Repair programs with faults", (_report, _count), ("python3",))
