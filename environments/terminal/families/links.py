"""Symbolic and hard links."""

from __future__ import annotations

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _releases(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('deploy', 'releases-of-' + draft.pick(*SERVICES), 'srv')}"
    major = draft.number(1, 9)
    minors = [draft.number(2, 9), *draft.some(range(10, 30), 2)]
    versions = [(major, minor, draft.number(0, 20)) for minor in minors]
    versions += [(major, minors[0] - 1, draft.number(0, 12)), (major - 1, 40, draft.number(0, 9))]
    for version in draft.shuffled(versions):
        text = ".".join(map(str, version))
        draft.file(f"{root}/releases/{text}/VERSION", f"{text}\n", keep=True)
    newest, before = sorted(versions, reverse=True)[:2]
    stale = ".".join(map(str, sorted(versions)[0]))
    draft.link(f"{root}/current", f"releases/{stale}")
    draft.say(
        draft.pick(
            f"The releases of our application are directories in {root}/releases, named by version MAJOR.MINOR.PATCH.",
            f"{root}/releases has one directory for each version (MAJOR.MINOR.PATCH) of our application.",
        ),
        f"The symbolic link {root}/current is out of date: make it lead to the newest release. Also create a symbolic "
        f"link {root}/previous to the second newest.",
        "Versions compare number by number, so 2.10.0 is newer than 2.9.3.",
        "Both links must be relative, in the form releases/VERSION, so that the tree can be moved.",
        "Do not touch the releases themselves.",
    )
    right = [".".join(map(str, version)) for version in (newest, before)]
    draft.initial.absent(f"{root}/previous")
    draft.final.link(f"{root}/current", f"releases/{right[0]}")
    draft.final.link(f"{root}/previous", f"releases/{right[1]}")
    oracle = (
        f"cd {root} || exit 1\n"
        "ln -sfn releases/$(ls releases | sort -V | tail -n 1) current\n"
        "ln -sfn releases/$(ls releases | sort -V | tail -n 2 | head -n 1) previous\n"
    )
    draft.solve(oracle, swap(oracle, "sort -V", "sort"), f"current {right[0]}, previous {right[1]}")


def _broken(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-broken-links.txt"
    folders = [f"{root}/{name}" for name in draft.some(DEPARTMENTS, 3)]
    targets = [f"{draft.pick(*folders)}/{name}.txt" for name in draft.some(WORDS, 5)]
    for path in targets:
        draft.file(path, draft.text(draft.number(30, 80)), keep=True)
    good: dict[str, str] = {}
    broken: dict[str, str] = {}
    for index, name in enumerate(draft.some(DEPARTMENTS + SERVICES, draft.number(7, 11))):
        path = f"{draft.pick(*folders)}/{name}.lnk"
        if index < 3 or (index > 5 and draft.chance(0.5)):
            target = draft.pick(f"{root}/gone/{name}.txt", f"../missing-{name}", f"{name}-old.txt")
            broken[path] = target
        else:
            target = draft.pick(*targets)
            if draft.chance(0.5):
                target = f"../{target.removeprefix(f'{root}/')}"
            good[path] = target
        draft.link(path, target)
    draft.say(
        draft.pick(
            f"After a clean-up some symbolic links below {root} lead nowhere.",
            f"Please get rid of the dead symbolic links below {root}.",
        ),
        f"Write a report of all broken links (those whose target does not exist) to {report}, one per line in the form",
        "\nLINK -> TARGET",
        "\nwhere LINK is the absolute path of the link and TARGET its target exactly as the link has it. Sort the "
        "lines in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    draft.say("Then delete the broken links. Links that work and all regular files must stay as they are.")
    expected = "".join(sorted(f"{path} -> {target}\n" for path, target in broken.items()))
    draft.initial.absent(report)
    draft.final.text(report, expected)
    for path in broken:
        draft.final.absent(path)
    for path, target in good.items():
        draft.final.link(path, target)
    oracle = f"find {root} -xtype l -printf '%p -> %l\\n' | LC_ALL=C sort > {report}\nfind {root} -xtype l -delete\n"
    draft.solve(oracle, swap(oracle, "-xtype l -delete", "-type l -delete"), expected)


def _hard_links(draft: Draft) -> None:
    root = draft.project()
    master, mirror = draft.pick(("master", "mirror"), ("main", "copy"), ("original", "backup"))
    linked: list[str] = []
    apart: list[str] = []
    for index, name in enumerate(draft.some(WORDS, draft.number(8, 13))):
        path = f"{draft.pick('', 'a/', 'b/', 'a/c/')}{name}.dat"
        data = draft.text(draft.number(40, 200))
        kind = index if index < 4 else draft.number(0, 3)
        if kind != 2:
            draft.file(f"{root}/{master}/{path}", data, keep=True)
        if kind == 1:
            data = data[:-2] + b"!\n"
        if kind != 3:
            draft.file(f"{root}/{mirror}/{path}", data, keep=True)
        (linked if kind == 0 else apart).append(path)
    both = [path for path in apart if all(f"{root}/{side}/{path}" in draft.files for side in (master, mirror))]
    draft.say(
        draft.pick(
            f"To save space, turn duplicate files of {root}/{mirror} into hard links.",
            f"{root}/{mirror} is mostly a copy of {root}/{master}, and I want the copies to cost no space.",
        ),
        f"For every file below {root}/{mirror} for which {root}/{master} has a file with the same relative path and "
        f"exactly the same content, replace the one in {mirror} by a hard link to the one in {master}.",
        "Files that differ, or that only one of the two directories has, stay separate files with their own content. "
        "In the end both trees must have the same paths and contents as now.",
    )
    for name, paths, negation in (("equal files are one file", linked, ""), ("other files are two", both, "not ")):
        draft.final.test(
            name,
            f"for path in {paths!r}:\n"
            f"    main = os.path.join({f'{root}/{master}'!r}, path)\n"
            f"    assert {negation}one_file(main, os.path.join({f'{root}/{mirror}'!r}, path)), path",
        )
    for side in (master, mirror):
        prefix = f"{root}/{side}/"
        tree = {
            path.removeprefix(prefix): file.content for path, file in draft.files.items() if path.startswith(prefix)
        }
        draft.final.files(f"{root}/{side}", tree)
    oracle = (
        f"cd {root}/{mirror} || exit 1\nfind . -type f | while read -r file; do\n"
        f'  cmp -s "$file" "{root}/{master}/$file" && ln -f "{root}/{master}/$file" "$file"\ndone\ntrue\n'
    )
    draft.solve(oracle, swap(oracle, "ln -f", "ln -sf"), "\n".join(linked))


def _copy_links(draft: Draft) -> None:
    """Absolute links become relative ones."""
    root = draft.project()
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
    folders.append(f"{folders[1]}{draft.pick(*SERVICES)}/")
    targets = [f"{draft.pick(*folders)}{name}.txt" for name in draft.some(WORDS, 6)]
    for path in targets:
        draft.file(f"{root}/{path}", draft.text(draft.number(30, 80)), keep=True)
    expected: dict[str, str] = {}
    for index, name in enumerate(draft.some(SERVICES, draft.number(6, 10))):
        folder = folders[-1] if index == 0 else draft.pick(*folders)
        path = f"{root}/{folder}{name}-link"
        target = draft.pick(*targets)
        if index == 1 or (index > 1 and draft.chance(0.2)):
            outside = draft.pick("/usr/bin/env", "/etc/hostname", "/usr/share")
            draft.link(path, outside)
            expected[path] = outside
        else:
            draft.link(path, f"{root}/{target}")
            expected[path] = _relative(folder, target)
    draft.say(
        draft.pick(
            f"I'm going to move {root} to another place, which would break its absolute symbolic links.",
            f"The symbolic links below {root} are absolute; I want them relative.",
        ),
        f"Change every symbolic link below {root} whose target is an absolute path inside {root} into a relative link "
        "to the same file. Use the shortest relative path from the link's directory: the minimal number of .. "
        "components, and no ./ in front.",
        f"Links that lead outside of {root} stay absolute, unchanged. So do all regular files.",
    )
    for path, target in expected.items():
        draft.final.link(path, target)
    oracle = python(
        """
        import os
        root = @root@
        for place, folders, names in os.walk(root):
            for name in folders + names:
                path = os.path.join(place, name)
                if os.path.islink(path) and os.readlink(path).startswith(root + "/"):
                    target = os.path.relpath(os.readlink(path), place)
                    os.unlink(path)
                    os.symlink(target, path)
        """,
        root=root,
    )
    draft.solve(oracle, swap(oracle, "(os.readlink(path), place)", "(os.readlink(path), root)"), repr(expected))


def _relative(folder: str, target: str) -> str:
    """``target`` as seen from ``folder``, both relative to the same root."""
    here, there = folder.split("/")[:-1], target.split("/")
    common = 0
    while common < min(len(here), len(there) - 1) and here[common] == there[common]:
        common += 1
    return "../" * (len(here) - common) + "/".join(there[common:])


FAMILY = Family(
    "links", "Symbolic and hard links", (_releases, _broken, _hard_links, _copy_links), programs=("python3",)
)
