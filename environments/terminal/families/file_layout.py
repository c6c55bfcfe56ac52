"""Family: directories and files, created and sorted."""

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS


def _create(draft: Draft) -> None:
    root = draft.project()
    tree = f"{root}/{draft.pick(*SERVICES)}"
    draft.file(f"{root}/notes.txt", draft.text(draft.number(40, 120)))
    folders = draft.some(DEPARTMENTS, draft.number(2, 4))
    files: dict[str, str] = {}
    for folder in folders:
        for name in draft.some(WORDS, draft.number(1, 3)):
            files[f"{folder}/{name}.txt"] = f"{name}: {draft.prose(draft.number(2, 5))}\n"
    empty = f"{draft.pick(*folders)}/drafts"
    listing = "\n".join(f"- {path} containing the single line: {text.strip()}" for path, text in files.items())
    draft.say(
        draft.pick(
            f"Please set up a new directory {tree} for me.",
            f"I need a fresh directory tree at {tree}.",
            f"Create the directory {tree}; it does not exist yet.",
        ),
        "These are its files (paths relative to it):",
        f"! \n{listing}",
    )
    draft.say(f"! Also create the empty directory {empty} in it.", "! Each line ends with a newline.")
    oracle = f"mkdir -p {tree}/{empty}\n"
    for path, text in files.items():
        oracle += f"mkdir -p $(dirname {tree}/{path})\necho '{text.strip()}' > {tree}/{path}\n"
    last = list(files.values())[-1].strip()
    draft.solve(oracle, swap(oracle, f"echo '{last}'", f"printf '{last}'"))


def _by_extension(draft: Draft) -> None:
    draft.root = root = f"{draft.project()}/{draft.pick('inbox', 'downloads', 'unsorted', 'dropbox', 'incoming')}"
    extensions = draft.some(("txt", "csv", "pdf", "png", "log", "json", "md"), draft.number(3, 5))
    names = draft.some(WORDS, draft.number(9, 16))
    for index, name in enumerate(names):
        if index < 2:
            file = name.upper() if index else name
        else:
            extension = extensions[index % len(extensions)]
            middle = draft.pick("", "", ".old", ".v2", ".final") if index > 2 else ".Old"
            file = f"{name}{middle}.{extension}"
        draft.file(f"{root}/{file}", draft.text(draft.number(20, 120)), draft.pick(0o644, 0o644, 0o600))
    draft.mode(f"{root}/*/*", "exact")
    draft.say(
        draft.pick(
            f"The directory {root} is a mess.",
            f"All sorts of files have piled up directly in {root}.",
            f"Can you tidy up {root}?",
        ),
        f"! Move every file in it into a subdirectory of {root} named after the file's extension, which is the part "
        f"after the last dot, without the dot: a file called notes.old.txt goes to {root}/txt/notes.old.txt.",
        f"! Files whose name has no dot go to {root}/other.",
        "! The files keep their names,",
        "! their contents and their permissions;",
        "the permissions of the new directories are up to you.",
    )
    oracle = (
        f"cd {root} || exit 1\nfor file in *; do\n"
        '  case "$file" in\n    *.*) folder="${file##*.}" ;;\n    *) folder=other ;;\n  esac\n'
        '  mkdir -p "$folder"\n  mv "$file" "$folder/"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, "*) folder=other ;;", "*) continue ;;"))


def _by_date(draft: Draft) -> None:
    root = draft.project()
    source, target = draft.pick(("incoming", "archive"), ("scans", "sorted"), ("uploads", "by-date"))
    for name in draft.some(WORDS, draft.number(10, 18)):
        year, month, day = draft.number(2019, 2025), draft.number(1, 12), draft.number(1, 28)
        file = f"{year}-{month:02d}-{day:02d}_{name}.{draft.pick('txt', 'csv', 'log', 'dat')}"
        draft.file(f"{root}/{source}/{file}", draft.text(draft.number(20, 90)), draft.pick(0o644, 0o644, 0o600))
    shapes = ("{n}.txt", "{n}_2023-01-15_x.txt", "2024_{n}.csv", "24-01-02_{n}.txt")
    for name, shape in zip(draft.some(DEPARTMENTS, 4), shapes, strict=True):
        draft.file(f"{root}/{source}/{shape.replace('{n}', name)}", draft.text(draft.number(20, 90)))
    dated = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]_*"
    draft.mode(f"{root}/{target}/*/*/*", "exact")
    draft.say(
        draft.pick(
            f"I want the files in {root}/{source} filed by month.",
            f"Please file the dated documents of {root}/{source} away.",
        ),
        "Names that begin with a date have the form YYYY-MM-DD_rest, for example 2021-08-30_memo.txt.",
        f"! Move each such file to {root}/{target}/YYYY/MM/rest, so that one would become "
        f"{root}/{target}/2021/08/memo.txt:",
        "! the date and the underscore after it disappear from the name.",
    )
    draft.say(
        "! Files whose name does not begin with a full date of exactly that form stay where they are in "
        f"{root}/{source}, under the same name.",
        "! All files keep their contents and permissions;",
        "the permissions of new directories are up to you.",
    )
    oracle = (
        f"cd {root}/{source} || exit 1\nshopt -s nullglob\nfor file in {dated}; do\n"
        f'  folder="{root}/{target}/${{file:0:4}}/${{file:5:2}}"\n'
        '  mkdir -p "$folder"\n  mv "$file" "$folder/${file:11}"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, "/${file:11}", "/"))


FAMILY = Family("file_layout", "Make directory trees; sort files into directories", (_create, _by_extension, _by_date))
