"""Family: intersections, unions and differences of lists."""

from __future__ import annotations

from collections import Counter

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, HOSTS, LAST_NAMES, SERVICES

__all__ = ["FAMILY"]


def _lists(draft: Draft, count: int) -> list[list[str]]:
    pool = draft.pick(
        [f"{first.lower()}.{last.lower()}" for first, last in zip(FIRST_NAMES, LAST_NAMES, strict=False)],
        list(HOSTS),
        [f"{service}-{city.lower()}" for service, city in zip(SERVICES, CITIES, strict=False)],
    )
    names = draft.some(pool, draft.number(22, 30))
    lists: list[list[str]] = [[] for _ in range(count)]
    for index, name in enumerate(names):
        # Every combination of lists once, then any.
        number = index % (2**count - 1) + 1 if index < 2 * (2**count - 1) else draft.number(1, 2**count - 1)
        for place, entries in enumerate(lists):
            if number >> place & 1:
                entries.append(name)
    return [draft.shuffled([*entries, *draft.some(entries, 2)]) for entries in lists]


def _two(draft: Draft) -> None:
    root = draft.project()
    a, b = draft.pick(("before", "after"), ("invited", "confirmed"), ("expected", "actual"), ("licensed", "installed"))
    first, second = _lists(draft, 2)
    draft.file(f"{root}/{a}.txt", "".join(f"{name}\n" for name in first), keep=True)
    draft.file(f"{root}/{b}.txt", "".join(f"{name}\n" for name in second), keep=True)
    what = draft.pick("both", "first", "second", "either")
    names, option, spoken = {
        "both": (set(first) & set(second), "-12", f"in both {a}.txt and {b}.txt"),
        "first": (set(first) - set(second), "-23", f"in {a}.txt but not in {b}.txt"),
        "second": (set(second) - set(first), "-13", f"in {b}.txt but not in {a}.txt"),
        "either": (set(first) ^ set(second), "-3", f"in exactly one of {a}.txt and {b}.txt"),
    }[what]
    target = f"{root}/{draft.pick('result', 'comparison', 'names')}.txt"
    right, wrong = "* has the right lines", "-23" if what != "first" else "-12"
    operator = {"both": "&", "first": "-", "second": "-", "either": "^"}[what]
    sides = (b, a) if what == "second" else (a, b)
    draft.pieces(target)
    draft.honest(
        "from Python",
        instead=python(
            f"""
            one, other = (set(open(path).read().split()) for path in @paths@)
            open(@target@, "w").write("".join(name + "\\n" for name in sorted(one {operator} other)))
            """,
            paths=[f"{root}/{side}.txt" for side in sides],
            target=target,
        ),
    )
    draft.say(
        draft.pick(
            f"Compare the two lists {root}/{a}.txt and {root}/{b}.txt.",
            f"There are two lists of names, {root}/{a}.txt and {root}/{b}.txt.",
        ),
        "They have one name per line, in no particular order, and some names occur repeatedly.",
        draft.require(
            f"Write the names that are {spoken} to {target}:",
            breach("names of another kind", right, swap=(f"comm {option} ", f"comm {wrong} ")),
            breach("all names", right, swap=(f"comm {option} ", "comm ")),
            breach("a name left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require("each name once,", breach("a name twice", right, after=f"tail -n 1 {target} >> {target}")),
        draft.require(
            "one per line,",
            breach("all in one line", right, after=f"paste -s -d ' ' {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.require(
            "sorted in byte order (LC_ALL=C).",
            breach("backwards", "lines of * are in order", after=f"LC_ALL=C sort -r -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{name}\n" for name in sorted(names))
    draft.result(target, expected)
    oracle = (
        "export LC_ALL=C\n"
        f"comm {option} <(sort -u {root}/{a}.txt) <(sort -u {root}/{b}.txt) | tr -d '\\t' | sort > {target}\n"
    )
    draft.solve(oracle, swap(oracle, f"comm {option}", f"comm {wrong}"), expected)


def _several(draft: Draft) -> None:
    root = draft.project()
    days = draft.some(("monday", "tuesday", "wednesday", "thursday", "friday"), 3)
    lists = _lists(draft, 3)
    for index, (day, names) in enumerate(zip(days, lists, strict=True)):
        # Lines that do not count: in one list, in two, and in all.
        text = (
            f"# {day}\n# names\n"
            + ("# checked\n" if index else "")
            + "".join(draft.pick(f"{n}\n", f"{n}\n", f"  {n}\n", f"{n} \n", f"\n{n}\n") for n in names)
        )
        draft.file(f"{root}/{day}.list", text, keep=True)
    counts = Counter(name for names in lists for name in set(names))
    wanted = draft.pick(1, 2, 3)
    at_least = wanted == 2 and draft.chance(0.5)
    chosen = sorted(name for name, count in counts.items() if count == wanted or (at_least and count > wanted))
    target = f"{root}/{draft.pick('summary', 'attendance', 'overlap')}.txt"
    spoken = "all three" if wanted == 3 else f"{'at least' if at_least else 'exactly'} {('one', 'two')[wanted - 1]}"
    right = "* has the right lines"
    right_counts = (2, 3) if at_least else (wanted,)
    # Confusion of "exactly" and "at least".
    wrong = (2,) if at_least else (2, 3) if wanted > 1 else (1, 2, 3)
    draft.say(
        draft.pick(f"{root} has three lists:", f"There are three lists in {root}:"),
        f"{', '.join(f'{day}.list' for day in days)}, with one name per line.",
        draft.require(
            "Ignore empty lines, lines beginning with #, and spaces before and after a name.",
            breach("lines beginning with # too", right, swap=('name and not name.startswith("#")', "name")),
            breach("spaces after a name kept", right, swap=("line.strip()", 'line.lstrip().rstrip("\\n")')),
        ),
        draft.require(
            "A name that is repeated within one list counts once for that list.",
            breach(
                "repetitions counted",
                right,
                swap=("{line.strip() for line in open(path)}", "[line.strip() for line in open(path)]"),
            ),
        ),
        draft.require(
            f"Write all names that are in {spoken} of the three lists to {target}, one per line,",
            breach("another number of lists", right, swap=(f"in {right_counts!r}", f"in {wrong!r}")),
            breach("a name left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "sorted in byte order,",
            breach("backwards", "lines of * are in order", after=f"LC_ALL=C sort -r -o {target} {target}"),
        ),
        draft.require("each name once.", breach("a name twice", right, after=f"tail -n 1 {target} >> {target}")),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{name}\n" for name in chosen)
    draft.result(target, expected)
    oracle = python(
        """
        import collections
        counts = collections.Counter()
        for path in @paths@:
            names = {line.strip() for line in open(path)}
            counts.update(name for name in names if name and not name.startswith("#"))
        with open(@target@, "w") as target:
            for name, count in sorted(counts.items()):
                if count in @wanted@:
                    print(name, file=target)
        """,
        wanted=right_counts,
        paths=[f"{root}/{day}.list" for day in days],
        target=target,
    )
    draft.pieces(target)
    draft.honest(
        "by the tools of the shell",
        instead=f"cd {root}; for list in {' '.join(f'{day}.list' for day in days)}; do\n"
        "  sed 's/^ *//; s/ *$//; /^#/d; /^$/d' $list | sort -u\ndone | LC_ALL=C sort | uniq -c "
        f"| awk '$1 >= {right_counts[0]} && $1 <= {right_counts[-1]} {{ print $2 }}' > {target}",
    )
    draft.solve(oracle, swap(oracle, f"in {right_counts!r}", f"in {wrong!r}"), expected)


FAMILY = Family("set_operations", "Compare lists: common, missing, counted", (_two, _several), ("python3",))
