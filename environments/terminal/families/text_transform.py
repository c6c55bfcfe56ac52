"""Family: rewriting lines of text."""

from __future__ import annotations

import re

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, FIRST_NAMES, LAST_NAMES, WORDS

__all__ = ["FAMILY"]


def _reorder(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('members', 'contacts', 'speakers', 'attendees')}.txt"
    target = source.replace(".txt", f"-{draft.pick('sorted', 'clean', 'list')}.txt")
    separator, spoken = draft.pick(("\t", "a tab"), (";", "a semicolon"), ("|", "a vertical bar"))
    firsts, lasts = draft.shuffled(FIRST_NAMES), draft.shuffled(LAST_NAMES)
    people = [(firsts[i], lasts[i], draft.number(100, 9999)) for i in range(draft.number(8, 16))]
    people.append((firsts[20], people[0][1], draft.number(100, 9999)))
    people = draft.shuffled(people)
    draft.file(source, "".join(f"{first} {last}: {number}\n" for first, last, number in people), keep=True)
    lines = [
        f"{last}, {first}{separator}{number}\n" for first, last, number in sorted(people, key=lambda p: (p[1], p[0]))
    ]
    shown = separator.replace("\t", "\\t")
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "from Python",
        instead=python(
            """
            people = [line.strip().replace(":", "").split(" ") for line in open(@source@)]
            with open(@target@, "w") as file:
                for first, last, number in sorted(people, key=lambda person: (person[1], person[0])):
                    file.write(f"{last}, {first}" + @separator@ + number + "\\n")
            """,
            source=source,
            target=target,
            separator=separator,
        ),
    )
    draft.say(
        draft.pick(f"{source} has a line for each person:", f"Please convert {source}, whose lines look like this:"),
        "\n    First Last: NUMBER",
        draft.require(
            f"\nWrite {target} with the same people in the form",
            breach("one left out", right, after=f"sed -i '$d' {target}"),
            breach("one twice", right, after=f"tail -n 1 {target} >> {target}"),
        ),
        draft.require(
            "\n    Last, First<separator>NUMBER",
            breach("first names first", right, swap=("\\2, \\1", "\\1, \\2")),
            breach("no comma", right, swap=("\\2, \\1", "\\2 \\1")),
        ),
        draft.require(
            f"\nwhere <separator> is {spoken} with no spaces around it.",
            breach("a space before it", right, swap=(f"\\1{shown}", f"\\1 {shown}")),
            breach("a space after it", right, swap=(f"{shown}\\3", f"{shown} \\3")),
            breach("another one", right, swap=(f"{shown}\\3", "@\\3")),
        ),
        draft.require("Sort by last name", breach("by first names", order, swap=("-k 2,2 -k 1,1", "-k 1,1"))),
        draft.require(
            "and, among equal last names, by first name.",
            breach("first names backwards", order, swap=("-k 2,2 -k 1,1", "-k 2,2 -k 1,1r")),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(lines))
    oracle = (
        f"LC_ALL=C sort -k 2,2 -k 1,1 {source} | sed -E 's/^([^ ]+) ([^:]+): (.*)$/\\2, \\1{shown}\\3/' > {target}\n"
    )
    # The colon after the last name sorts between digits and letters. Names are letters, so the order is unaffected.
    draft.solve(oracle, swap(oracle, "-k 2,2 -k 1,1", "-k 1,1"), "".join(lines))


def _replace(draft: Draft) -> None:
    root = draft.project()
    old, longer = draft.pick(
        ("red", "redwood"),
        ("sea", "season"),
        ("corn", "corner"),
        ("car", "carbon"),
        ("ice", "iceberg"),
        ("pin", "pine"),
    )
    new = draft.pick(*[word for word in WORDS if len(word) == 7])
    expected: dict[str, bytes] = {}
    for index, name in enumerate(draft.some(DEPARTMENTS, draft.number(5, 8))):
        lines: list[str] = []
        for _ in range(draft.number(3, 8)):
            words = [draft.pick(*WORDS) for _ in range(draft.number(4, 9))]
            for special in draft.some((old, longer, old.capitalize(), f"{old},", f"({old})", f"un{old}"), 2):
                words.insert(draft.number(0, len(words)), special)
            lines.append(" ".join(words) + draft.pick(".", "", "!"))
        if index < 2:
            lines.append(f"{old} {longer} {old.upper()} ({old}) {old}, un{old} {old.capitalize()} {old}")
        text = "".join(f"{line}\n" for line in lines)
        extension = "md" if index == 1 else "txt" if index < 3 else draft.pick("txt", "md")
        folder = draft.pick("", "notes/", "notes/old/") if index else "notes/"
        draft.file(f"{root}/{folder}{name}.{extension}", text)
        changed = re.sub(rf"\b{old}\b", new, text) if extension == "txt" else text
        expected[f"{folder}{name}.{extension}"] = changed.encode()
    base = root.rpartition("/")[2]
    right, more, first = f"files of {base} have the right content", f"{base} holds nothing else", next(iter(expected))
    draft.honest("closed to others", after="chmod -R go-rwx .")
    draft.honest(
        "from Python",
        instead=python(
            """
            import pathlib, re
            for path in pathlib.Path(@root@).rglob("*.txt"):
                path.write_text(re.sub(r"\\b" + @old@ + r"\\b", @new@, path.read_text()))
            """,
            root=root,
            old=old,
            new=new,
        ),
    )
    draft.say(
        draft.pick(
            f"We renamed something: {old!r} is now called {new!r}.",
            f"Please replace the word {old!r} by {new!r} in our notes.",
        ),
        draft.require(
            f"In every file below {root} (at any depth) whose name ends in .txt, replace each occurrence of the word "
            f"{old} by {new}, in place.",
            breach("files at the top only", right, swap=("-type f", "-maxdepth 1 -type f")),
            breach("the first of each line", right, swap=("/g' {}", "/' {}")),
            breach("old files kept", more, swap=("sed -i ", "sed -i.bak ")),
        ),
        draft.require(
            f"Only the whole word in small letters counts: {longer}, un{old} and {old.capitalize()} stay,",
            breach("parts of words", right, swap=(f"\\b{old}\\b", old)),
            breach("beginnings of words", right, swap=(f"\\b{old}\\b", f"\\b{old}")),
            breach("capitals too", right, swap=("/g' {}", "/gI' {}")),
        ),
        draft.require(
            f"but ({old}) and {old} before a comma or full stop are replaced.",
            breach("words between spaces", right, swap=(f"s/\\b{old}\\b/{new}/g", f"s/ {old} / {new} /g")),
        ),
        draft.require(
            "All other text, all other files and all names stay exactly as they are; nothing is added.",
            breach("other files too", right, swap=("-name '*.txt'", "-name '*'")),
            breach("one more file", more, after=f"echo more > {root}/leftover"),
            breach("one more directory", more, after=f"mkdir {root}/leftover"),
            breach("a file renamed", right, more, after=f"mv {first} {first}.new"),
            breach("no newline at the end of one", right, after=f"truncate -s -1 {first}"),
        ),
    )
    draft.final.files(root, expected)
    oracle = f"find {root} -type f -name '*.txt' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +\n"
    draft.solve(oracle, swap(oracle, f"\\b{old}\\b", old), f"{old} -> {new}")


def _unwrap(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('essay', 'minutes', 'article', 'letter')}.txt"
    target = source.replace(".txt", "-paragraphs.txt")
    paragraphs: list[str] = []
    text = ""
    for number in range(draft.number(4, 8)):
        sentence = " ".join(draft.prose(draft.number(5, 9)) for _ in range(draft.number(2, 4)))
        words = sentence.split(" ")
        lines: list[str] = []
        while words:
            width = draft.number(4, 8)
            lines.append(draft.pick("", "", "  ") + " ".join(words[:width]) + draft.pick("", "", " "))
            words = words[width:]
        text += ("\n" * draft.number(1, 3) if number else "") + "".join(f"{line}\n" for line in lines)
        paragraphs.append(sentence)
    draft.file(source, text, keep=True)
    expected = "".join(f"{number}. {paragraph}\n" for number, paragraph in enumerate(paragraphs, 1))
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "from Python",
        instead=python(
            """
            import re
            parts = re.split("\\n\\n+", open(@source@).read().strip())
            with open(@target@, "w") as file:
                for number, part in enumerate(parts, 1):
                    print(f"{number}. {' '.join(part.split())}", file=file)
            """,
            source=source,
            target=target,
        ),
    )
    draft.say(
        draft.pick(f"The text in {source} is hard-wrapped.", f"{source} was wrapped by an old mail program."),
        "Its paragraphs are separated by one or more empty lines.",
        draft.require(
            f"Write {target} with each paragraph on one line, in the same order:",
            breach("backwards", order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
            breach("two lines", right, after=f"sed -i '1s/ /\\n/3' {target}"),
            breach("a paragraph left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "join its lines with single spaces, with no spaces at the beginning or the end of a line of the original "
            "surviving the join.",
            breach("two spaces", right, after=f"sed -i 's/ /  /3' {target}"),
            breach("a space at the end", right, after=f"sed -i 's/$/ /' {target}"),
            breach("no spaces", right, swap=('gsub(/[ \\n]+/, " ")', 'gsub(/[ \\n]+/, "")')),
        ),
        draft.require(
            "Put the paragraph's number, a full stop and a space in front, counting from 1, so that the file begins "
            'with "1. ".',
            breach("counted from 0", right, swap=("print NR ", "print NR - 1 ")),
            breach("no numbers", right, after=f"sed -i 's/^[0-9]*[.] //' {target}"),
            breach("brackets", right, swap=('". "', '") "')),
        ),
        draft.require(
            "There are no empty lines in the result.",
            breach("empty lines in between", right, after=f"sed -i '$!G' {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = (
        'awk \'BEGIN { RS = "" } { gsub(/[ \\n]+/, " "); sub(/^ /, ""); sub(/ $/, ""); print NR ". " $0 }\' '
        f"{source} > {target}\n"
    )
    draft.solve(oracle, swap(oracle, "print NR ", "print NR - 1 "), expected)


def _columns(draft: Draft) -> None:
    """Write a task that lines up text in columns."""
    root = draft.project()
    source = f"{root}/{draft.pick('table', 'stock', 'scores', 'listing')}.txt"
    target = f"{root}/{draft.pick('aligned', 'formatted', 'pretty')}.txt"
    rows = [
        (word, draft.pick(*DEPARTMENTS), str(draft.number(1, 10 ** draft.number(1, 5))))
        for word in draft.some(WORDS, draft.number(7, 13))
    ]
    draft.file(source, "".join(f"{a}:{b}:{c}\n" for a, b, c in rows), keep=True)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    expected = "".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}\n" for a, b, c in rows)
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "by awk",
        instead=f"awk -F : -v form='%-{widths[0]}s  %-{widths[1]}s  %{widths[2]}s' "
        f"'{{ printf form, $1, $2, $3; print \"\" }}' {source} > {target}",
    )
    draft.say(
        draft.pick(f"I'd like to print {source} nicely.", f"Make the table in {source} readable."),
        "Each line has three fields separated by colons.",
        draft.require(
            f"Write them in the same order to {target},",
            breach("backwards", order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
            breach("a line left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "as columns separated by two spaces.",
            breach("one space", right, swap=('sep="  "', 'sep=" "')),
            breach("a tab", right, swap=('sep="  "', 'sep="\\t"')),
        ),
        draft.require(
            "Each column is exactly as wide as its longest field.",
            breach("one space more", right, swap=("ljust(a)", "ljust(a + 1)")),
            breach("twenty letters", right, swap=("ljust(b)", "ljust(20)")),
        ),
        draft.require(
            "The first two columns are padded with spaces on the right (left-aligned),",
            breach("the first on the left", right, swap=("ljust(a)", "rjust(a)")),
            breach("the second on the left", right, swap=("ljust(b)", "rjust(b)")),
        ),
        draft.require(
            "the third on the left (right-aligned), so no line ends with a space.",
            breach("the third on the right", right, swap=("rjust(c)", "ljust(c)")),
            breach("zeros", right, swap=("rjust(c)", "rjust(c, '0')")),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        rows = [line.rstrip("\\n").split(":") for line in open(@source@)]
        a, b, c = (max(map(len, column)) for column in zip(*rows))
        with open(@target@, "w") as target:
            for row in rows:
                print(row[0].ljust(a), row[1].ljust(b), row[2].rjust(c), sep="  ", file=target)
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, 'sep="  "', 'sep=" "'), expected)


FAMILY = Family(
    "text_transform",
    "Reorder fields, replace words, unwrap paragraphs, align columns",
    (_reorder, _replace, _columns, _unwrap),
    ("python3",),
)
