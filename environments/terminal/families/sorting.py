"""Family: sorting, removing repeats, counting words."""

import re
from collections import Counter

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, WORDS


def _numeric(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('scores', 'population', 'votes', 'points')}.txt"
    target = source.replace(".txt", "-ranked.txt")
    descending = draft.chance(0.6)
    rows = [(name, draft.number(1, 10 ** draft.number(1, 5))) for name in draft.some(CITIES, draft.number(10, 18))]
    rows += [(f"{name}-North", value) for name, value in rows[:2]]
    rows += [("Alma", 90), ("Brno", 1000), ("Como", 1000)]
    rows = draft.shuffled(rows)
    draft.file(source, "".join(f"{name} {value}\n" for name, value in rows))
    draft.say(
        draft.pick(f"Rank the lines of {source}.", f"I need {source} in order."),
        "Each line is a name and a whole number, separated by a space.",
        f"! Write the same lines to {target},",
        f"! sorted by the number, {'largest' if descending else 'smallest'} first.",
        "! Lines with equal numbers are ordered by name, A to Z (byte order).",
        draft.every_line(),
    )
    oracle = f"LC_ALL=C sort -k 2,2n{'r' if descending else ''} -k 1,1 {source} > {target}\n"
    draft.solve(oracle, swap(oracle, "-k 2,2n", "-k 2,2"))


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
    draft.file(source, "".join(f"{line}\n" for line in lines))
    draft.say(
        draft.pick(f"{source} has many repeated lines.", f"Remove the repeats from {source}."),
        "! Two lines are the same if they differ at most in upper and lower case.",
        f"! Write {target} with just one line of each set of equal lines:",
        f"! the {'last' if keep_last else 'first'} one in the file, spelled exactly as it is there.",
        "! The lines that are kept stay in their original order; do not sort them.",
        draft.every_line(),
    )
    if keep_last:
        oracle = f"tac {source} | awk '!seen[tolower($0)]++' | tac > {target}\n"
        near = swap(oracle, "tolower($0)", "$0")
    else:
        oracle = f"awk '!seen[tolower($0)]++' {source} > {target}\n"
        near = f"LC_ALL=C sort -f -u {source} > {target}\n"
    draft.solve(oracle, near)


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
    draft.file(source, text)
    draft.say(
        draft.pick(f"What are the {top} most frequent words in {source}?", f"Count the words in {source}."),
        "! A word is a longest possible run of the letters A-Z and a-z;",
        "! upper and lower case are the same.",
        f"! Words shorter than {least} letters are left out.",
        f"! Write the {top} most frequent ones to {target}, one per line:",
        "! the count, a tab, the word in small letters.",
        "! Most frequent first;",
        "! words with the same count in alphabetical order.",
        draft.every_line(),
    )
    oracle = python("""
        import collections, re
        text = open(@source@).read().lower()
        counts = collections.Counter(word for word in re.findall("[a-z]+", text) if len(word) >= @least@)
        with open(@target@, "w") as target:
            for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:@top@]:
                print(count, word, sep="\\t", file=target)
        """)
    draft.solve(oracle, swap(oracle, ".read().lower()", ".read()"))


FAMILY = Family("sorting", "Sort, drop repeats, count words", (_numeric, _unique, _frequencies), ("python3",))
