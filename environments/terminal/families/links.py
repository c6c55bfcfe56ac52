"""Family: symbolic and hard links."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
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
        draft.file(f"{root}/releases/{text}/VERSION", f"{text}\n")
    newest, before = sorted(versions, reverse=True)[:2]
    stale = ".".join(map(str, sorted(versions)[0]))
    draft.link(f"{root}/current", f"releases/{stale}")
    draft.root = root
    draft.say(
        draft.pick(
            f"The releases of our application are directories in {root}/releases, named by version MAJOR.MINOR.PATCH.",
            f"{root}/releases has one directory for each version (MAJOR.MINOR.PATCH) of our application.",
        ),
        f"The symbolic link {root}/current is out of date.",
        draft.require(
            "Make it lead to the newest release.",
            breach("a release that is older", "current *", after=f"ln -sfn releases/{stale} current"),
            breach(
                "a copy of the release",
                "current *",
                after="cp -r $(readlink current) copy; rm current; mv copy current",
            ),
            breach("the link removed", "current *", after="rm current"),
        ),
        draft.require(
            f"Also create a symbolic link {root}/previous to the second newest.",
            breach("the newest again", "previous *", after="ln -sfn $(readlink current) previous"),
            breach("a link to the link", "previous *", after="ln -sfn current previous"),
        ),
        draft.require(
            "Versions compare number by number, so 2.10.0 is newer than 2.9.3.",
            breach("versions as text", "current *", "previous *", swap=("sort -V", "sort")),
        ),
        draft.require(
            "Both links must be relative, in the form releases/VERSION, so that the tree can be moved.",
            breach("an absolute link", "current *", after="ln -sfn $PWD/$(readlink current) current"),
            breach("the other absolute", "previous *", after="ln -sfn $PWD/$(readlink previous) previous"),
            breach("another form", "current *", after="ln -sfn ./$(readlink current) current"),
        ),
        draft.nothing_else(
            "Do not touch the releases themselves.", root=f"{root}/releases", which=f"{root}/releases/{stale}/VERSION"
        ),
    )
    draft.honest("the link made anew", after="to=$(readlink current); rm current; ln -s $to current")
    draft.honest("by a rename", after="ln -s $(readlink current) next && mv -T next current")
    draft.honest(
        "from Python",
        instead=python(
            """
            import os
            os.chdir(@root@)
            names = sorted(os.listdir("releases"), key=lambda name: list(map(int, name.split("."))))
            os.remove("current")
            os.symlink("releases/" + names[-1], "current")
            os.symlink("releases/" + names[-2], "previous")
            """,
            root=root,
        ),
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
        draft.file(path, draft.text(draft.number(30, 80)))
    good: dict[str, str] = {}
    broken: dict[str, str] = {}
    for index, name in enumerate(draft.some(DEPARTMENTS + SERVICES, draft.number(7, 11))):
        path = f"{draft.pick(*folders)}/{name}.lnk"
        if index < 3 or (index > 5 and draft.chance(0.5)):
            target = draft.pick(f"{root}/gone/{name}.txt", f"../missing-{name}", f"{name}-old.txt")
            target = f"../missing-{name}" if index == 0 else target
            broken[path] = target
        else:
            target = draft.pick(*targets)
            if draft.chance(0.5):
                target = f"../{target.removeprefix(f'{root}/')}"
            good[path] = target
        draft.link(path, target)
    right, gone, whole = "* has the right lines", next(iter(broken)), next(iter(good))
    draft.say(
        draft.pick(
            f"After a clean-up some symbolic links below {root} lead nowhere.",
            f"Please get rid of the dead symbolic links below {root}.",
        ),
        draft.require(
            f"Write a report of all broken links (those whose target does not exist) to {report}, one per line in the "
            "form",
            breach("one left out", right, after=f"sed -i '$d' {report}"),
            breach(
                "a link that works",
                right,
                after=f"echo '{whole} -> {good[whole]}' >> {report}; LC_ALL=C sort -o {report} {report}",
            ),
        ),
        draft.require(
            "\n    LINK -> TARGET",
            breach("another arrow", right, swap=("%p -> %l", "%p => %l")),
            breach(
                "the other way round",
                right,
                after=f"sed -i 's/\\(.*\\) -> \\(.*\\)/\\2 -> \\1/' {report}; LC_ALL=C sort -o {report} {report}",
            ),
        ),
        draft.require(
            "\nwhere LINK is the absolute path of the link and TARGET its target exactly as the link has it.",
            breach("links by their names", right, swap=("%p -> %l", "%f -> %l")),
            breach("the links' paths from here", right, swap=("%p -> %l", "%P -> %l")),
            breach(
                "targets as absolute paths",
                right,
                after=f"sed -i 's! -> \\([^/]\\)! -> {root}/\\1!' {report}; LC_ALL=C sort -o {report} {report}",
            ),
        ),
        draft.require(
            "Sort the lines in byte order (LC_ALL=C).",
            breach("backwards", "lines of * are in order", after=f"LC_ALL=C sort -r -o {report} {report}"),
        ),
        draft.every_line(report),
    )
    draft.say(
        draft.require(
            "Then delete the broken links.",
            breach("none deleted", "* is not there", swap=("-xtype l -delete", "-false")),
            breach("one left", "* is not there", after=f"ln -s '{broken[gone]}' {gone}"),
        ),
        draft.nothing_else(
            "Links that work, all regular files and all directories must stay as they are, and nothing may be added.",
            made=[path.removeprefix(f"{root}/") for path in broken],
            which=targets[0],
        ),
    )
    draft.honest(
        "link by link",
        instead=f"""
find {root} -type l | LC_ALL=C sort | while read -r link; do
  if [ ! -e "$link" ]; then echo "$link -> $(readlink "$link")"; rm "$link"; fi
done > {report}
""",
    )
    draft.honest("a report written anew", after=f"cp {report} ~/r && rm {report} && mv ~/r {report}")
    draft.honest("a report for oneself", after=f"chmod 600 {report}")
    expected = "".join(sorted(f"{path} -> {target}\n" for path, target in broken.items()))
    draft.result(report, expected)
    for path in broken:
        draft.final.absent(path)
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
            draft.file(f"{root}/{master}/{path}", data)
        if kind == 1:
            data = data[:-2] + b"!\n"
        if kind != 3:
            draft.file(f"{root}/{mirror}/{path}", data)
        (linked if kind == 0 else apart).append(path)
    only = next(path for path in apart if f"{root}/{mirror}/{path}" not in draft.files)
    both = [path for path in apart if all(f"{root}/{side}/{path}" in draft.files for side in (master, mirror))]
    draft.say(
        draft.pick(
            f"To save space, turn duplicate files of {root}/{mirror} into hard links.",
            f"{root}/{mirror} is mostly a copy of {root}/{master}, and I want the copies to cost no space.",
        ),
        draft.require(
            f"For every file below {root}/{mirror} for which {root}/{master} has a file with the same relative path "
            f"and exactly the same content, replace the one in {mirror} by a hard link to the one in {master}.",
            breach(
                "one left a copy",
                "equal files *",
                after=f"cp {mirror}/{linked[0]} ~/c && rm {mirror}/{linked[0]} && mv ~/c {mirror}/{linked[0]}",
            ),
            breach("nothing linked", "equal files *", swap=("ln -f", "cmp -s")),
            breach("symbolic links", "equal files *", "files of * have the right content", swap=("ln -f", "ln -sf")),
        ),
        draft.require(
            "Files that differ, or that only one of the two directories has, stay separate files with the content they "
            "have.",
            breach(
                "files that differ linked",
                "other files *",
                "files of * have the right content",
                after=f"ln -f {master}/{both[0]} {mirror}/{both[0]}",
            ),
        ),
        draft.require(
            "In the end both trees must have the same paths and contents as now.",
            breach("one more file", "* holds nothing else", after=f"echo more > {mirror}/leftover"),
            breach("one more directory, empty", "* holds nothing else", after=f"mkdir {master}/leftover"),
            breach("another content", "files of * have the right content", after=f"echo more >> {mirror}/{both[0]}"),
            breach("a file gone", "files of * have the right content", after=f"rm {master}/{only}"),
            breach(
                "a file copied to the other",
                "* holds nothing else",
                after=f"mkdir -p {mirror}/$(dirname {only}); cp {master}/{only} {mirror}/{only}",
            ),
        ),
    )
    draft.honest(
        "from Python",
        instead=python(
            """
            import os
            for place, _, names in os.walk(@mirror@):
                for name in names:
                    copy = os.path.join(place, name)
                    main = os.path.join(@master@, os.path.relpath(copy, @mirror@))
                    if os.path.isfile(main) and open(main, "rb").read() == open(copy, "rb").read():
                        os.link(main, copy + ".new")
                        os.replace(copy + ".new", copy)
            """,
            mirror=f"{root}/{mirror}",
            master=f"{root}/{master}",
        ),
    )
    draft.honest(
        "the other way round", swap=(f'ln -f "{root}/{master}/$file" "$file"', f'ln -f "$file" "{root}/{master}/$file"')
    )
    draft.honest("one more name for a file elsewhere", after=f"ln {master}/{linked[0]} ~/name")
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
    """Write a task that turns absolute links into relative links."""
    root = draft.project()
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
    folders.append(f"{folders[1]}{draft.pick(*SERVICES)}/")
    targets = [f"{draft.pick(*folders)}{name}.txt" for name in draft.some(WORDS, 6)]
    for path in targets:
        draft.file(f"{root}/{path}", draft.text(draft.number(30, 80)))
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
    inside = next(path for path, target in expected.items() if not target.startswith("/"))
    outer = next(path for path, target in expected.items() if target.startswith("/"))
    other, changed = (
        f"nothing else in {root.rpartition('/')[2]} has changed",
        ("* is a link", "* leads to the right place"),
    )
    draft.say(
        draft.pick(
            f"I'm going to move {root} to another place, which would break its absolute symbolic links.",
            f"The symbolic links below {root} are absolute; I want them relative.",
        ),
        draft.require(
            f"Change every symbolic link below {root} whose target is an absolute path inside {root} into a relative "
            "link to the same file.",
            breach(
                "one left absolute", "* leads to the right place", after=f"ln -sfn {draft.files[inside].link} {inside}"
            ),
            breach(
                "links from the top",
                "* leads to the right place",
                swap=("(os.readlink(path), place)", "(os.readlink(path), root)"),
            ),
            breach(
                "files in place of links",
                *changed,
                after=f"cp --remove-destination {draft.files[inside].link} {inside}",
            ),
        ),
        draft.require(
            "Use the shortest relative path from the link's directory: the minimal number of .. components,",
            breach(
                "a way through the folder above",
                "* leads to the right place",
                swap=(
                    "(os.readlink(path), place)",
                    "(os.readlink(path), place)\n            target = os.path.relpath(root, place) + '/../'"
                    " + os.path.relpath(os.readlink(path), os.path.dirname(root))",
                ),
            ),
        ),
        draft.require(
            "and no ./ in front.",
            breach(
                "a dot in front", "* leads to the right place", swap=("os.symlink(target", 'os.symlink("./" + target')
            ),
        ),
        draft.require(
            f"Links that lead outside of {root} stay absolute, unchanged.",
            breach(
                "links that lead outside changed", other, swap=(' and os.readlink(path).startswith(root + "/")', "")
            ),
            breach("links that lead outside removed", other, after=f"rm {outer}"),
        ),
        draft.nothing_else(
            "So does everything else.",
            made=[
                path.removeprefix(f"{root}/")
                for path in expected
                if path != outer and not expected[path].startswith("/")
            ],
            which=f"{root}/{targets[0]}",
        ),
    )
    for path, target in expected.items():
        if not target.startswith("/"):
            draft.final.link(path, target)
    draft.honest(
        "by ln",
        instead=f"""
find {root} -lname '{root}/*' | while read -r link; do ln -sfrn "$(readlink "$link")" "$link"; done
""",
    )
    draft.honest(
        "made beside and renamed",
        swap=(
            "os.unlink(path)\n            os.symlink(target, path)",
            'os.symlink(target, path + ".new")\n            os.replace(path + ".new", path)',
        ),
    )
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
    """Return ``target`` as seen from ``folder``; both are relative to the same root."""
    here, there = folder.split("/")[:-1], target.split("/")
    common = 0
    while common < min(len(here), len(there) - 1) and here[common] == there[common]:
        common += 1
    return "../" * (len(here) - common) + "/".join(there[common:])


FAMILY = Family(
    "links", "Symbolic and hard links", (_releases, _broken, _hard_links, _copy_links), programs=("python3",)
)
