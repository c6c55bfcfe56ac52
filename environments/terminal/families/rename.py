"""Family: files renamed by a rule."""

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS


def _extension(draft: Draft) -> None:
    root = draft.root = f"{draft.project()}/{draft.pick('media', 'documents', 'assets', 'pages')}"
    old, new = draft.pick(("jpeg", "jpg"), ("htm", "html"), ("text", "txt"), ("yml", "yaml"), ("markdown", "md"))
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 2))]
    folders.append(f"{folders[1]}older/")
    names = draft.some(WORDS, 16)
    folders.append(f"{names.pop()}.{old}/")
    for index, name in enumerate(names[:10]):
        draft.file(f"{root}/{folders[index % len(folders)]}{name}.{old}", draft.text(draft.number(20, 80)))
    shapes = ("{n}.{o}.bak", "{n}{o}", "{o}_{n}.dat", "{n}.{n}", "{n}." + old.upper())
    for name, shape in zip(names[10:], shapes, strict=True):
        other = draft.pick(*folders[:4]) + shape.replace("{n}", name).replace("{o}", old)
        draft.file(f"{root}/{other}", draft.text(draft.number(20, 80)))
    renamed = f'mv "$file" "${{file%.{old}}}.{new}"'
    draft.mode(f"{root}/*", "exact")
    draft.say(
        draft.pick(
            f"! Rename every file below {root}, at any depth, whose name ends in .{old} so that it ends in .{new} "
            "instead.",
            f"! Our tools only accept .{new}. Below {root} (including all subdirectories) there are files whose "
            f"names end in .{old}; please change that ending to .{new}.",
        ),
        f"! Files with any other name, such as those that merely contain {old!r} somewhere or end in .{old.upper()}, "
        "keep their names.",
        "! Directories keep their names, too, and the files their contents and permissions.",
    )
    oracle = f"find {root} -type f -name '*.{old}' | while read -r file; do {renamed}; done\n"
    draft.solve(oracle, swap(oracle, "-type f", "-maxdepth 1 -type f"))


def _clean(draft: Draft) -> None:
    root = draft.root = f"{draft.project()}/{draft.pick('shared', 'photos', 'papers', 'forms')}"
    words = draft.some(WORDS, 24)
    for index in range(draft.number(8, 12)):
        parts = [words[2 * index].capitalize(), draft.pick(words[2 * index + 1], words[2 * index + 1].upper())]
        if draft.chance(0.5):
            parts.append(str(draft.number(1, 40)))
        extension = draft.pick("txt", "TXT", "Pdf", "csv")
        name = " ".join(parts)
        if index < 2:  # two spaces, a lower-case extension; other characters, an upper-case extension
            name, extension = (f"{parts[0]}  {parts[1]}", "csv") if index == 0 else (f"{name}-Old (2)", "TXT")
        draft.file(f"{root}/{name}.{extension}", draft.text(draft.number(20, 90)))
    spaces, every = "tr ' A-Z' '_a-z'", "for file in *; do\n  new=$(printf '%s' \"$file\" | "
    draft.mode(f"{root}/*", "exact")
    draft.say(
        draft.pick(
            f"The file names in {root} have spaces and capital letters, which breaks our upload script.",
            f"Please normalise the names of the files in {root}.",
        ),
        "! Rename each file so that every space becomes an underscore",
        "! and every capital letter (A-Z), including those of the extension, becomes the matching small letter.",
        "! The names must not change in any other way, nor must the files' contents and permissions.",
    )
    oracle = f'cd {root} || exit 1\n{every}{spaces})\n  [ "$file" = "$new" ] || mv "$file" "$new"\ndone\n'
    draft.solve(oracle, swap(oracle, spaces, "tr ' ' '_'"))


def _pad(draft: Draft) -> None:
    root = draft.root = f"{draft.project()}/{draft.pick('frames', 'scans', 'chapters', 'takes')}"
    stem = draft.pick(*WORDS)
    width = draft.number(3, 5)
    extension = draft.pick("png", "txt", "dat", "wav")
    separator = draft.pick("-", "_", ".")
    numbers = [draft.number(1, 9), draft.number(10, 99), *draft.some(range(100, 1000), draft.number(6, 12))]
    numbers += draft.some([n for n in range(1, 100) if n not in numbers], 4)
    for value in numbers:
        draft.file(f"{root}/{stem}{separator}{value}.{extension}", draft.text(draft.number(20, 80)))
    free = draft.some([n for n in range(1, 100) if n not in numbers], 3)
    others = [f"{stem}{separator}notes.{extension}", f"{stem}{separator}{free[0]}.{extension}.old"]
    others += [f"old-{stem}{separator}{free[1]}.{extension}", f"{stem}{separator}{free[2]}b.{extension}"]
    for other in others:
        draft.file(f"{root}/{other}", draft.text(50))
    example = f"{stem}{separator}7.{extension}"
    pattern = f"^{stem}\\{separator}([0-9]+)\\.{extension}$"
    wide = f"%0{width}d"
    draft.mode(f"{root}/*", "exact")
    draft.say(
        draft.pick(
            f"The numbered files in {root} come in a bad order.", f"I'd like {root} to list in numerical order."
        ),
        f"! Pad the number in names of the form {stem}{separator}NUMBER.{extension} with zeros on the left to "
        f"{width} digits; {example} would become {stem}{separator}{7:0{width}d}.{extension}.",
        "! Files whose names have another form keep them,",
        "! and all files keep their contents and permissions.",
    )
    oracle = (
        f"cd {root} || exit 1\nfor file in *; do\n"
        f'  if [[ "$file" =~ {pattern} ]]; then\n'
        f'    new=$(printf "{stem}{separator}{wide}.{extension}" "$((10#${{BASH_REMATCH[1]}}))")\n'
        '    [ "$file" = "$new" ] || mv "$file" "$new"\n  fi\ndone\n'
    )
    draft.solve(oracle, swap(oracle, wide, f"%0{width - 1}d"))


FAMILY = Family(
    "rename", "Rename files by a rule, and only those it concerns", (_extension, _clean, _pad), ("python3",)
)
