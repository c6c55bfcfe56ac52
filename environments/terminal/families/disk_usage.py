"""Family: disk usage, by files and directories."""

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, FIRST_NAMES, WORDS


def _per_directory(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('homes', 'volumes', 'teams')}"
    report = f"{root}-usage.txt"
    owners = [name.lower() for name in draft.some(FIRST_NAMES, draft.number(4, 7))]
    equal = draft.number(100, 900)
    for index, owner in enumerate(owners):
        names = draft.some(WORDS, draft.number(1, 5))
        sizes = [draft.number(5, 2500) for _ in names]
        if index < 2:
            # Two of the same size, so that the order among equals matters.
            names, sizes = names[:1], [equal]
        for name, size in zip(names, sizes, strict=True):
            draft.file(f"{root}/{owner}/{draft.pick('', 'old/', 'old/er/')}{name}.txt", draft.text(size))
    draft.say(
        draft.pick(
            f"Which of the directories in {root} take the most space?",
            f"I want to know how many bytes each directory in {root} holds.",
        ),
        "! For each directory directly inside it, add up the sizes in bytes of all regular files in it at any depth "
        "(the files' own sizes, not disk blocks).",
        f"! Write the result to {report}, one line per directory: the total, one space, the name of the directory "
        "(without path).",
        "! Largest total first;",
        "! equal totals in alphabetical order of the names.",
        draft.every_line(),
    )
    oracle = (
        f"cd {root} || exit 1\nfor folder in *; do\n"
        '  find "$folder" -type f -printf "%s $folder\\n"\n'
        "done | awk '{ total[$2] += $1 } END { for (name in total) print total[name], name }' "
        f"| LC_ALL=C sort -k 1,1nr -k 2,2 > {report}\n"
    )
    draft.solve(oracle, swap(oracle, "-k 2,2", "-k 2,2r"))


def _largest(draft: Draft) -> None:
    root = draft.project()
    report = draft.result(f"{root}-largest.tsv")
    count = draft.number(4, 8)
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
    sizes: dict[str, int] = {}
    for index, name in enumerate(draft.some(WORDS, draft.number(16, 24))):
        size = [95, 1000][index] if index < 2 else draft.number(10, 3000)
        path = f"{draft.pick(*folders)}{name}.{draft.pick('txt', 'log', 'dat')}"
        while size in sizes.values():
            size += 1
        sizes[path] = size
        draft.file(f"{root}/{path}", draft.text(size))
    draft.say(
        draft.pick(
            f"Find the {count} largest files below {root}.",
            f"What are the {count} biggest files anywhere below {root}?",
        ),
        f"! Write the {count} of them to {report}, one per line:",
        f"! size in bytes, a tab, and the path relative to {root} (without a leading ./),",
        "! largest first.",
        draft.every_line(),
    )
    oracle = f"find {root} -type f -printf '%s\\t%P\\n' | LC_ALL=C sort -k 1,1nr -k 2 | head -n {count} > {report}\n"
    draft.solve(oracle, swap(oracle, "%P", "%p"))


def _per_extension(draft: Draft) -> None:
    root = draft.project()
    report = draft.result(f"{root}-by-extension.json")
    hidden = draft.pick(".cache", ".git", "node_modules", "__pycache__", "build")
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 3))]
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
        draft.file(f"{root}/{folder}{name}{extension}", draft.text(size))
    draft.say(
        draft.pick(
            f"Summarise the files below {root} by extension.", f"I need statistics on the kinds of files below {root}."
        ),
        f"! Write {report}: a JSON object that maps each extension (what follows the last dot of the name, in small "
        "letters, without the dot, so that a.TXT and b.txt count together)",
        '! to an object {"files": NUMBER OF FILES, "bytes": SUM OF THEIR SIZES}.',
        "! Files without a dot in their name do not count,",
        f"! nor does anything inside a directory named {hidden}, at any depth.",
    )
    draft.form(report, "json")
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, f"if name != {hidden!r}", "if name"))


FAMILY = Family(
    "disk_usage", "Add up sizes by directory, file and kind", (_per_directory, _largest, _per_extension), ("python3",)
)
