"""Making directories and files, and sorting existing ones into directories."""

from __future__ import annotations

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _create(draft: Draft) -> None:
    root = f"{draft.project()}-{draft.pick(*SERVICES)}"
    folders = draft.some(DEPARTMENTS, draft.number(2, 4))
    files: dict[str, str] = {}
    for folder in folders:
        for name in draft.some(WORDS, draft.number(1, 3)):
            files[f"{folder}/{name}.txt"] = f"{name}: {draft.prose(draft.number(2, 5))}\n"
    empty = f"{draft.pick(*folders)}/drafts"
    listing = "\n".join(f"- {path} containing the single line: {text.strip()}" for path, text in files.items())
    draft.say(
        draft.pick(
            f"Please set up a new project directory {root} for me.",
            f"I need a fresh directory tree at {root}.",
            f"Create the directory {root}; it does not exist yet.",
        ),
        "It must contain these files (paths relative to it) and no others:",
        f"\n{listing}",
    )
    draft.say(f"Also create the empty directory {empty} in it.", "Each line ends with a newline.")
    draft.initial.absent(root)
    draft.final.files(root, {path: text.encode() for path, text in files.items()}, empty=[empty])
    draft.final.directory(f"{root}/{empty}")
    draft.final.test("empty directory is empty", f"assert os.listdir({f'{root}/{empty}'!r}) == []")
    oracle = f"mkdir -p {root}/{empty}\n"
    for path, text in files.items():
        oracle += f"mkdir -p $(dirname {root}/{path})\necho '{text.strip()}' > {root}/{path}\n"
    last = list(files.values())[-1].strip()
    draft.solve(oracle, swap(oracle, f"echo '{last}'", f"printf '{last}'"), listing)


def _by_extension(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('inbox', 'downloads', 'unsorted', 'dropbox', 'incoming')}"
    extensions = draft.some(("txt", "csv", "pdf", "png", "log", "json", "md"), draft.number(3, 5))
    expected: dict[str, bytes] = {}
    names = draft.some(WORDS, draft.number(9, 16))
    for index, name in enumerate(names):
        data = draft.text(draft.number(20, 120))
        if index < 2:
            folder, file = "other", name.upper() if index else name
        else:
            extension = extensions[index % len(extensions)]
            middle = draft.pick("", "", ".old", ".v2", ".final")
            folder, file = extension, f"{name}{middle}.{extension}"
        draft.file(f"{root}/{file}", data)
        expected[f"{folder}/{file}"] = data
    draft.say(
        draft.pick(
            f"The directory {root} is a mess.",
            f"All sorts of files have piled up directly in {root}.",
            f"Can you tidy up {root}?",
        ),
        f"Move every file in it into a subdirectory of {root} named after the file's extension, which is the part "
        f"after the last dot, without the dot: a file called notes.old.txt goes to {root}/txt/notes.old.txt. Files "
        f"whose name has no dot go to {root}/other.",
        "Keep the names and the content, and leave nothing but these subdirectories at the top.",
    )
    draft.final.files(root, expected)
    draft.final.test(
        "nothing but directories at the top",
        f"assert all(os.path.isdir(os.path.join({root!r}, name)) for name in os.listdir({root!r}))",
    )
    oracle = (
        f"cd {root} || exit 1\nfor file in *; do\n"
        '  case "$file" in\n    *.*) folder="${file##*.}" ;;\n    *) folder=other ;;\n  esac\n'
        '  mkdir -p "$folder"\n  mv "$file" "$folder/"\ndone\n'
    )
    near = swap(oracle, "*) folder=other ;;", "*) continue ;;")
    draft.solve(oracle, near, "\n".join(sorted(expected)))


def _by_date(draft: Draft) -> None:
    root = draft.project()
    source, target = draft.pick(("incoming", "archive"), ("scans", "sorted"), ("uploads", "by-date"))
    moved: dict[str, bytes] = {}
    stay: dict[str, bytes] = {}
    for name in draft.some(WORDS, draft.number(10, 18)):
        year, month, day = draft.number(2019, 2025), draft.number(1, 12), draft.number(1, 28)
        file = f"{name}.{draft.pick('txt', 'csv', 'log', 'dat')}"
        data = draft.text(draft.number(20, 90))
        draft.file(f"{root}/{source}/{year}-{month:02d}-{day:02d}_{file}", data)
        moved[f"{year}/{month:02d}/{file}"] = data
    for name in draft.some(DEPARTMENTS, 3):
        shape = draft.pick("{n}.txt", "{n}_2023-01-15.txt", "2024_{n}.csv", "24-01-02_{n}.txt")
        file = shape.replace("{n}", name)
        data = draft.text(draft.number(20, 90))
        draft.file(f"{root}/{source}/{file}", data)
        stay[file] = data
    draft.say(
        draft.pick(
            f"I want the files in {root}/{source} filed by month.",
            f"Please file the dated documents of {root}/{source} away.",
        ),
        "Names that begin with a date have the form YYYY-MM-DD_rest, for example 2021-08-30_memo.txt. Move each such "
        f"file to {root}/{target}/YYYY/MM/rest, so that one would become {root}/{target}/2021/08/memo.txt: the date "
        "and the underscore after it disappear from the name.",
    )
    draft.say(
        "Files whose name does not begin with a full date of exactly that form stay where they are in "
        f"{root}/{source}, under the same name.",
        "File contents must not change, and no other files may appear.",
    )
    draft.initial.absent(f"{root}/{target}")
    draft.final.files(f"{root}/{target}", moved)
    draft.final.files(f"{root}/{source}", stay)
    oracle = (
        f"cd {root}/{source} || exit 1\nshopt -s nullglob\n"
        "for file in [0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]_*; do\n"
        f'  folder="{root}/{target}/${{file:0:4}}/${{file:5:2}}"\n'
        '  mkdir -p "$folder"\n  mv "$file" "$folder/${file:11}"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, "/${file:11}", "/"), "\n".join(sorted(moved)))


FAMILY = Family("file_layout", "Make directory trees; sort files into directories", (_create, _by_extension, _by_date))
