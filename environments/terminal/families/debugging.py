"""Programs with faults, to be repaired; they then have to pass cases the agent has not seen."""

from __future__ import annotations

from collections.abc import Sequence

from .checks import digest
from .draft import Draft, fill, python, swap
from .family import Family
from .vocabulary import CITIES, PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _repair(draft: Draft, path: str, good: str, faults: Sequence[tuple[str, str]]) -> None:
    """The program is there with all its ``faults`` (right and wrong passage); the near miss repairs all but one."""
    bad = good
    for right, wrong in faults:
        bad = swap(bad, right, wrong)
    draft.file(path, bad, 0o755)
    repairs = list(faults)
    oracle = python(
        "text = open(@path@).read()\nfor right, wrong in @repairs@:\n    text = text.replace(wrong, "
        "right)\nopen(@path@, 'w').write(text)",
        path=path,
        repairs=repairs,
    )
    draft.solve(oracle, swap(oracle, repr(repairs), repr(repairs[:-1])), good)
    draft.final.test("program is executable", f"assert os.access({path!r}, os.X_OK)\ncontent({path!r})")


def _report(draft: Draft) -> None:
    """A Python program over a small table."""
    root = draft.project()
    path = f"{root}/{draft.pick('totals', 'report', 'summary')}.py"
    word = draft.pick(*WORDS)
    good = fill(
        '''#!/usr/bin/env python3
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
''',
        {"word": word},
    )
    faults = draft.shuffled(
        [
            ("totals.get(name, 0) + int(amount)", "int(amount)"),
            ("(-item[1], item[0])", "(item[1], item[0])"),
            ('line.rsplit(" ", 1)', "line.split()"),
            ("sum(totals.values())", "len(totals)"),
        ]
    )[: draft.number(2, 3)]
    _repair(draft, path, good, faults)

    def table(count: int) -> str:
        names = [*draft.some(CITIES, 2), f"New {draft.pick(*CITIES)}"]
        lines = ["# amounts", *(f"{draft.pick(*names)} {draft.number(1, 500)}" for _ in range(count)), ""]
        return "".join(f"{line}\n" for line in [*lines, *(f"{name} {draft.number(1, 9)}" for name in names)])

    def answer(text: str) -> str:
        totals: dict[str, int] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, amount = line.rpartition(" ")
                totals[name] = totals.get(name, 0) + int(amount)
        rows = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
        return "".join(f"{name}: {total}\n" for name, total in rows) + f"{word}: {sum(totals.values())}\n"

    draft.say(
        draft.pick(f"{path} does not do what it should.", f"There are bugs in {path}; please repair it."),
        "It reads lines 'NAME AMOUNT' from standard input, where AMOUNT is a whole number after the last space and "
        "NAME may contain spaces; empty lines and lines beginning with # are to be ignored.",
        "It must print the sum of the amounts for each name as 'NAME: SUM', largest sum first and equal sums by name, "
        f"and then the line '{word}: ' followed by the sum of all amounts.",
    )
    example = table(3).strip("\n") + "\n"
    shown = "".join(f"    {line}".rstrip() + "\n" for line in example.splitlines())
    right = "".join(f"    {line}\n" for line in answer(example).splitlines())
    draft.say(f"For the input\n\n{shown}\nit must print\n\n{right}")
    draft.say("It must stay an executable file at the same path. I will try it with other input as well.")
    texts = [example, table(9), table(20), f"Oslo 5\nNew Oslo 5\nBonn 5\nBonn 7\n{word} 1\n"]
    draft.final.cases([path], [((), text, answer(text)) for text in texts])


def _backup(draft: Draft) -> None:
    """A shell script that trips over spaces in names."""
    root = draft.project()
    path = f"{root}/{draft.pick('list', 'inventory', 'count')}.sh"
    extension = draft.pick("txt", "csv", "log")
    label = draft.pick(*PRODUCTS)
    good = fill(
        """#!/bin/bash
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
""",
        {"name": path.rpartition("/")[2], "extension": extension, "label": label},
    )
    faults = draft.shuffled(
        [
            ('wc -l < "$file"', 'wc -c < "$file"'),
            (f'"$1"/*.{extension}', f"$(ls $1/*.{extension})"),
            ("total=$((total + lines))", "total=$lines"),
            (f'basename "$file" .{extension}', 'basename "$file"'),
        ]
    )[: draft.number(2, 3)]
    _repair(draft, path, good, faults)
    for name in draft.some(WORDS, 3):
        draft.file(f"{root}/sample/{name}.{draft.pick(extension, extension, 'dat')}", draft.text(draft.number(40, 200)))
    draft.say(
        draft.pick(
            f"The script {path} has bugs. Please repair it.", f"{path} gives wrong results; find out why and repair it."
        ),
        "It is called with a directory as its only argument. For every regular file directly in that directory whose "
        f"name ends in .{extension} it must print the name without .{extension}, a space and the number of newlines "
        f"in the file, in byte order of the names (with LANG=C.UTF-8), and then a line '{label} TOTAL in COUNT' with "
        "the sum of those numbers and the number of files.",
        f"Names may contain spaces. Without any such file only '{label} 0 in 0' is printed. Nothing else may be "
        "printed to standard output.",
    )
    draft.say(
        f"{root}/sample is a directory to try it with. The script must stay an executable file at the same path, and I "
        "will use directories of my own as well."
    )
    cases: list[dict[str, int]] = []
    for number in range(3):
        names = draft.some(SERVICES, 3)
        names[1] = f"{names[1]} {draft.pick(*WORDS)}"
        cases.append({f"{name}.{extension}": draft.number(2, 30) for name in names[: number + 1]})
    cases.append({})
    for number, files in enumerate(cases, 1):
        lines = [f"{name.removesuffix(f'.{extension}')} {files[name]}\n" for name in sorted(files)]
        text = "".join(lines) + f"{label} {sum(files.values())} in {len(files)}\n"
        draft.final.test(
            f"directory {number} is counted",
            f"""
            here = os.path.dirname(os.path.abspath(__file__))
            with tempfile.TemporaryDirectory(dir=here) as folder:
                for name, lines in {files!r}.items():
                    with open(os.path.join(folder, name), "w") as file:
                        file.write("a line\\n" * lines)
                with open(os.path.join(folder, "other.dat"), "w") as file:
                    file.write("a line\\n")
                status, printed = run({path!r}, folder, folder=folder)
            assert status == 0, f"exit status {{status}}"
            assert digest(printed) == {digest(text.encode())!r}
            """,
        )


FAMILY = Family("debugging", "Repair programs with faults", (_report, _backup), ("python3",))
