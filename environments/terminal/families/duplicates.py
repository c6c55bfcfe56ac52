"""Family: files with the same content."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, WORDS


def _tree(draft: Draft, root: str) -> None:
    """Write files below ``root``, some of them with equal content."""
    folders = ["", *(f"{name.lower()}/" for name in draft.some(CITIES, 3))]
    folders.append(f"{folders[1]}copies/")
    names = draft.some(WORDS, 40)
    for size in [3, 2, *(draft.number(1, 4) for _ in range(draft.number(4, 6))), 1]:
        data = draft.text(draft.number(30, 300))
        paths = sorted(f"{root}/{draft.pick(*folders)}{names.pop()}.{draft.pick('txt', 'dat')}" for _ in range(size))
        for path in paths:
            draft.file(path, data)
        if size == 1 and len(data) > 3:
            # The same size and nearly the same content.
            path = f"{root}/{draft.pick(*folders)}{names.pop()}.txt"
            draft.file(path, b"#" + data[1:])


def _report(draft: Draft) -> None:
    root = draft.project()
    report = draft.result(f"{root}-redundant.txt")
    _tree(draft, root)
    draft.say(
        draft.pick(
            f"Below {root} many files exist more than once under different names.",
            f"Help me find out which files below {root} are redundant.",
        ),
        "! Files are duplicates of each other if their contents are identical, whatever their names.",
        "! Among the files with the same content the one whose absolute path comes first in byte order (LC_ALL=C) is "
        "the original; all the others are redundant.",
        f"! Write the absolute paths of all redundant files to {report}, one per line,",
        "! sorted in byte order.",
        draft.every_line(),
    )
    oracle = (
        f"find {root} -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 1,1 -k 2 | awk 'seen[$1]++ {{ print $2 }}' "
        f"| LC_ALL=C sort > {report}\n"
    )
    draft.solve(oracle, swap(oracle, "-k 1,1 -k 2", "-k 1,1 -k 2r"))


def _delete(draft: Draft) -> None:
    root = draft.project()
    _tree(draft, root)
    last = draft.chance(0.5)
    # A folder of which nothing is left.
    copied = draft.files[min(draft.files)].content
    draft.file(f"{root}/{'0' if last else 'zz'}-{draft.pick('copies', 'backup', 'spare')}/again.txt", copied)
    order, other = ("-k 2r", "-k 2") if last else ("-k 2 ", "-k 2r ")
    draft.say(
        draft.pick(f"Free some space in {root}.", f"Please remove duplicate files below {root}."),
        "! Wherever several regular files below it have identical content, keep only the one whose absolute path "
        f"comes {'last' if last else 'first'} in byte order (as LC_ALL=C sort would order the paths) and delete "
        "the others.",
        "! Files whose content exists only once stay.",
        "! No remaining file may be moved, and directories stay, even if they are empty then.",
    )
    oracle = (
        f"find {root} -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 1,1 -k 2{'r' if last else ''} "
        "| awk 'seen[$1]++ { print $2 }' | xargs -r rm\n"
    )
    draft.solve(oracle, swap(oracle, order, other))


def _groups(draft: Draft) -> None:
    root = draft.project()
    report = draft.result(f"{root}-duplicates.json")
    _tree(draft, root)
    draft.say(
        draft.pick(
            f"I need a report on duplicate files below {root}.", f"How much space do duplicates in {root} waste?"
        ),
        f"! Write a JSON object to {report} with the keys wasted_bytes and groups and no others.",
        "! wasted_bytes is the number of bytes that would be saved by keeping just one file of each set of files "
        "with identical content.",
        "! groups is an array with one object for each such set of two or more files,",
        "! with the keys size (size in bytes of one of the files)",
        f"! and files (array of the paths, relative to {root}, sorted in byte order).",
        "! Order the groups by the first path of each in byte order.",
    )
    draft.form(report, "json")
    oracle = python("""
        import json, os
        found = {}
        for place, _, names in os.walk(@root@):
            for name in names:
                path = os.path.join(place, name)
                found.setdefault(open(path, "rb").read(), []).append(os.path.relpath(path, @root@))
        groups = [{"size": len(data), "files": sorted(paths)} for data, paths in found.items() if len(paths) > 1]
        groups.sort(key=lambda group: group["files"][0])
        wasted = sum(group["size"] * (len(group["files"]) - 1) for group in groups)
        json.dump({"wasted_bytes": wasted, "groups": groups}, open(@report@, "w"), indent=2)
        """)
    draft.solve(oracle, swap(oracle, '* (len(group["files"]) - 1)', '* len(group["files"])'))


FAMILY = Family("duplicates", "Find, remove and report duplicate files", (_report, _delete, _groups), ("python3",))
