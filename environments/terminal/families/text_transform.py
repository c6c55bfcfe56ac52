"""Family: rewriting lines of text."""

import re

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, FIRST_NAMES, LAST_NAMES, WORDS


def _reorder(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('members', 'contacts', 'speakers', 'attendees')}.txt"
    target = source.replace(".txt", f"-{draft.pick('sorted', 'clean', 'list')}.txt")
    separator, spoken = draft.pick(("\t", "a tab"), (";", "a semicolon"), ("|", "a vertical bar"))
    firsts, lasts = draft.shuffled(FIRST_NAMES), draft.shuffled(LAST_NAMES)
    people = [(firsts[i], lasts[i], draft.number(100, 9999)) for i in range(draft.number(8, 16))]
    people.append((firsts[20], people[0][1], draft.number(100, 9999)))
    people = draft.shuffled(people)
    draft.file(source, "".join(f"{first} {last}: {number}\n" for first, last, number in people))
    shown = separator.replace("\t", "\\t")
    draft.say(
        draft.pick(f"{source} has a line for each person:", f"Please convert {source}, whose lines look like this:"),
        "\n    First Last: NUMBER",
        f"! \nWrite {target} with the same people in the form",
        "! \n    Last, First<separator>NUMBER",
        f"! \nwhere <separator> is {spoken} with no spaces around it.",
        "! Sort by last name",
        "! and, among equal last names, by first name.",
        draft.every_line(),
    )
    oracle = (
        f"LC_ALL=C sort -k 2,2 -k 1,1 {source} | sed -E 's/^([^ ]+) ([^:]+): (.*)$/\\2, \\1{shown}\\3/' > {target}\n"
    )
    # The colon after the last name sorts between digits and letters. Names are letters, so the order is unaffected.
    draft.solve(oracle, swap(oracle, "-k 2,2 -k 1,1", "-k 1,1"))


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
    draft.say(
        draft.pick(
            f"We renamed something: {old!r} is now called {new!r}.",
            f"Please replace the word {old!r} by {new!r} in our notes.",
        ),
        f"! In every file below {root} (at any depth) whose name ends in .txt, replace each occurrence of the word "
        f"{old} by {new}, in place.",
        f"! Only the whole word in small letters counts: {longer}, un{old} and {old.capitalize()} stay,",
        f"! but ({old}) and {old} before a comma or full stop are replaced.",
        "! All other text, all other files and all names stay exactly as they are; nothing is added.",
    )
    oracle = f"find {root} -type f -name '*.txt' -exec sed -i 's/\\b{old}\\b/{new}/g' {{}} +\n"
    draft.solve(oracle, swap(oracle, f"\\b{old}\\b", old))


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
    draft.file(source, text)
    draft.say(
        draft.pick(f"The text in {source} is hard-wrapped.", f"{source} was wrapped by an old mail program."),
        "Its paragraphs are separated by one or more empty lines.",
        f"! Write {target} with each paragraph on one line, in the same order:",
        "! join its lines with single spaces, with no spaces at the beginning or the end of a line of the original "
        "surviving the join.",
        "! Put the paragraph's number, a full stop and a space in front, counting from 1, so that the file begins "
        'with "1. ".',
        "! There are no empty lines in the result.",
        draft.every_line(),
    )
    oracle = (
        'awk \'BEGIN { RS = "" } { gsub(/[ \\n]+/, " "); sub(/^ /, ""); sub(/ $/, ""); print NR ". " $0 }\' '
        f"{source} > {target}\n"
    )
    draft.solve(oracle, swap(oracle, "print NR ", "print NR - 1 "))


def _columns(draft: Draft) -> None:
    """Write a task that lines up text in columns."""
    root = draft.project()
    source = f"{root}/{draft.pick('table', 'stock', 'scores', 'listing')}.txt"
    target = f"{root}/{draft.pick('aligned', 'formatted', 'pretty')}.txt"
    rows = [
        (word, draft.pick(*DEPARTMENTS), str(draft.number(1, 10 ** draft.number(1, 5))))
        for word in draft.some(WORDS, draft.number(7, 13))
    ]
    draft.file(source, "".join(f"{a}:{b}:{c}\n" for a, b, c in rows))
    draft.say(
        draft.pick(f"I'd like to print {source} nicely.", f"Make the table in {source} readable."),
        "Each line has three fields separated by colons.",
        f"! Write them in the same order to {target},",
        "! as columns separated by two spaces.",
        "! Each column is exactly as wide as its longest field.",
        "! The first two columns are padded with spaces on the right (left-aligned),",
        "! the third on the left (right-aligned), so no line ends with a space.",
        draft.every_line(),
    )
    oracle = python("""
        rows = [line.rstrip("\\n").split(":") for line in open(@source@)]
        a, b, c = (max(map(len, column)) for column in zip(*rows))
        with open(@target@, "w") as target:
            for row in rows:
                print(row[0].ljust(a), row[1].ljust(b), row[2].rjust(c), sep="  ", file=target)
        """)
    draft.solve(oracle, swap(oracle, 'sep="  "', 'sep=" "'))


FAMILY = Family(
    "text_transform",
    "Reorder fields, replace words, unwrap paragraphs, align columns",
    (_reorder, _replace, _columns, _unwrap),
    ("python3",),
)
