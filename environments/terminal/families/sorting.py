"""Family: sorting, removing repeats, counting words."""

from __future__ import annotations

import re
from collections import Counter

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, WORDS

__all__ = ["FAMILY"]


def _numeric(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('scores', 'population', 'votes', 'points')}.txt"
    target = source.replace(".txt", "-ranked.txt")
    descending = draft.chance(0.6)
    rows = [(name, draft.number(1, 10 ** draft.number(1, 5))) for name in draft.some(CITIES, draft.number(10, 18))]
    rows += [(f"{name}-North", value) for name, value in rows[:2]]
    rows += [("Alma", 90), ("Brno", 1000), ("Como", 1000)]
    rows = draft.shuffled(rows)
    draft.file(source, "".join(f"{name} {value}\n" for name, value in rows), keep=True)
    ordered = sorted(rows, key=lambda row: (-row[1] if descending else row[1], row[0]))
    expected = "".join(f"{name} {value}\n" for name, value in ordered)
    right, order = "* has the right lines", "lines of * are in order"
    draft.say(
        draft.pick(f"Rank the lines of {source}.", f"I need {source} in order."),
        "Each line is a name and a whole number, separated by a space.",
        draft.require(
            f"Write the same lines to {target},",
            breach("a line left out", right, after=f"sed -i '$d' {target}"),
            breach("a line twice", right, after=f"tail -n 1 {target} >> {target}"),
            breach("the numbers alone", right, after=f"sed -i 's/.* //' {target}"),
            breach("a tab in between", right, after=f"sed -i 's/ /\\t/' {target}"),
        ),
        draft.require(
            f"sorted by the number, {'largest' if descending else 'smallest'} first.",
            breach("numbers as text", order, swap=("-k 2,2n", "-k 2,2")),
            breach("the other end first", order, swap=("2,2nr", "2,2n") if descending else ("2,2n", "2,2nr")),
            breach("as they come", order, instead=f"cp {source} {target}"),
        ),
        draft.require(
            "Lines with equal numbers are ordered by name, A to Z (byte order).",
            breach("Z to A", order, swap=("-k 1,1", "-k 1,1r")),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = f"LC_ALL=C sort -k 2,2n{'r' if descending else ''} -k 1,1 {source} > {target}\n"
    draft.pieces(target)
    draft.honest(
        "from Python",
        instead=python(
            """
            rows = [line.split() for line in open(@source@)]
            rows.sort(key=lambda row: (@sign@ * int(row[1]), row[0]))
            open(@target@, "w").writelines(" ".join(row) + "\\n" for row in rows)
            """,
            source=source,
            target=target,
            sign=-1 if descending else 1,
        ),
    )
    draft.solve(oracle, swap(oracle, "-k 2,2n", "-k 2,2"), expected)


def _unique(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('tags', 'keywords', 'emails', 'subscribers')}.txt"
    target = source.replace(".txt", "-unique.txt")
    keep_last = draft.chance(0.4)
    lines: list[str] = []
    for word in draft.some(WORDS, draft.number(12, 20)):
        repeats = draft.pick(1, 1, 2, 3) if lines else 3
        lines += [draft.pick(word, word.capitalize(), word.upper()) for _ in range(repeats)]
    lines = draft.shuffled(lines)
    draft.file(source, "".join(f"{line}\n" for line in lines), keep=True)
    seen: dict[str, str] = {}
    for line in lines[::-1] if keep_last else lines:
        seen.setdefault(line.lower(), line)
    kept = list(seen.values())
    expected = "".join(f"{line}\n" for line in (kept[::-1] if keep_last else kept))
    right, order = "* has the right lines", "lines of * are in order"
    other = kept[0].lower() if kept[0] != kept[0].lower() else kept[0].upper()
    draft.pieces(target)
    draft.honest(
        "from Python",
        instead=python(
            """
            lines = open(@source@).read().splitlines()[::@step@]
            kept = {}
            for line in lines:
                kept.setdefault(line.lower(), line)
            open(@target@, "w").write("".join(line + "\\n" for line in list(kept.values())[::@step@]))
            """,
            source=source,
            target=target,
            step=-1 if keep_last else 1,
        ),
    )
    draft.say(
        draft.pick(f"{source} has many repeated lines.", f"Remove the repeats from {source}."),
        draft.require(
            "Two lines are the same if they differ at most in upper and lower case.",
            breach("cases apart", right, swap=("tolower($0)", "$0")),
        ),
        draft.require(
            f"Write {target} with just one line of each set of equal lines:",
            breach("a line twice", right, after=f"tail -n 1 {target} >> {target}"),
            breach("a line left out", right, after=f"sed -i '$d' {target}"),
            breach("lines that are there once", right, after=f"head -n 2 {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.require(
            f"the {'last' if keep_last else 'first'} one in the file, spelled exactly as it is there.",
            breach("all in small letters", right, after=f"tr A-Z a-z < {target} > ~/t; cat ~/t > {target}"),
            breach("the other one of a set", right, after=f"sed -i 's/^{kept[0]}$/{other}/' {target}"),
        ),
        draft.require(
            "The lines that are kept stay in their original order; do not sort them.",
            breach("sorted", order, after=f"LC_ALL=C sort -f -o {target} {target}"),
            breach("backwards", order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    if keep_last:
        oracle = f"tac {source} | awk '!seen[tolower($0)]++' | tac > {target}\n"
        near = swap(oracle, "tolower($0)", "$0")
    else:
        oracle = f"awk '!seen[tolower($0)]++' {source} > {target}\n"
        near = f"LC_ALL=C sort -f -u {source} > {target}\n"
    draft.solve(oracle, near, expected)


def _frequencies(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('story', 'speech', 'transcript', 'chapter')}.txt"
    target = source.replace(".txt", "-words.tsv")
    top, least = draft.number(6, 12), draft.number(3, 4)
    words = draft.some([word for word in WORDS if len(word) > 2], 30)
    text = ""
    while len(text) < 1500:
        line = " ".join(words[min(draft.number(0, 29), draft.number(0, 29))] for _ in range(draft.number(6, 10)))
        line += draft.pick(".", "!", ", it is", "; we'd go", " - 3 of 12")
        text += line.capitalize() + draft.pick("\n", " ") + draft.pick("", "", words[0].upper() + " ")
    # Two equally frequent words, and short words that would be among the most frequent.
    counts = Counter(word for word in re.findall(r"[a-z]+", text.lower()) if len(word) >= least)
    (_, most), (second, some) = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[1:3]
    text += f" {second}" * (most - some) + "\n" + "It is so. " * most
    text = text.rstrip() + "\n"
    draft.file(source, text, keep=True)
    counts = Counter(word for word in re.findall(r"[a-z]+", text.lower()) if len(word) >= least)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top]
    expected = "".join(f"{count}\t{word}\n" for word, count in ordered)
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "by the tools of the shell",
        instead=f"tr A-Z a-z < {source} | tr -cs a-z '\\n' | awk 'length >= {least}' | LC_ALL=C sort | uniq -c "
        f"| LC_ALL=C sort -k 1,1nr -k 2,2 | head -n {top} | sed 's/^ *//; s/ /\\t/' > {target}",
    )
    draft.say(
        draft.pick(f"What are the {top} most frequent words in {source}?", f"Count the words in {source}."),
        draft.require(
            "A word is a longest possible run of the letters A-Z and a-z;",
            breach("words between spaces", right, swap=('re.findall("[a-z]+", text)', "text.split()")),
        ),
        draft.require(
            "upper and lower case are the same.",
            breach("capitals left out", right, swap=(".read().lower()", ".read()")),
        ),
        draft.require(
            f"Words shorter than {least} letters are left out.",
            breach("all words", right, swap=(f"len(word) >= {least}", "word")),
        ),
        draft.require(
            f"Write the {top} most frequent ones to {target}, one per line:",
            breach("one more", right, swap=(f"[:{top}]", f"[:{top + 1}]")),
            breach("one less", right, swap=(f"[:{top}]", f"[:{top - 1}]")),
        ),
        draft.require(
            "the count, a tab, the word in small letters.",
            breach("the word first", right, swap=("print(count, word", "print(word, count")),
            breach("a space", right, swap=('sep="\\t"', 'sep=" "')),
            breach("capitals", right, swap=("print(count, word", "print(count, word.upper()")),
        ),
        draft.require("Most frequent first;", breach("backwards", order, after=f"sort -n -o {target} {target}")),
        draft.require(
            "words with the same count in alphabetical order.",
            breach("words with the same count backwards", order, after=f"sort -k 1,1nr -k 2,2r -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    oracle = python(
        """
        import collections, re
        text = open(@source@).read().lower()
        counts = collections.Counter(word for word in re.findall("[a-z]+", text) if len(word) >= @least@)
        with open(@target@, "w") as target:
            for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:@top@]:
                print(count, word, sep="\\t", file=target)
        """,
        source=source,
        target=target,
        least=least,
        top=top,
    )
    draft.solve(oracle, swap(oracle, ".read().lower()", ".read()"), expected)


FAMILY = Family("sorting", "Sort, drop repeats, count words", (_numeric, _unique, _frequencies), ("python3",))
