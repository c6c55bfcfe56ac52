"""Family: files with the same content."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import CITIES, WORDS

__all__ = ["FAMILY"]


def _tree(draft: Draft, root: str, *, keep: bool) -> list[list[str]]:
    """Write files below ``root``. Return the sorted groups of paths with equal content, singles included."""
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
    singles = [group[0] for group in groups if len(group) == 1]
    originals = [group[0] for group in groups if len(group) > 1]
    right = "* has the right lines"
    draft.say(
        draft.pick(
            f"Below {root} many files exist more than once under different names.",
            f"Help me find out which files below {root} are redundant.",
        ),
        draft.require(
            "Files are duplicates of each other if their contents are identical, whatever their names.",
            breach("duplicates by size", right, swap=("-exec sha256sum {} +", "-printf '%s  %p\\n'")),
            breach(
                "duplicates in one directory alone", right, swap=("seen[$1]++", 'split($2, p, "/") && seen[$1 p[5]]++')
            ),
        ),
        draft.require(
            "Among the files with the same content the one whose absolute path comes first in byte order (LC_ALL=C) is "
            "the original; all the others are redundant.",
            breach("the last is the original", right, swap=("-k 1,1 -k 2", "-k 1,1 -k 2r")),
            breach(
                "originals too", right, after=f"echo {originals[0]} >> {report} && LC_ALL=C sort -o {report} {report}"
            ),
            breach("the second of three alone", right, swap=("seen[$1]++ {", "seen[$1]++ == 1 {")),
        ),
        draft.require(
            f"Write the absolute paths of all redundant files to {report}, one per line,",
            breach("relative paths", right, after=f"sed -i s#{root}/## {report}"),
            breach("two on a line", right, after=f"paste -d ' ' - - < {report} > ~/pairs; mv ~/pairs {report}"),
            breach("a path twice", right, after=f"sed -i 1p {report}"),
        ),
        draft.require(
            "sorted in byte order.",
            breach("sorted backwards", "lines of * are in order", swap=("LC_ALL=C sort >", "LC_ALL=C sort -r >")),
        ),
        draft.every_line(report),
        draft.leave(which=singles[0]),
    )
    expected = "".join(f"{path}\n" for path in extra)
    draft.result(report, expected)
    draft.honest(
        "found out by Python",
        instead=python(
            """
            import os
            seen, extra = set(), []
            paths = [os.path.join(place, name) for place, _, names in os.walk(@root@) for name in names]
            for path in sorted(paths):
                data = open(path, "rb").read()
                if data in seen:
                    extra.append(path)
                seen.add(data)
            open(@report@, "w").write("".join(path + "\\n" for path in extra))
            """,
            root=root,
            report=report,
        ),
    )
    draft.honest("compared by another checksum", swap=("sha256sum", "md5sum"))
    draft.honest("a list of all checksums beside it", after=f"md5sum {singles[0]} > {root}-sums.txt")
    oracle = (
        f"find {root} -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 1,1 -k 2 | awk 'seen[$1]++ {{ print $2 }}' "
        f"| LC_ALL=C sort > {report}\n"
    )
    draft.solve(oracle, swap(oracle, "-k 1,1 -k 2", "-k 1,1 -k 2r"), expected)


def _delete(draft: Draft) -> None:
    root = draft.project()
    groups = _tree(draft, root, keep=False)
    last = draft.chance(0.5)
    order, other = ("-k 2r", "-k 2") if last else ("-k 2 ", "-k 2r ")
    several = [group[-1 if last else 0] for group in groups if len(group) > 1]
    single = next(group[0] for group in groups if len(group) == 1)
    stays = {
        path.removeprefix(f"{root}/"): draft.files[path].content for path in (g[-1 if last else 0] for g in groups)
    }
    draft.say(
        draft.pick(f"Free some space in {root}.", f"Please remove duplicate files below {root}."),
        draft.require(
            "Wherever several regular files below it have identical content, keep only the one whose absolute path "
            f"comes {'last' if last else 'first'} in byte order (as LC_ALL=C sort would order the paths) and delete "
            "the others.",
            breach(
                "another one kept", "* holds nothing else", "files of * have the right content", swap=(order, other)
            ),
            breach("the second copy left", "* holds nothing else", swap=("seen[$1]++ {", "seen[$1]++ > 1 {")),
            breach("nothing kept of a group", "files of * have the right content", after=f"rm {several[0]}"),
            breach(
                "a directory that cannot be looked into",
                "* holds nothing else",
                after="mkdir hidden && echo x > hidden/copy && chmod 000 hidden",
            ),
        ),
        draft.require(
            "Files whose content exists only once stay.",
            breach("a single file deleted", "files of * have the right content", after=f"rm {single}"),
            breach(
                "two files deleted",
                "files of * have the right content",
                after=f"rm {single} {several[-1]}",
            ),
        ),
        draft.require(
            "No remaining file may be changed or moved,",
            breach("a file changed", "files of * have the right content", after=f"echo more >> {single}"),
            breach(
                "a file moved",
                "* holds nothing else",
                "files of * have the right content",
                after=f"mv {single} {single}.moved",
            ),
            breach(
                "a link in place of a file",
                "files of * have the right content",
                after=f"mv {single} ~/x && ln -s ~/x {single}",
            ),
        ),
        draft.require(
            f"and nothing new may appear below {root}: no files, links or directories.",
            breach("one more file", "* holds nothing else", after="echo more > more.txt"),
            breach(
                "links in place of what was deleted",
                "* holds nothing else",
                swap=("xargs -r rm", "xargs -r -n 1 ln -sf /etc/hostname"),
            ),
            breach("one more directory, empty", "* holds nothing else", after="mkdir more"),
        ),
    )
    # The prompt does not say whether a directory that is now empty may stay.
    folders = {path.removeprefix(f"{root}/").rpartition("/")[0] for path in draft.files}
    draft.final.files(root, stays, empty=sorted({"/".join(f.split("/")[: n + 1]) for f in folders for n in range(9)}))
    oracle = (
        f"find {root} -type f -exec sha256sum {{}} + | LC_ALL=C sort -k 1,1 -k 2{'r' if last else ''} "
        "| awk 'seen[$1]++ { print $2 }' | xargs -r rm\n"
    )
    draft.honest("empty directories removed", after="find . -mindepth 1 -type d -empty -delete")
    draft.honest("what was deleted kept in the home", swap=("xargs -r rm", "xargs -r mv --backup=numbered -t ~"))
    draft.honest("compared by another checksum", swap=("sha256sum", "sha1sum"))
    draft.solve(oracle, swap(oracle, order, other), "\n".join(sorted(stays)))


def _groups(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-duplicates.json"
    every = _tree(draft, root, keep=True)
    single = next(group[0] for group in every if len(group) == 1)
    groups = sorted(group for group in every if len(group) > 1)
    right = "* has the right value"
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
        draft.require(
            f"Write a JSON object to {report} with the keys wasted_bytes and groups and no others.",
            breach("one more key", right, swap=('"groups": groups}', '"groups": groups, "version": 1}')),
            breach(
                "an array in place of the object",
                right,
                swap=('{"wasted_bytes": wasted, "groups": groups}', "[wasted, groups]"),
            ),
        ),
        draft.require(
            "wasted_bytes is the number of bytes that would be saved by keeping just one file of each set of files "
            "with identical content.",
            breach("all bytes of the sets", right, swap=('* (len(group["files"]) - 1)', '* len(group["files"])')),
            breach(
                "a text in place of the number", right, swap=('"wasted_bytes": wasted', '"wasted_bytes": str(wasted)')
            ),
        ),
        draft.require(
            "groups is an array with one object for each such set of two or more files,",
            breach("files without a duplicate too", right, swap=("if len(paths) > 1", "")),
            breach("sets of two left out", right, swap=("if len(paths) > 1", "if len(paths) > 2")),
        ),
        draft.require(
            "with the keys size (size in bytes of one of the files)",
            breach(
                "sizes of all files of a set", right, swap=('{"size": len(data),', '{"size": len(data) * len(paths),')
            ),
        ),
        draft.require(
            f"and files (array of the paths, relative to {root}, sorted in byte order).",
            breach("absolute paths", right, swap=(f"os.path.relpath(path, {root!r})", "path")),
            breach("paths backwards", right, swap=('"files": sorted(paths)', '"files": sorted(paths)[::-1]')),
            breach("one path twice", right, swap=('"files": sorted(paths)', '"files": sorted(paths) + paths[:1]')),
        ),
        draft.require(
            "Order the groups by the first path of each in byte order.",
            breach("groups backwards", right, swap=('group["files"][0])', 'group["files"][0], reverse=True)')),
        ),
        draft.leave(which=single),
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
    draft.honest("on one line", swap=(", indent=2", ""))
    draft.honest(
        "keys in another order",
        swap=('{"wasted_bytes": wasted, "groups": groups}', '{"groups": groups, "wasted_bytes": wasted}'),
    )
    draft.honest("a newline at the end", after=f"echo >> {report}")
    draft.solve(oracle, swap(oracle, '* (len(group["files"]) - 1)', '* len(group["files"])'), repr(value))


FAMILY = Family("duplicates", "Find, remove and report duplicate files", (_report, _delete, _groups), ("python3",))
