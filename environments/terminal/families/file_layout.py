"""Family: directories and files, created and sorted."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _create(draft: Draft) -> None:
    draft.root = root = f"{draft.project()}-{draft.pick(*SERVICES)}"
    folders = draft.some(DEPARTMENTS, draft.number(2, 4))
    files: dict[str, str] = {}
    for folder in folders:
        for name in draft.some(WORDS, draft.number(1, 3)):
            files[f"{folder}/{name}.txt"] = f"{name}: {draft.prose(draft.number(2, 5))}\n"
    empty = f"{draft.pick(*folders)}/drafts"
    listing = "\n".join(f"- {path} containing the single line: {text.strip()}" for path, text in files.items())
    first = next(iter(files))
    word = first.rpartition("/")[2].removesuffix(".txt")
    base = root.rpartition("/")[2]
    right, more = f"files of {base} have the right content", (f"{base} holds nothing else",)
    draft.say(
        draft.pick(
            f"Please set up a new project directory {root} for me.",
            f"I need a fresh directory tree at {root}.",
            f"Create the directory {root}; it does not exist yet.",
        ),
        "These are its files (paths relative to it):",
        draft.require(
            f"\n{listing}",
            breach("one file left out", right, after=f"rm {root}/{first}"),
            breach("a word that is another", right, after=f"sed -i 's/^{word}:/more:/' {root}/{first}"),
            breach("another name", right, *more, after=f"mv {root}/{first} {root}/{first}.bak"),
            breach("an empty file", right, after=f": > {root}/{first}"),
            breach("a link to the text", right, after=f"mv {root}/{first} ~/text; ln -s ~/text {root}/{first}"),
        ),
    )
    draft.say(
        draft.require(
            f"Also create the empty directory {empty} in it.",
            breach("no such directory", "drafts is an empty directory", after=f"rmdir {root}/{empty}"),
            breach("a file in it", "drafts is an empty directory", *more, after=f"touch {root}/{empty}/.keep"),
        ),
        draft.require(
            "There must be no other files and no other directories.",
            breach("one more file", *more, after=f"echo more > {root}/README"),
            breach("one more directory", *more, after=f"mkdir {root}/more"),
            breach("one more link", *more, after=f"ln -s {first} {root}/more"),
        ),
        draft.require(
            "Each line ends with a newline.",
            breach("no newline", right, after=f"truncate -s -1 {root}/{first}"),
            breach("another end of the line", right, after=f"sed -i 's/$/\\r/' {root}/{first}"),
        ),
    )
    draft.initial.absent(root)
    draft.final.files(root, {path: text.encode() for path, text in files.items()}, empty=[empty])
    draft.final.test(
        "drafts is an empty directory",
        f"assert stat.S_ISDIR(os.lstat({f'{root}/{empty}'!r}).st_mode)\nassert os.listdir({f'{root}/{empty}'!r}) == []",
    )
    draft.honest("for oneself", after=f"chmod -R go-rwx {root}")
    draft.honest(
        "from Python",
        instead=python(
            """
            import os
            for path, text in @files@.items():
                os.makedirs(os.path.dirname(os.path.join(@root@, path)), exist_ok=True)
                with open(os.path.join(@root@, path), "w") as file:
                    file.write(text)
            os.makedirs(os.path.join(@root@, @empty@))
            """,
            files=files,
            root=root,
            empty=empty,
        ),
    )
    draft.honest("made elsewhere and moved", after=f"cp -r {root} ~/elsewhere && rm -r {root} && mv ~/elsewhere {root}")
    oracle = f"mkdir -p {root}/{empty}\n"
    for path, text in files.items():
        oracle += f"mkdir -p $(dirname {root}/{path})\necho '{text.strip()}' > {root}/{path}\n"
    last = list(files.values())[-1].strip()
    draft.solve(oracle, swap(oracle, f"echo '{last}'", f"printf '{last}'"), listing)


def _by_extension(draft: Draft) -> None:
    draft.root = root = f"{draft.project()}/{draft.pick('inbox', 'downloads', 'unsorted', 'dropbox', 'incoming')}"
    extensions = draft.some(("txt", "csv", "pdf", "png", "log", "json", "md"), draft.number(3, 5))
    expected: dict[str, bytes] = {}
    names = draft.some(WORDS, draft.number(9, 16))
    for index, name in enumerate(names):
        data = draft.text(draft.number(20, 120))
        if index < 2:
            folder, file = "other", name.upper() if index else name
        else:
            extension = extensions[index % len(extensions)]
            middle = draft.pick("", "", ".old", ".v2", ".final") if index > 2 else ".old"
            folder, file = extension, f"{name}{middle}.{extension}"
        draft.file(f"{root}/{file}", data)
        expected[f"{folder}/{file}"] = data
    name = root.rpartition("/")[2]
    right, more = f"files of {name} have the right content", f"{name} holds nothing else"
    sample = next(path for path in expected if not path.startswith("other/"))
    draft.say(
        draft.pick(
            f"The directory {root} is a mess.",
            f"All sorts of files have piled up directly in {root}.",
            f"Can you tidy up {root}?",
        ),
        draft.require(
            f"Move every file in it into a subdirectory of {root} named after the file's extension, which is the part "
            f"after the last dot, without the dot: a file called notes.old.txt goes to {root}/txt/notes.old.txt.",
            breach("copies", more, swap=('mv "$file"', 'cp "$file"')),
            breach("the part after the first dot", right, more, swap=("${file##*.}", "${file#*.}")),
            breach("directories with a dot", right, more, swap=("${file##*.}", ".${file##*.}")),
            breach("one file left", right, more, after=f"mv {sample} ."),
        ),
        draft.require(
            f"Files whose name has no dot go to {root}/other.",
            breach("files without a dot left", right, more, swap=("*) folder=other ;;", "*) continue ;;")),
            breach("another directory", right, more, after="mv other misc"),
        ),
        draft.require(
            "Keep the names",
            breach("small letters", right, more, swap=('mv "$file" "$folder/"', 'mv "$file" "$folder/${file,,}"')),
            breach("one name without its end", right, more, after=f"mv {sample} {sample.rpartition('.')[0]}"),
        ),
        draft.require(
            "and the content,",
            breach("one file empty", right, after=f": > {sample}"),
            breach("a line more", right, after=f"echo more >> {sample}"),
        ),
        draft.require(
            "and leave nothing but these subdirectories and the files in them.",
            breach("one more file at the top", more, after="echo done > README"),
            breach("one more file below", more, after="echo done > other/README"),
            breach("one more directory, empty", more, after="mkdir more"),
            breach("a link at the top", more, after=f"ln -s {sample} newest"),
        ),
    )
    draft.final.files(root, expected)
    draft.honest(
        "from Python",
        instead=python(
            """
            import os, shutil
            for name in os.listdir(@root@):
                folder = os.path.join(@root@, name.rpartition(".")[2] if "." in name else "other")
                os.makedirs(folder, exist_ok=True)
                shutil.move(os.path.join(@root@, name), folder)
            """,
            root=root,
        ),
    )
    draft.honest("copied and removed", swap=('mv "$file" "$folder/"', 'cp "$file" "$folder/" && rm "$file"'))
    draft.honest("directories for oneself", after="chmod 700 */")
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
    kept, gone = next(iter(stay)), next(iter(moved))
    here = (f"files of {source} have the right content", f"{source} holds nothing else")
    there = (f"files of {target} have the right content", f"{target} holds nothing else")
    all_ = (here[0], there[1])
    draft.say(
        draft.pick(
            f"I want the files in {root}/{source} filed by month.",
            f"Please file the dated documents of {root}/{source} away.",
        ),
        "Names that begin with a date have the form YYYY-MM-DD_rest, for example 2021-08-30_memo.txt.",
        draft.require(
            f"Move each such file to {root}/{target}/YYYY/MM/rest, so that one would become "
            f"{root}/{target}/2021/08/memo.txt:",
            breach("copies", f"{source} holds nothing else", swap=('mv "$file"', 'cp "$file"')),
            breach("years alone", *there, swap=("/${file:5:2}", "")),
            breach("days too", *there, swap=("${file:5:2}", "${file:5:2}/${file:8:2}")),
            breach("months first", *there, swap=("${file:0:4}/${file:5:2}", "${file:5:2}/${file:0:4}")),
        ),
        draft.require(
            "the date and the underscore after it disappear from the name.",
            breach("names with their dates", *there, swap=("/${file:11}", "/")),
            breach("names with the underscore", *there, swap=("${file:11}", "${file:10}")),
        ),
    )
    draft.say(
        draft.require(
            "Files whose name does not begin with a full date of exactly that form stay where they are in "
            f"{root}/{source}, under the same name.",
            breach(
                "a date in the name's middle",
                *all_,
                after=f"mkdir -p {target}/2023/01; mv {source}/{kept} {target}/2023/01/",
            ),
            breach("another name", *here, after=f"mv {source}/{kept} {source}/{kept}.bak"),
        ),
        draft.require(
            "File contents must not change,",
            breach("a file moved that is empty", there[0], after=f": > {target}/{gone}"),
            breach("a line more in one that stays", here[0], after=f"echo more >> {source}/{kept}"),
        ),
        draft.require(
            "and no other files or directories may appear below the two.",
            breach("one more file", there[1], after=f"echo done > {target}/README"),
            breach("one more file in the other", here[1], after=f"echo done > {source}/README"),
            breach("an empty directory", there[1], after=f"mkdir {target}/1999"),
            breach("an empty directory in the other", here[1], after=f"mkdir {source}/old"),
        ),
    )
    draft.honest(
        "from Python",
        instead=python(
            """
            import os, re
            for name in os.listdir(@source@):
                found = re.match(r"([0-9]{4})-([0-9]{2})-[0-9]{2}_(.*)", name)
                if found:
                    folder = os.path.join(@target@, found[1], found[2])
                    os.makedirs(folder, exist_ok=True)
                    os.rename(os.path.join(@source@, name), os.path.join(folder, found[3]))
            """,
            source=f"{root}/{source}",
            target=f"{root}/{target}",
        ),
    )
    draft.honest(
        "copied and removed", swap=('mv "$file" "$folder/${file:11}"', 'cp "$file" "$folder/${file:11}" && rm "$file"')
    )
    draft.honest("directories for oneself", after=f"find {target} -type d -exec chmod 700 {{}} +")
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
