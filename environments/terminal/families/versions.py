"""Family: version numbers."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import PRODUCTS, WORDS

__all__ = ["FAMILY"]

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
    ordered = sorted(versions, reverse=newest_first)
    draft.file(source, "".join(f"{prefix}{_text(v)}\n" for v in draft.shuffled(sorted(versions))), keep=True)
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "from Python",
        instead=python(
            """
            import re
            lines = open(@source@).read().splitlines()
            lines.sort(key=lambda line: [int(part) for part in re.findall("[0-9]+", line)], reverse=@newest@)
            open(@target@, "w").write("".join(line + "\\n" for line in lines))
            """,
            source=source,
            target=target,
            newest=newest_first,
        ),
    )
    draft.say(
        draft.pick(f"Sort the version numbers in {source}.", f"Please put the versions listed in {source} in order."),
        f"Each line is {f'{prefix!r} and ' if prefix else ''}three numbers joined by dots.",
        draft.require(
            "Compare versions number by number (1.10.0 is newer than 1.9.3)",
            breach("versions as text", order, swap=("sort -V", "LC_ALL=C sort")),
            breach("the first number alone", order, after=f"sort -s -t . -k 2,2n -o {target} {target}"),
        ),
        draft.require(
            f"and write the lines to {target},",
            breach("a line left out", right, after=f"sed -i '$d' {target}"),
            breach("a line twice", right, after=f"tail -n 1 {target} >> {target}"),
            breach("other lines", right, after=f"sed -i 's/^/version /' {target}"),
            breach("the last number left out", right, after=f"sed -i 's/[.][0-9]*$//' {target}"),
        ),
        draft.require(
            f"{'newest' if newest_first else 'oldest'} first.",
            breach("the other end first", order, after=f"tac {target} > ~/t; cat ~/t > {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{prefix}{_text(version)}\n" for version in ordered)
    draft.result(target, expected)
    oracle = f"sort -V{' -r' if newest_first else ''} {source} > {target}\n"
    draft.solve(oracle, swap(oracle, "sort -V", "LC_ALL=C sort"), expected)


def _latest(draft: Draft) -> None:
    root = draft.project()
    source = f"{root}/{draft.pick('packages', 'index', 'registry')}.txt"
    target = f"{root}/{draft.pick('latest', 'stable', 'current')}.txt"
    lines: list[str] = []
    latest: dict[str, _Version] = {}
    for index, name in enumerate(draft.some(PRODUCTS, draft.number(5, 9))):
        major = draft.number(1, 9)
        versions = {(major, minor, draft.number(0, 20)) for minor in draft.some(range(7, 13), draft.number(2, 4))}
        latest[name] = max(versions)
        lines += [f"{name} {_text(version)}\n" for version in versions]
        if index == 0 or draft.chance(0.6):
            lines.append(
                f"{name} {_text((major + 1, 0, 0))}-{draft.pick('rc', 'beta', 'alpha')}.{draft.number(1, 3)}\n"
            )
    draft.file(source, "".join(draft.shuffled(sorted(lines))), keep=True)
    right, order = "* has the right lines", "lines of * are in order"
    draft.pieces(target)
    draft.honest(
        "by the tools of the shell",
        instead=f"grep -v -- '[0-9]-' {source} | sort -k 1,1 -k 2,2Vr | awk '!seen[$1]++' | LC_ALL=C sort > {target}",
    )
    draft.say(
        draft.pick(
            f"Which is the latest stable version of each package in {source}?",
            f"{source} lists packages and their versions.",
        ),
        "Each line is a package name and a version MAJOR.MINOR.PATCH, separated by a space.",
        draft.require(
            "Versions with a suffix after a hyphen (such as -rc.1) are pre-releases and not stable.",
            breach("pre-releases too", right, swap=('if "-" in version', "if not version")),
        ),
        draft.require(
            "Versions compare number by number.",
            breach("versions as text", right, swap=("(0,)), numbers)", "(0,)), numbers, key=str)")),
        ),
        draft.require(
            f"Write the latest stable version of each package to {target}",
            breach(
                "the oldest",
                right,
                swap=("max(latest.get(name, (0,)), numbers)", "min(latest.get(name, (99,)), numbers)"),
            ),
            breach("a package left out", right, after=f"sed -i '$d' {target}"),
        ),
        draft.require(
            "in the same form,",
            breach("an equals sign", right, after=f"sed -i 's/ /==/' {target}"),
            breach("versions of two numbers", right, after=f"sed -i 's/[.][0-9]*$//' {target}"),
        ),
        draft.require("one line per package,", breach("a line twice", right, after=f"tail -n 1 {target} >> {target}")),
        draft.require(
            "sorted by package name.",
            breach("backwards", order, after=f"sort -r -o {target} {target}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    expected = "".join(f"{name} {_text(latest[name])}\n" for name in sorted(latest))
    draft.result(target, expected)
    oracle = python(
        """
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
        """,
        source=source,
        target=target,
    )
    draft.solve(oracle, swap(oracle, 'if "-" in version', "if not version"), expected)


def _updates(draft: Draft) -> None:
    root = draft.project()
    installed: dict[str, _Version] = {}
    available: list[str] = []
    lines: list[str] = []
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
            lines.append(f"{name} {_text(here)} -> {_text(best)}\n")
        if kind in (1, 2):
            offers.append((here[0] + 1, 0, draft.number(0, 5)))
        available += [f"{name}=={_text(offer)}\n" for offer in offers]
    draft.file(f"{root}/installed.txt", "".join(f"{n}=={_text(v)}\n" for n, v in installed.items()), keep=True)
    draft.file(f"{root}/available.txt", "".join(draft.shuffled(available)), keep=True)
    target = f"{root}/{draft.pick('updates', 'upgrades', 'outdated')}.txt"
    right, order = "* has the right lines", "lines of * are in order"
    lowest = "best[name] = min((v for v in (best[name], version) if v > installed[name]), default=best[name])"
    textual = "best[name] = max(best[name], version, key=lambda v: '.'.join(map(str, v)))"
    draft.pieces(target)
    draft.honest(
        "compared by parts",
        swap=("best[name] = max(best[name], version)", "best[name] = sorted([version, best[name]])[-1]"),
    )
    draft.say(
        draft.pick(
            f"Which packages in {root}/installed.txt can be updated safely?", "I want to know which updates are safe."
        ),
        f"{root}/installed.txt has the installed version of each package and {root}/available.txt all versions on "
        "offer, as lines name==MAJOR.MINOR.PATCH.",
        draft.require(
            "A safe update is the highest available version",
            breach("the lowest", right, swap=("best[name] = max(best[name], version)", lowest)),
        ),
        draft.require(
            "that has the same MAJOR as the installed one",
            breach("another MAJOR", right, swap=("if version[0] == installed[name][0]", "if version")),
        ),
        draft.require(
            "and is newer than it;",
            breach("the same version", right, swap=("best[name] > installed[name]", "best[name] >= installed[name]")),
        ),
        draft.require(
            "versions compare number by number.",
            breach("versions as text", right, swap=("best[name] = max(best[name], version)", textual)),
        ),
        draft.require(
            f"Write one line for each package that has a safe update to {target},",
            breach("a package left out", right, after=f"sed -i '$d' {target}"),
            breach("a package twice", right, after=f"tail -n 1 {target} >> {target}"),
        ),
        draft.require("sorted by name:", breach("backwards", order, after=f"sort -r -o {target} {target}")),
        draft.require(
            "\n    name INSTALLED -> UPDATE",
            breach("another arrow", right, swap=("{old} -> {new}", "{old} => {new}")),
            breach("the other way round", right, swap=("{old} -> {new}", "{new} -> {old}")),
            breach("a colon", right, swap=("{name} {old}", "{name}: {old}")),
        ),
        "\nfor instance: lamp 1.4.0 -> 1.10.2.",
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, "".join(lines))
    oracle = python(
        """
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
        """,
        root=root,
        target=target,
    )
    draft.solve(oracle, swap(oracle, "if version[0] == installed[name][0]", "if version"), "".join(lines))


FAMILY = Family("versions", "Sort and compare version numbers", (_sort, _latest, _updates), ("python3",))
