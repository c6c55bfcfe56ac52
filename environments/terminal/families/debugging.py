"""Family: faulty programs to repair, which then have to pass cases that the agent has not seen."""

from __future__ import annotations

from collections.abc import Sequence

from .checks import digest
from .draft import Draft, breach, fill, python, swap
from .family import Family
from .requirements import Way
from .vocabulary import CITIES, PRODUCTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _repair(draft: Draft, path: str, good: str, faults: Sequence[tuple[str, str]]) -> None:
    """Write the program with all its ``faults`` (right and wrong passage); the near miss repairs all but the last."""
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


def _with(what: str, check: str, path: str, right: str, wrong: str) -> Way:
    """Return a breach: the repaired program with one passage replaced."""
    code = """
        text = open(@path@).read()
        assert @right@ in text
        open(@path@, "w").write(text.replace(@right@, @wrong@))
        """
    return breach(what, check, after=python(code, path=path, right=right, wrong=wrong))


def _executable(draft: Draft, path: str, check: str) -> str:
    """Add the sentence that the file stays executable, with honest ways and breaches."""
    draft.honest("for the owner alone", after=f"chmod 700 {path}")
    draft.honest("another file in its place", after=f"cp -p {path} ~/new && mv ~/new {path}")
    start = f'#!/bin/sh\\nexec {path}.real "$@"\\n'
    draft.honest(
        "a program that starts another",
        after=f"mv {path} {path}.real && printf '{start}' > {path} && chmod 755 {path}",
    )
    note = "print('note', file=sys.stderr)" if path.endswith(".py") else "echo note >\\&2"
    draft.honest("words on standard error", after=f'sed -i "3a {note}" {path}')
    return draft.require(
        "It must stay an executable file at the same path,",
        breach("not executable", "program is executable", check, after=f"chmod 644 {path}"),
        breach("a link to it", "program is executable", after=f"mv {path} {path}.real && ln -s {path}.real {path}"),
    )


def _report(draft: Draft) -> None:
    """Write a Python program over a small table."""
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

    case = "hidden case *"
    draft.say(
        draft.pick(f"{path} does not do what it should.", f"There are bugs in {path}; please repair it."),
        draft.require(
            "It reads lines 'NAME AMOUNT' from standard input, where AMOUNT is a whole number after the last space and "
            "NAME may contain spaces;",
            _with("names without spaces only", case, path, 'line.rsplit(" ", 1)', "line.split()"),
        ),
        draft.require(
            "empty lines and lines beginning with # are to be ignored.",
            _with("empty lines not ignored", case, path, "not line or ", ""),
            _with("other lines not ignored", case, path, ' or line.startswith("#")', ""),
        ),
        draft.require(
            "It must print the sum of the amounts for each name as 'NAME: SUM',",
            _with("the last amount", case, path, "totals.get(name, 0) + int(amount)", "int(amount)"),
            _with("no space", case, path, "{name}: {total}", "{name}:{total}"),
        ),
        draft.require(
            "largest sum first", _with("the smallest first", case, path, "(-item[1], item[0])", "(item[1], item[0])")
        ),
        draft.require(
            "and equal sums by name,", _with("equal sums as they come", case, path, "(-item[1], item[0])", "-item[1]")
        ),
        draft.require(
            f"and then the line '{word}: ' followed by the sum of all amounts.",
            _with("the number of names", case, path, "sum(totals.values())", "len(totals)"),
            _with("no last line", case, path, f'    print(f"{word}: ', f'    str(f"{word}: '),
        ),
    )
    example = table(3).strip("\n") + "\n"
    shown = "".join(f"    {line}".rstrip() + "\n" for line in example.splitlines())
    right = "".join(f"    {line}\n" for line in answer(example).splitlines())
    draft.say(f"For the input\n\n{shown}\nit prints\n\n{right}")
    draft.say(
        _executable(draft, path, case),
        draft.require(
            "end with the exit status 0",
            _with("another exit status", case, path, "\nmain()", "\nmain()\nsys.exit(3)"),
        ),
        draft.require(
            "and print nothing else to standard output.",
            _with("one line more", case, path, "\nmain()", "\nmain()\nprint()"),
        ),
        draft.require(
            "I will try it with other input as well.",
            breach(
                "the answer of the example",
                case,
                instead=f"cat > {path} <<'END'\n#!/bin/sh\ncat <<'ANSWER'\n{answer(example)}ANSWER\nEND\n",
            ),
        ),
    )
    texts = [example, table(9), table(20), f"Oslo 5\nNew Oslo 5\nBonn 5\nBonn 7\n{word} 1\n"]
    draft.final.cases([path], [((), text, answer(text)) for text in texts])


def _backup(draft: Draft) -> None:
    """Write a shell script that fails on spaces in names."""
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
    case = "directory * is counted"
    draft.say(
        draft.pick(
            f"The script {path} has bugs. Please repair it.", f"{path} gives wrong results; find out why and repair it."
        ),
        draft.require(
            "It is called with a directory as its only argument. For every regular file directly in that directory "
            f"whose name ends in .{extension} it must print the name without .{extension}, a space and the number of "
            "newlines in the file,",
            _with("the number of bytes", case, path, 'wc -l < "$file"', 'wc -c < "$file"'),
            _with("names with their end", case, path, f'basename "$file" .{extension}', 'basename "$file"'),
            _with("files with other names", case, path, f'"$1"/*.{extension}', '"$1"/*'),
            _with("directories too", case, path, '[ -f "$file" ]', '[ -e "$file" ]'),
        ),
        draft.require(
            "in byte order of the names (with LANG=C.UTF-8),",
            _with(
                "backwards",
                case,
                path,
                f'for file in "$1"/*.{extension}; do',
                f'mapfile -t files < <(printf "%s\\n" "$1"/*.{extension} | sort -r)\nfor file in "${{files[@]}}"; do',
            ),
        ),
        draft.require(
            f"and then a line '{label} TOTAL in COUNT' with the sum of those numbers and the number of files.",
            _with("the last number", case, path, "total=$((total + lines))", "total=$lines"),
            _with("another word", case, path, f'"{label} $total', '"Total: $total'),
            _with("one file too many", case, path, "count=0", "count=1"),
        ),
        draft.require(
            "Names may contain spaces.",
            _with("names without spaces only", case, path, f'"$1"/*.{extension}', f"$(ls $1/*.{extension})"),
        ),
        draft.require(
            f"Without any such file only '{label} 0 in 0' is printed.",
            _with("nothing where no file is", case, path, f'echo "{label}', f'[ $count = 0 ] || echo "{label}'),
        ),
        draft.require(
            "Nothing else may be printed to standard output.",
            _with("a word at first", case, path, "set -u\n", "set -u\necho Counting\n"),
        ),
    )
    draft.say(
        f"{root}/sample is a directory to try it with.",
        _executable(draft, path, case),
        draft.require(
            "and end with the exit status 0;",
            _with("another exit status", case, path, 'in $count"\n', 'in $count"\nexit 3\n'),
        ),
        "I will use directories of my own as well.",
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
                os.mkdir(os.path.join(folder, "folder.{extension}"))
                status, printed = run({path!r}, folder, folder=folder)
            assert status == 0, f"exit status {{status}}"
            assert digest(printed) == {digest(text.encode())!r}
            """,
        )


FAMILY = Family("debugging", "Repair programs with faults", (_report, _backup), ("python3",))
