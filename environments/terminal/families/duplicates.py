"""Files with the same content."""

from __future__ import annotations

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import CITIES, WORDS

__all__ = ["FAMILY"]


def _tree(draft: Draft, root: str, *, keep: bool) -> list[list[str]]:
    """Files below ``root``; returns the groups of paths with equal content, singles among them, each sorted."""
    folders = ["", *(f"{name.lower()}/" for name in draft.some(CITIES, 3))]
    folders.append(f"{folders[1]}copies/")
    names = draft.some(WORDS, 40)
    groups: list[list[str]] = []
    for size in [3, 2, *(draft.number(1, 4) for _ in range(draft.number(4, 6))), 1]:
        data = draft.text(draft.number(30, 300))
        paths = sorted(f"{root}/{draft.pick(*folders)}{names.pop()}.{draft.pick('txt', 'dat')}" for _ in range(size))
        for path in paths:
            draft.file(path, data, keep=keep)
        if size == 1 and len(data) > 3:
            # The same size and nearly the same content.
            path = f"{root}/{draft.pick(*folders)}{names.pop()}.txt"
            draft.file(path, b"#" + data[1:], keep=keep)
            groups.append([path])
        groups.append(paths)
    return groups


def _report(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-redundant.txt"
    groups = _tree(draft, root, keep=True)
    extra = sorted(path for group in groups for path in group[1:])
    draft.say(
        draft.pick(
            f"Below {root} many files exist more than once under different names.",
            f"Help me find out which files below {root} are redundant.",
        ),
        "Files are duplicates of each other if their contents are identical, whatever their names. Among the files "
        "with the same content the one whose absolute path comes first in byte order (LC_ALL=C) is the original; all "
        "the others are redundant.",
        f"Write the absolute paths of all redundant files to {report}, one per line, sorted in byte order.",
        draft.every_line(),
        draft.leave(),
    )
    expected = "".join(f"{path}\n" for path in extra)
    draft.initial.absent(report)
    draft.final.text(report, expected)
    oracle = (
        f"find {root} -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 1,1 -k 2 | awk 'seen[$1]++ {{ print $2 }}' "
        f"| LC_ALL=C sort > {report}\n"
    )
    draft.solve(oracle, swap(oracle, "-k 1,1 -k 2", "-k 1,1 -k 2r"), expected)


def _delete(draft: Draft) -> None:
    root = draft.project()
    groups = _tree(draft, root, keep=False)
    last = draft.chance(0.5)
    stays = {
        path.removeprefix(f"{root}/"): draft.files[path].content for path in (g[-1 if last else 0] for g in groups)
    }
    draft.say(
        draft.pick(f"Free some space in {root}.", f"Please remove duplicate files below {root}."),
        "Wherever several regular files below it have identical content, keep only the one whose absolute path comes "
        f"{'last' if last else 'first'} in byte order (as LC_ALL=C sort would order the paths) and delete the others.",
        "Files whose content exists only once stay. No remaining file may be changed or moved, and no new files may "
        f"appear below {root}.",
    )
    # Whether a directory that is empty now may stay is not said.
    folders = {path.removeprefix(f"{root}/").rpartition("/")[0] for path in draft.files}
    draft.final.files(root, stays, empty=sorted({"/".join(f.split("/")[: n + 1]) for f in folders for n in range(9)}))
    oracle = (
        f"find {root} -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 1,1 -k 2{'r' if last else ''} "
        "| awk 'seen[$1]++ { print $2 }' | xargs -r rm\n"
    )
    near = swap(oracle, "-k 2r" if last else "-k 2", "-k 2" if last else "-k 2r")
    draft.solve(oracle, near, "\n".join(sorted(stays)))


def _groups(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-duplicates.json"
    groups = [group for group in _tree(draft, root, keep=True) if len(group) > 1]
    groups.sort()
    entries = [
        {"size": len(draft.files[group[0]].content), "files": [path.removeprefix(f"{root}/") for path in group]}
        for group in groups
    ]
    wasted = sum(len(draft.files[group[0]].content) * (len(group) - 1) for group in groups)
    value = {"wasted_bytes": wasted, "groups": entries}
    draft.say(
        draft.pick(
            f"I need a report on duplicate files below {root}.", f"How much space do duplicates in {root} waste?"
        ),
        f"Write a JSON object to {report} with two keys. wasted_bytes: the number of bytes that would be saved by "
        "keeping just one file of each set of files with identical content. groups: an array with one object for each "
        "such set of two or more files, with the keys size (size in bytes of one of the files) and files (array of "
        f"the paths, relative to {root}, sorted in byte order).",
        "Order the groups by the first path of each in byte order.",
        draft.leave(),
    )
    draft.initial.absent(report)
    draft.final.json(report, value)
    oracle = python(
        """
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
        """,
        root=root,
        report=report,
    )
    draft.solve(oracle, swap(oracle, '* (len(group["files"]) - 1)', '* len(group["files"])'), repr(value))


FAMILY = Family("duplicates", "Find, remove and report duplicate files", (_report, _delete, _groups), ("python3",))
