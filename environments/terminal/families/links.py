"""Family: symbolic and hard links."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS


def _releases(draft: Draft) -> None:
    draft.root = root = f"{draft.project()}/{draft.pick('deploy', 'releases-of-' + draft.pick(*SERVICES), 'srv')}"
    major = draft.number(1, 9)
    minors = [draft.number(3, 9), *draft.some(range(10, 30), 2)]
    versions = [(major, minor, draft.number(0, 20)) for minor in minors]
    versions += [(major, minors[0] - 1, draft.number(0, 12)), (major - 1, 40, draft.number(0, 9))]
    for version in draft.shuffled(versions):
        text = ".".join(map(str, version))
        draft.file(f"{root}/releases/{text}/VERSION", f"{text}\n")
    draft.link(f"{root}/current", f"releases/{major}.{minors[0] - 1}.{versions[3][2]}")
    draft.say(
        draft.pick(
            f"The releases of our application are directories in {root}/releases, named by version MAJOR.MINOR.PATCH.",
            f"{root}/releases has one directory for each version (MAJOR.MINOR.PATCH) of our application.",
        ),
        f"The symbolic link {root}/current is out of date.",
        "! Make it lead to the newest release.",
        f"! Also create a symbolic link {root}/previous to the second newest.",
        "! Versions compare number by number, so 2.10.0 is newer than 2.9.3.",
        "! Both links must have exactly the form releases/VERSION, so that the tree can be moved.",
    )
    oracle = (
        f"cd {root} || exit 1\n"
        "ln -sfn releases/$(ls releases | sort -V | tail -n 1) current\n"
        "ln -sfn releases/$(ls releases | sort -V | tail -n 2 | head -n 1) previous\n"
    )
    draft.solve(oracle, swap(oracle, "sort -V", "sort"))


def _broken(draft: Draft) -> None:
    root = draft.project()
    tree = f"{root}/{draft.pick('files', 'docs', 'shared')}"
    report = f"{root}/broken-links.txt"
    folders = [f"{tree}/{name}" for name in draft.some(DEPARTMENTS, 3)]
    targets = [f"{draft.pick(*folders)}/{name}.txt" for name in draft.some(WORDS, 5)]
    for path in targets:
        draft.file(path, draft.text(draft.number(30, 80)))
    broken = ""
    for index, name in enumerate(draft.some(DEPARTMENTS + SERVICES, draft.number(8, 11))):
        path = f"{draft.pick(*folders)}/{name}.lnk"
        if index < 3 or (index > 5 and draft.chance(0.5)):
            target = draft.pick(f"{tree}/gone/{name}.txt", f"../missing-{name}", f"{name}-old.txt")
            broken, target = (path, f"../missing-{name}") if index == 0 else (broken, target)
        else:
            target = draft.pick(*targets)
            target = f"../{target.removeprefix(f'{tree}/')}" if index < 5 else target
        draft.link(path, target)
    # A link to a broken link is broken, too.
    draft.link(f"{folders[0]}/alias.lnk", broken)
    draft.say(
        draft.pick(
            f"After a clean-up some symbolic links below {tree} lead nowhere.",
            f"Please get rid of the dead symbolic links below {tree}.",
        ),
        "! Write a report of all broken links (those whose target does not exist, also if it is a link that is "
        f"broken itself) to {report}, one per line in the form",
        "! \n    LINK -> TARGET",
        "! \nwhere LINK is the absolute path of the link and TARGET its target exactly as the link has it.",
        "! Sort the lines in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    draft.say("! Then delete the broken links.")
    oracle = f"find {tree} -xtype l -printf '%p -> %l\\n' | LC_ALL=C sort > {report}\nfind {tree} -xtype l -delete\n"
    draft.solve(oracle, swap(oracle, "-xtype l", "-type l"))


def _hard_links(draft: Draft) -> None:
    root = draft.project()
    master, mirror = draft.pick(("master", "mirror"), ("main", "copy"), ("original", "backup"))
    texts: list[bytes] = []
    paths: list[str] = []
    for index, name in enumerate(draft.some(WORDS, draft.number(8, 13))):
        path = f"{draft.pick('', 'a/', 'b/', 'a/c/')}{name}.dat"
        paths.append(path)
        texts.append(draft.text(draft.number(40, 200)))
        # 0: a pair of equal files; 1: a pair of different ones; 2: only the copy; 3: only the original.
        kind = index % 4 if index < 5 else draft.number(0, 3)
        # Files with other names and the same content: one only here and one only there, and two pairs.
        data = texts[2] if index == 3 else texts[0] if index == 4 else texts[-1]
        if kind != 2:
            draft.file(f"{root}/{master}/{path}", data)
        if kind == 1:
            data = data[:-2] + b"!\n"
        if kind != 3:
            draft.file(f"{root}/{mirror}/{path}", data)
    draft.say(
        draft.pick(
            f"To save space, turn duplicate files of {root}/{mirror} into hard links.",
            f"{root}/{mirror} is mostly a copy of {root}/{master}, and I want the copies to cost no space.",
        ),
        f"! For every file below {root}/{mirror} for which {root}/{master} has a file with the same relative path "
        f"and exactly the same content, replace the one in {mirror} by a hard link to the one in {master}.",
        "! All other files stay separate files, also those with the same content and another path.",
        "! In the end both trees must have the same paths and contents as now.",
    )
    oracle = (
        f"cd {root}/{mirror} || exit 1\nfind . -type f | while read -r file; do\n"
        f'  cmp -s "$file" "{root}/{master}/$file" && ln -f "{root}/{master}/$file" "$file"\ndone\ntrue\n'
    )
    draft.solve(oracle, swap(oracle, "ln -f", "ln -sf"))


def _copy_links(draft: Draft) -> None:
    """Write a task that turns absolute links into relative links."""
    root = draft.project()
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
    folders.append(f"{folders[1]}{draft.pick(*SERVICES)}/")
    targets = [f"{draft.pick(*folders)}{name}.txt" for name in draft.some(WORDS, 6)]
    for path in targets:
        draft.file(f"{root}/{path}", draft.text(draft.number(30, 80)))
    for index, name in enumerate(draft.some(SERVICES, draft.number(6, 10))):
        path = f"{root}/{folders[-1] if index == 0 else draft.pick(*folders)}{name}-link"
        if index == 1 or (index > 2 and draft.chance(0.2)):
            draft.link(path, draft.pick("/usr/bin/env", "/etc/hostname", "/usr/share"))
        elif index == 2:  # Outside, though its path begins with the same letters.
            draft.link(path, f"{root}-old/{name}.txt")
        else:
            draft.link(path, f"{root}/{draft.pick(*targets)}")
    draft.say(
        draft.pick(
            f"I'm going to move {root} to another place, which would break its absolute symbolic links.",
            f"The symbolic links below {root} are absolute; I want them relative.",
        ),
        f"! Change every symbolic link below {root} whose target is an absolute path inside {root} into a relative "
        "link to the same file.",
        "! Use the shortest relative path from the link's directory: the minimal number of .. components,",
        "! and no ./ in front.",
        f"! Links that lead outside of {root} stay absolute, unchanged.",
    )
    oracle = python("""
        import os
        root = @root@
        for place, folders, names in os.walk(root):
            for name in folders + names:
                path = os.path.join(place, name)
                if os.path.islink(path) and os.readlink(path).startswith(root + "/"):
                    target = os.path.relpath(os.readlink(path), place)
                    os.unlink(path)
                    os.symlink(target, path)
        """)
    draft.solve(oracle, swap(oracle, "(os.readlink(path), place)", "(os.readlink(path), root)"))


FAMILY = Family(
    "links", "Symbolic and hard links", (_releases, _broken, _hard_links, _copy_links), programs=("python3",)
)
