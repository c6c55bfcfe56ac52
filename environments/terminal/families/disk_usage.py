"""Family: disk usage, by files and directories."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, FIRST_NAMES, WORDS

__all__ = ["FAMILY"]

_LINES, _ORDER, _VALUE = "* has the right lines", "lines of * are in order", "* has the right value"


def _per_directory(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('homes', 'volumes', 'teams')}"
    report = f"{root}-usage.txt"
    totals: dict[str, int] = {}
    owners = [name.lower() for name in draft.some(FIRST_NAMES, draft.number(4, 7))]
    equal = draft.number(100, 900)
    for index, owner in enumerate(owners):
        names = draft.some(WORDS, draft.number(1, 5))
        sizes = [draft.number(5, 2500) for _ in names]
        if index < 2:
            # Two of the same size, so that the order among equals matters.
            names, sizes = names[:1], [equal]
        for name, size in zip(names, sizes, strict=True):
            draft.file(f"{root}/{owner}/{draft.pick('', 'old/', 'old/er/')}{name}.txt", draft.text(size), keep=True)
        totals[owner] = sum(sizes)
    ordered = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    draft.say(
        draft.pick(
            f"Which of the directories in {root} take the most space?",
            f"I want to know how many bytes each directory in {root} holds.",
        ),
        draft.require(
            "For each directory directly inside it, add up the sizes in bytes of all regular files in it at any depth "
            "(the files' own sizes, not disk blocks).",
            breach("the number of files", _LINES, swap=("%s $folder", "1 $folder")),
            breach("disk blocks", _LINES, swap=("%s $folder", "%b $folder")),
            breach("directories counted too", _LINES, swap=("-type f ", "")),
            breach("a directory missing", _LINES, after=f"sed -i 1d {report}"),
        ),
        draft.require(
            f"Write the result to {report}, one line per directory: the total, one space, the name of the directory "
            "(without path).",
            breach("the name first", _LINES, after=f"sed -Ei 's/(.*) (.*)/\\2 \\1/' {report}"),
            breach("a tab in place of the space", _LINES, after=f"sed -i 's/ /\\t/' {report}"),
            breach("names with their path", _LINES, after=f"sed -i 's# #&{root}/#' {report}"),
            breach("a line for all of them", _LINES, after=f"echo '0 .' >> {report}"),
        ),
        draft.require(
            "Largest total first;",
            breach("smallest total first", _ORDER, swap=("-k 1,1nr", "-k 1,1n")),
        ),
        draft.require(
            "equal totals in alphabetical order of the names.",
            breach("equal totals backwards", _ORDER, swap=("-k 2,2", "-k 2,2r")),
        ),
        draft.every_line(report),
        draft.leave(),
    )
    expected = "".join(f"{total} {name}\n" for name, total in ordered)
    draft.result(report, expected)
    oracle = (
        f"cd {root} || exit 1\nfor folder in *; do\n"
        '  find "$folder" -type f -printf "%s $folder\\n"\n'
        "done | awk '{ total[$2] += $1 } END { for (name in total) print total[name], name }' "
        f"| LC_ALL=C sort -k 1,1nr -k 2,2 > {report}\n"
    )
    draft.honest(
        "added up by Python",
        instead=python(
            """
            import os
            total = {name: 0 for name in os.listdir(@root@)}
            for name in total:
                for place, _, names in os.walk(os.path.join(@root@, name)):
                    total[name] += sum(os.path.getsize(os.path.join(place, file)) for file in names)
            with open(@report@, "w") as report:
                for name in sorted(total, key=lambda name: (-total[name], name)):
                    print(total[name], name, file=report)
            """,
            root=root,
            report=report,
        ),
    )
    draft.pieces(report)
    draft.solve(oracle, swap(oracle, "-k 2,2", "-k 2,2r"), expected)


def _largest(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-largest.tsv"
    count = draft.number(4, 8)
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
    sizes: dict[str, int] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(16, 24))):
        size = [95, 1000][index] if index < 2 else draft.number(10, 3000)
        path = f"{draft.pick(*folders)}{name}.{draft.pick('txt', 'log', 'dat')}"
        while size in sizes.values():
            size += 1
        sizes[path] = size
        draft.file(f"{root}/{path}", draft.text(size), keep=True)
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]
    draft.say(
        draft.pick(
            f"Find the {count} largest files below {root}.",
            f"What are the {count} biggest files anywhere below {root}?",
        ),
        draft.require(
            f"Write the {count} of them to {report}, one per line:",
            breach("one file too many", _LINES, swap=(f"head -n {count}", f"head -n {count + 1}")),
            breach("one file too few", _LINES, swap=(f"head -n {count}", f"head -n {count - 1}")),
            breach("the smallest files", _LINES, swap=("head -n", "tail -n")),
            breach("one file passed over", _LINES, swap=("-type f", f"-type f ! -path '{root}/{ordered[0][0]}'")),
        ),
        draft.require(
            f"size in bytes, a tab, and the path relative to {root} (without a leading ./),",
            breach("absolute paths", _LINES, swap=("%P", "%p")),
            breach("a leading ./", _LINES, swap=("%P", "./%P")),
            breach("a space in place of the tab", _LINES, swap=("%s\\t%P", "%s %P")),
            breach("kilobytes", _LINES, after=f"sed -Ei 's/[0-9]{{3}}\\t/K\\t/' {report}"),
        ),
        draft.require(
            "largest first.",
            breach("smallest first", _ORDER, after=f"tac {report} > ~/x && mv ~/x {report}"),
        ),
        draft.every_line(report),
        draft.leave(which=f"{root}/{min(sizes, key=sizes.__getitem__)}"),
    )
    expected = "".join(f"{size}\t{path}\n" for path, size in ordered)
    draft.result(report, expected)
    oracle = f"find {root} -type f -printf '%s\\t%P\\n' | LC_ALL=C sort -k 1,1nr -k 2 | head -n {count} > {report}\n"
    draft.honest(
        "with ls and awk",
        instead=f"""
cd {root} || exit 1
find . -type f -print0 | xargs -0 ls -l | awk '{{ print $5 "\\t" substr($9, 3) }}' | sort -nr > ~/all
head -n {count} ~/all > {report}
""",
    )
    draft.pieces(report)
    draft.honest("a list of all files beside it", after=f"du -ab . > {root}-all.txt")
    draft.solve(oracle, swap(oracle, "%P", "%p"), expected)


def _per_extension(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-by-extension.json"
    hidden = draft.pick(".cache", ".git", "node_modules", "__pycache__", "build")
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
    totals: dict[str, dict[str, int]] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(14, 22))):
        extension = "" if index < 2 else f".{draft.pick('txt', 'log', 'csv', 'json', 'TXT')}"
        extension = {5: ".txt", 6: ".TXT"}.get(index, extension)
        folder = draft.pick(*folders)
        left_out = index in (2, 3, 4)
        if left_out:
            folder += f"{hidden}/{draft.pick('', 'deep/')}"
        size = draft.number(10, 900)
        if index in (2, 3):
            # One file directly in such a directory and one deeper. Both would count if they lay elsewhere.
            folder, extension = f"{folder.partition(hidden)[0]}{hidden}/{'deep/' * (index - 2)}", ".txt"
        draft.file(f"{root}/{folder}{name}{extension}", draft.text(size), keep=True)
        if extension and not left_out:
            entry = totals.setdefault(extension[1:].lower(), {"files": 0, "bytes": 0})
            entry["files"] += 1
            entry["bytes"] += size
    draft.say(
        draft.pick(
            f"Summarise the files below {root} by extension.",
            f"I need statistics on the kinds of files below {root}.",
        ),
        draft.require(
            f"Write {report}: a JSON object that maps each extension (what follows the last dot of the name, in small "
            "letters, without the dot, so that a.TXT and b.txt count together)",
            breach("capital letters kept apart", _VALUE, swap=('.rpartition(".")[2].lower()', '.rpartition(".")[2]')),
            breach(
                "extensions with their dot",
                _VALUE,
                swap=('name.rpartition(".")[2].lower()', '"." + name.rpartition(".")[2].lower()'),
            ),
            breach(
                "a list of extensions",
                _VALUE,
                swap=("json.dump(totals,", "json.dump([{**totals[name], 'name': name} for name in totals],"),
            ),
        ),
        draft.require(
            'to an object {"files": NUMBER OF FILES, "bytes": SUM OF THEIR SIZES}.',
            breach("files counted twice", _VALUE, swap=('entry["files"] += 1', 'entry["files"] += 2')),
            breach(
                "kilobytes",
                _VALUE,
                swap=(
                    "os.path.getsize(os.path.join(place, name))",
                    "-(-os.path.getsize(os.path.join(place, name)) // 1024)",
                ),
            ),
            breach(
                "texts in place of numbers",
                _VALUE,
                swap=(
                    "json.dump(totals,",
                    "json.dump({name: {key: str(entry[key]) for key in entry} for name, entry in totals.items()},",
                ),
            ),
            breach(
                "one more key",
                _VALUE,
                swap=("json.dump(totals,", "json.dump({name: {**entry, 'mean': 1} for name, entry in totals.items()},"),
            ),
        ),
        draft.require(
            "Files without a dot in their name do not count,",
            breach("files without a dot", _VALUE, swap=('if "." in name', "if name")),
        ),
        draft.require(
            f"nor does anything inside a directory named {hidden}, at any depth.",
            breach("what is inside such a directory", _VALUE, swap=(f"if name != {hidden!r}", "if name")),
            breach(
                "what is deeper inside",
                _VALUE,
                swap=(
                    "folders[:] = [name for name in folders if name",
                    "names = [name for name in names if os.path.basename(place)",
                ),
            ),
        ),
        draft.leave(),
    )
    draft.initial.absent(report)
    draft.final.json(report, totals)
    oracle = python(
        """
        import json, os
        totals = {}
        for place, folders, names in os.walk(@root@):
            folders[:] = [name for name in folders if name != @hidden@]
            for name in names:
                if "." in name:
                    entry = totals.setdefault(name.rpartition(".")[2].lower(), {"files": 0, "bytes": 0})
                    entry["files"] += 1
                    entry["bytes"] += os.path.getsize(os.path.join(place, name))
        json.dump(totals, open(@report@, "w"))
        """,
        root=root,
        hidden=hidden,
        report=report,
    )
    draft.honest("laid out in lines", swap=('"w"))', '"w"), indent=4)'))
    draft.honest("keys sorted", swap=('"w"))', '"w"), sort_keys=True)'))
    draft.honest("a newline at the end", after=f"echo >> {report}")
    draft.solve(oracle, swap(oracle, f"if name != {hidden!r}", "if name"), repr(totals))


FAMILY = Family(
    "disk_usage", "Add up sizes by directory, file and kind", (_per_directory, _largest, _per_extension), ("python3",)
)
