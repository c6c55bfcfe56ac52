"""Family: intersections, unions and differences of lists."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, FIRST_NAMES, HOSTS, LAST_NAMES, SERVICES


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
    draft.file(f"{root}/{a}.txt", "".join(f"{name}\n" for name in first))
    draft.file(f"{root}/{b}.txt", "".join(f"{name}\n" for name in second))
    what = draft.pick("both", "first", "second", "either")
    option, spoken = {
        "both": ("-12", f"in both {a}.txt and {b}.txt"),
        "first": ("-23", f"in {a}.txt but not in {b}.txt"),
        "second": ("-13", f"in {b}.txt but not in {a}.txt"),
        "either": ("-3", f"in exactly one of {a}.txt and {b}.txt"),
    }[what]
    target = f"{root}/{draft.pick('result', 'comparison', 'names')}.txt"
    wrong = "-23" if what != "first" else "-12"
    draft.say(
        draft.pick(
            f"Compare the two lists {root}/{a}.txt and {root}/{b}.txt.",
            f"There are two lists of names, {root}/{a}.txt and {root}/{b}.txt.",
        ),
        "They have one name per line, in no particular order, and some names occur repeatedly.",
        f"! Write the names that are {spoken} to {target}:",
        "! each name once,",
        "! one per line,",
        "! sorted in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    oracle = (
        "export LC_ALL=C\n"
        f"comm {option} <(sort -u {root}/{a}.txt) <(sort -u {root}/{b}.txt) | tr -d '\\t' | sort > {target}\n"
    )
    draft.solve(oracle, swap(oracle, f"comm {option}", f"comm {wrong}"))


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
        draft.file(f"{root}/{day}.list", text)
    wanted = draft.pick(1, 2, 3)
    at_least = wanted == 2 and draft.chance(0.5)
    target = f"{root}/{draft.pick('summary', 'attendance', 'overlap')}.txt"
    spoken = "all three" if wanted == 3 else f"{'at least' if at_least else 'exactly'} {('one', 'two')[wanted - 1]}"
    right_counts = (2, 3) if at_least else (wanted,)
    # Confusion of "exactly" and "at least".
    wrong = (2,) if at_least else (2, 3) if wanted > 1 else (1, 2, 3)
    draft.say(
        draft.pick(f"{root} has three lists:", f"There are three lists in {root}:"),
        f"{', '.join(f'{day}.list' for day in days)}, with one name per line.",
        "! Ignore empty lines, lines beginning with #, and spaces before and after a name.",
        "! A name that is repeated within one list counts once for that list.",
        f"! Write all names that are in {spoken} of the three lists to {target}, one per line,",
        "! sorted in byte order,",
        "! each name once.",
        draft.every_line(),
    )
    oracle = python(
        """
        import collections
        counts = collections.Counter()
        for path in @paths@:
            names = {line.strip() for line in open(path)}
            counts.update(name for name in names if name and not name.startswith("#"))
        with open(@target@, "w") as target:
            for name, count in sorted(counts.items()):
                if count in @right_counts@:
                    print(name, file=target)
        """,
        paths=[f"{root}/{day}.list" for day in days],
    )
    draft.solve(oracle, swap(oracle, f"in {right_counts!r}", f"in {wrong!r}"))


FAMILY = Family("set_operations", "Compare lists: common, missing, counted", (_two, _several), ("python3",))
