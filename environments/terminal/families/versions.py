"""Family: version numbers."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import PRODUCTS, WORDS

_Version = tuple[int, int, int]


def _text(version: _Version) -> str:
    return ".".join(map(str, version))


def _sort(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('versions', 'tags', 'releases')}.txt"
    target = source.replace(".txt", "-sorted.txt")
    prefix = draft.pick("", "v", "release-")
    newest_first = draft.chance(0.5)
    versions = {(draft.number(0, 12), draft.number(0, 25), draft.number(0, 40)) for _ in range(draft.number(12, 20))}
    versions |= {(1, 9, 3), (1, 10, 0), (1, 9, 12)}
    draft.file(source, "".join(f"{prefix}{_text(v)}\n" for v in draft.shuffled(sorted(versions))))
    draft.say(
        draft.pick(f"Sort the version numbers in {source}.", f"Please put the versions listed in {source} in order."),
        f"Each line is {f'{prefix!r} and ' if prefix else ''}three numbers joined by dots.",
        "! Compare versions number by number (1.10.0 is newer than 1.9.3)",
        f"! and write the lines to {target},",
        f"! {'newest' if newest_first else 'oldest'} first.",
        draft.every_line(),
    )
    oracle = f"sort -V{' -r' if newest_first else ''} {source} > {target}\n"
    draft.solve(oracle, swap(oracle, "sort -V", "LC_ALL=C sort"))


def _latest(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('packages', 'index', 'registry')}.txt"
    target = f"{root}/{draft.pick('latest', 'stable', 'current')}.txt"
    lines: list[str] = []
    for index, name in enumerate(draft.some(PRODUCTS, draft.number(5, 9))):
        major = draft.number(1, 9)
        versions = {(major, minor, draft.number(0, 20)) for minor in draft.some(range(7, 13), draft.number(2, 4))}
        if index == 0:  # lower when compared as text
            versions |= {(major, 9, draft.number(0, 20)), (major, 13, 0)}
        lines += [f"{name} {_text(version)}\n" for version in versions]
        if index == 0 or draft.chance(0.6):
            lines.append(
                f"{name} {_text((major + 1, 0, 0))}-{draft.pick('rc', 'beta', 'alpha')}.{draft.number(1, 3)}\n"
            )
    draft.file(source, "".join(draft.shuffled(sorted(lines))))
    draft.say(
        draft.pick(
            f"Which is the latest stable version of each package in {source}?",
            f"{source} lists packages and their versions.",
        ),
        "Each line is a package name and a version MAJOR.MINOR.PATCH, separated by a space.",
        "! Versions with a suffix after a hyphen (such as -rc.1) are pre-releases and not stable.",
        "! Versions compare number by number.",
        f"! Write the latest stable version of each package to {target}",
        "! in the same form,",
        "! one line per package,",
        "! sorted by package name.",
        draft.every_line(),
    )
    oracle = python("""
        latest = {}
        for line in open(@source@):
            name, version = line.split()
            if "-" in version:
                continue
            numbers = tuple(int(part) for part in version.split("-")[0].split("."))
            latest[name] = max(latest.get(name, (0,)), numbers)
        with open(@target@, "w") as target:
            for name in sorted(latest):
                print(name, ".".join(map(str, latest[name])), file=target)
        """)
    draft.solve(oracle, swap(oracle, 'if "-" in version', "if not version"))


def _updates(draft: Draft) -> None:
    root = draft.project()
    installed: dict[str, _Version] = {}
    available: list[str] = []
    for index, name in enumerate(sorted(draft.some(WORDS, draft.number(7, 12)))):
        here = (draft.number(1, 9), draft.number(0, 12) if index else draft.number(0, 7), draft.number(0, 15))
        installed[name] = here
        offers = [here, (here[0], here[1], here[2] // 2), (max(here[0] - 1, 0), 99, 0)]
        kind = index if index < 3 else draft.number(0, 2)
        if kind in (0, 1):
            best = (here[0], here[1] + draft.number(1, 12), draft.number(0, 12))
            if index == 0:  # lower when compared as text
                best = (here[0], 13, best[2])
                offers.append((here[0], 9, 1))
            offers += [best, (here[0], here[1], here[2] + draft.number(1, 9))]
        if kind in (1, 2):
            offers.append((here[0] + 1, 0, draft.number(0, 5)))
        available += [f"{name}=={_text(offer)}\n" for offer in offers]
    draft.file(f"{root}/installed.txt", "".join(f"{n}=={_text(v)}\n" for n, v in installed.items()))
    draft.file(f"{root}/available.txt", "".join(draft.shuffled(available)))
    target = f"{root}/{draft.pick('updates', 'upgrades', 'outdated')}.txt"
    draft.say(
        draft.pick(
            f"Which packages in {root}/installed.txt can be updated safely?", "I want to know which updates are safe."
        ),
        f"{root}/installed.txt has the installed version of each package and {root}/available.txt all versions on "
        "offer, as lines name==MAJOR.MINOR.PATCH.",
        "! A safe update is the highest available version",
        "! that has the same MAJOR as the installed one",
        "! and is newer than it;",
        "! versions compare number by number.",
        f"! Write one line for each package that has a safe update to {target},",
        "! sorted by name:",
        "! \n    name INSTALLED -> UPDATE",
        "\nfor instance: lamp 1.4.0 -> 1.10.2.",
        draft.every_line(),
    )
    oracle = python("""
        def read(path):
            for line in open(path):
                name, _, version = line.strip().partition("==")
                yield name, tuple(int(part) for part in version.split("."))
        installed = dict(read(@root@ + "/installed.txt"))
        best = dict(installed)
        for name, version in read(@root@ + "/available.txt"):
            if version[0] == installed[name][0]:
                best[name] = max(best[name], version)
        with open(@target@, "w") as target:
            for name in sorted(installed):
                if best[name] > installed[name]:
                    old, new = (".".join(map(str, version)) for version in (installed[name], best[name]))
                    print(f"{name} {old} -> {new}", file=target)
        """)
    draft.solve(oracle, swap(oracle, "if version[0] == installed[name][0]", "if version"))


FAMILY = Family("versions", "Sort and compare version numbers", (_sort, _latest, _updates), ("python3",))
