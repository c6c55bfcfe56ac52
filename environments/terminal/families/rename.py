"""Renaming many files by a rule."""

from __future__ import annotations

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS

__all__ = ["FAMILY"]


def _extension(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('media', 'documents', 'assets', 'pages')}"
    old, new = draft.pick(("jpeg", "jpg"), ("htm", "html"), ("text", "txt"), ("yml", "yaml"), ("markdown", "md"))
    expected: dict[str, bytes] = {}
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 2))]
    folders.append(f"{folders[1]}older/")
    names = draft.some(WORDS, 14)
    for index, name in enumerate(names[:10]):
        folder = folders[index % len(folders)]
        data = draft.text(draft.number(20, 80))
        draft.file(f"{root}/{folder}{name}.{old}", data)
        expected[f"{folder}{name}.{new}"] = data
    for name, shape in zip(names[10:], ("{n}.{o}.bak", "{n}{o}", "{o}_{n}.dat", "{n}.{n}"), strict=True):
        file = draft.pick(*folders) + shape.replace("{n}", name).replace("{o}", old)
        data = draft.text(draft.number(20, 80))
        draft.file(f"{root}/{file}", data)
        expected[file] = data
    draft.say(
        draft.pick(
            f"Rename every file below {root}, at any depth, whose name ends in .{old} so that it ends in .{new} "
            "instead.",
            f"Our tools only accept .{new}. Below {root} (including all subdirectories) there are files whose names "
            f"end in .{old}; please change that ending to .{new}.",
        ),
        f"Files with any other name, such as those that merely contain {old!r} somewhere, keep their names.",
        "Contents and directories stay as they are.",
    )
    draft.final.files(root, expected)
    oracle = (
        f'find {root} -type f -name \'*.{old}\' | while read -r file; do mv "$file" "${{file%.{old}}}.{new}"; done\n'
    )
    draft.solve(oracle, swap(oracle, "-type f", "-maxdepth 1 -type f"), "\n".join(sorted(expected)))


def _clean(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('shared', 'photos', 'papers', 'forms')}"
    expected: dict[str, bytes] = {}
    words = draft.some(WORDS, 24)
    for index in range(draft.number(8, 12)):
        parts = [words[2 * index].capitalize(), draft.pick(words[2 * index + 1], words[2 * index + 1].upper())]
        if draft.chance(0.5):
            parts.append(str(draft.number(1, 40)))
        extension = draft.pick("txt", "TXT", "Pdf", "csv")
        data = draft.text(draft.number(20, 90))
        name = " ".join(parts)
        draft.file(f"{root}/{name}.{extension}", data)
        expected[f"{name}.{extension}".lower().replace(" ", "_")] = data
    draft.say(
        draft.pick(
            f"The file names in {root} have spaces and capital letters, which breaks our upload script.",
            f"Please normalise the names of the files in {root}.",
        ),
        "Rename each file so that every space becomes an underscore and every capital letter (A-Z), including those "
        "of the extension, becomes the matching small letter. Nothing else about the names or the contents may change.",
    )
    draft.final.files(root, expected)
    oracle = (
        f"cd {root} || exit 1\nfor file in *; do\n"
        "  new=$(printf '%s' \"$file\" | tr ' A-Z' '_a-z')\n"
        '  [ "$file" = "$new" ] || mv "$file" "$new"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, "tr ' A-Z' '_a-z'", "tr ' ' '_'"), "\n".join(sorted(expected)))


def _pad(draft: Draft) -> None:
    root = f"{draft.project()}/{draft.pick('frames', 'scans', 'chapters', 'takes')}"
    stem = draft.pick(*WORDS)
    width = draft.number(3, 5)
    extension = draft.pick("png", "txt", "dat", "wav")
    separator = draft.pick("-", "_", ".")
    expected: dict[str, bytes] = {}
    numbers = [draft.number(1, 9), draft.number(10, 99), *draft.some(range(100, 1000), draft.number(6, 12))]
    numbers += draft.some([n for n in range(1, 100) if n not in numbers], 4)
    for value in numbers:
        data = draft.text(draft.number(20, 80))
        draft.file(f"{root}/{stem}{separator}{value}.{extension}", data)
        expected[f"{stem}{separator}{value:0{width}d}.{extension}"] = data
    other = f"{stem}{separator}notes.{extension}"
    data = draft.text(50)
    draft.file(f"{root}/{other}", data)
    expected[other] = data
    example = f"{stem}{separator}7.{extension}"
    draft.say(
        draft.pick(
            f"The numbered files in {root} do not sort properly.",
            f"I'd like {root} to list in numerical order.",
        ),
        f"Pad the number in names of the form {stem}{separator}NUMBER.{extension} with zeros on the left to {width} "
        f"digits; {example} would become {stem}{separator}{7:0{width}d}.{extension}.",
        "Other files keep their names, and no content changes.",
    )
    draft.final.files(root, expected)
    oracle = (
        f"cd {root} || exit 1\nfor file in {stem}{separator}[0-9]*.{extension}; do\n"
        f'  number="${{file#{stem}{separator}}}"\n  number="${{number%.{extension}}}"\n'
        f'  new=$(printf "{stem}{separator}%0{width}d.{extension}" "$number")\n'
        '  [ "$file" = "$new" ] || mv "$file" "$new"\ndone\n'
    )
    draft.solve(oracle, swap(oracle, f"%0{width}d", f"%0{width - 1}d"), "\n".join(sorted(expected)))


FAMILY = Family("rename", "Rename files by a rule, and only those it concerns", (_extension, _clean, _pad))
