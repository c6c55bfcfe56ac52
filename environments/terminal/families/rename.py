"""Family: files renamed by a rule."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS

__all__ = ["FAMILY"]

_NOTHING_ELSE, _CONTENT = "* holds nothing else", "files of * have the right content"


def _extension(draft: Draft) -> None:
    root = draft.root = f"{draft.project()}/{draft.pick('media', 'documents', 'assets', 'pages')}"
    old, new = draft.pick(("jpeg", "jpg"), ("htm", "html"), ("text", "txt"), ("yml", "yaml"), ("markdown", "md"))
    expected: dict[str, bytes] = {}
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 2))]
    folders.append(f"{folders[1]}older/")
    names = draft.some(WORDS, 16)
    folders.append(f"{names.pop()}.{old}/")
    for index, name in enumerate(names[:10]):
        folder = folders[index % len(folders)]
        data = draft.text(draft.number(20, 80))
        draft.file(f"{root}/{folder}{name}.{old}", data)
        expected[f"{folder}{name}.{new}"] = data
    others: list[str] = []
    shapes = ("{n}.{o}.bak", "{n}{o}", "{o}_{n}.dat", "{n}.{n}", "{n}." + old.upper())
    for name, shape in zip(names[10:], shapes, strict=True):
        others.append(draft.pick(*folders[:4]) + shape.replace("{n}", name).replace("{o}", old))
        data = draft.text(draft.number(20, 80))
        draft.file(f"{root}/{others[-1]}", data)
        expected[others[-1]] = data
    made = f"{names[0]}.{new}"
    renamed = f'mv "$file" "${{file%.{old}}}.{new}"'
    draft.say(
        draft.require(
            draft.pick(
                f"Rename every file below {root}, at any depth, whose name ends in .{old} so that it ends in .{new} "
                "instead.",
                f"Our tools only accept .{new}. Below {root} (including all subdirectories) there are files whose "
                f"names end in .{old}; please change that ending to .{new}.",
            ),
            breach("the top directory alone", _NOTHING_ELSE, _CONTENT, swap=("-type f", "-maxdepth 1 -type f")),
            breach("two directories deep at most", _NOTHING_ELSE, _CONTENT, swap=("-type f", "-maxdepth 2 -type f")),
            breach("the ending added", _NOTHING_ELSE, _CONTENT, swap=(f'"${{file%.{old}}}.{new}"', f'"$file.{new}"')),
            breach(
                "the ending removed", _NOTHING_ELSE, _CONTENT, swap=(f'"${{file%.{old}}}.{new}"', f'"${{file%.{old}}}"')
            ),
            breach("copies", _NOTHING_ELSE, swap=(renamed, renamed.replace("mv", "cp"))),
            breach(
                "links under the new names", _NOTHING_ELSE, _CONTENT, swap=(renamed, renamed.replace("mv", "ln -s"))
            ),
            breach(
                "links under the old names",
                _NOTHING_ELSE,
                swap=(renamed, renamed + f' && ln -s "${{file%.{old}}}.{new}" "$file"'),
            ),
            breach("one more file", _NOTHING_ELSE, after="echo more > renamed.log"),
            breach("one more directory, empty", _NOTHING_ELSE, after="mkdir renamed"),
        ),
        draft.require(
            f"Files with any other name, such as those that merely contain {old!r} somewhere or end in .{old.upper()}, "
            "keep their names.",
            breach("names with that within", _NOTHING_ELSE, _CONTENT, swap=(f"*.{old}'", f"*.{old}*'")),
            breach("names that end so without a dot", _NOTHING_ELSE, _CONTENT, swap=(f"*.{old}'", f"*{old}'")),
            breach("names that end so in capitals", _NOTHING_ELSE, _CONTENT, swap=("-name", "-iname")),
            breach("another file renamed", _NOTHING_ELSE, _CONTENT, after=f"mv {others[2]} {others[2]}.old"),
            breach("another file deleted", _CONTENT, after=f"rm {others[0]}"),
        ),
        draft.require(
            "Contents and directories stay as they are.",
            breach("a directory renamed", _NOTHING_ELSE, _CONTENT, swap=("-type f", "-depth")),
            breach("a content changed", _CONTENT, after=f"echo more >> {made}"),
            breach("an empty file in place of one", _CONTENT, after=f"truncate -s 0 {made}"),
            breach("the content of another file", _CONTENT, after=f"cp {others[3]} {made}"),
            breach("a link in place of a file", _CONTENT, after=f"mv {made} ~/moved && ln -s ~/moved {made}"),
            breach("a file in another directory", _NOTHING_ELSE, _CONTENT, after=f"mv {made} {folders[3]}"),
        ),
    )
    draft.honest(
        "from Python",
        instead=python(
            """
            import os
            for place, _, names in os.walk(@root@):
                for name in names:
                    if name.endswith(@old@):
                        os.rename(os.path.join(place, name), os.path.join(place, name[:-len(@old@)] + @new@))
            """,
            root=root,
            old=f".{old}",
            new=f".{new}",
        ),
    )
    draft.honest("copied, then deleted", swap=(renamed, renamed.replace("mv", "cp") + ' && rm "$file"'))
    draft.honest("a list of the new names in the home", after="find . > ~/names.txt")
    draft.final.files(root, expected)
    oracle = f"find {root} -type f -name '*.{old}' | while read -r file; do {renamed}; done\n"
    draft.solve(oracle, swap(oracle, "-type f", "-maxdepth 1 -type f"), "\n".join(sorted(expected)))


def _clean(draft: Draft) -> None:
    root = draft.root = f"{draft.project()}/{draft.pick('shared', 'photos', 'papers', 'forms')}"
    expected: dict[str, bytes] = {}
    words = draft.some(WORDS, 24)
    for index in range(draft.number(8, 12)):
        parts = [words[2 * index].capitalize(), draft.pick(words[2 * index + 1], words[2 * index + 1].upper())]
        if draft.chance(0.5):
            parts.append(str(draft.number(1, 40)))
        extension = draft.pick("txt", "TXT", "Pdf", "csv")
        data = draft.text(draft.number(20, 90))
        name = " ".join(parts)
        if index < 2:  # two spaces, a lower-case extension; other characters, an upper-case extension
            name, extension = (f"{parts[0]}  {parts[1]}", "csv") if index == 0 else (f"{name}-Old (2)", "TXT")
        draft.file(f"{root}/{name}.{extension}", data)
        expected[f"{name}.{extension}".lower().replace(" ", "_")] = data
    made = next(iter(expected))
    spaces, every = "tr ' A-Z' '_a-z'", "for file in *; do\n  new=$(printf '%s' \"$file\" | "
    both = (_NOTHING_ELSE, _CONTENT)
    draft.say(
        draft.pick(
            f"The file names in {root} have spaces and capital letters, which breaks our upload script.",
            f"Please normalise the names of the files in {root}.",
        ),
        draft.require(
            "Rename each file so that every space becomes an underscore",
            breach("spaces left", *both, swap=(spaces, "tr A-Z a-z")),
            breach("hyphens in place of spaces", *both, swap=(spaces, "tr ' A-Z' '\\-a-z'")),
            breach("one underscore for two spaces", *both, swap=(spaces, f"tr -s ' ' | {spaces}")),
            breach("the first space alone", *both, swap=(spaces, "tr A-Z a-z | sed 's/ /_/'")),
            breach("copies", _NOTHING_ELSE, swap=('|| mv "$file"', '|| cp "$file"')),
            breach(
                "links under the old names",
                _NOTHING_ELSE,
                swap=('|| mv "$file" "$new"', '|| { mv "$file" "$new"; ln -s "$new" "$file"; }'),
            ),
            breach("one more file", _NOTHING_ELSE, after="echo more > renamed.log"),
            breach("one more directory, empty", _NOTHING_ELSE, after="mkdir renamed"),
        ),
        draft.require(
            "and every capital letter (A-Z), including those of the extension, becomes the matching small letter.",
            breach("capital letters left", *both, swap=(spaces, "tr ' ' _")),
            breach("the extension left", *both, swap=(f"{spaces})", f'{spaces}); new="${{new%.*}}.${{file##*.}}"')),
            breach("the first letter alone", *both, swap=(spaces, "tr ' ' _ | sed 's/^./\\l&/'")),
            breach("capital letters throughout", *both, swap=(spaces, "tr ' a-z' '_A-Z'")),
        ),
        draft.require(
            "Nothing else about the names or the contents may change.",
            breach("other signs gone too", *both, swap=(spaces, f"{spaces} | tr -d '()'")),
            breach("underscores in place of hyphens", *both, swap=(spaces, "tr ' \\-A-Z' '__a-z'")),
            breach("other extensions", *both, swap=(f"{spaces})", f'{spaces} | sed "s/csv$/tsv/")')),
            breach("a content changed", _CONTENT, after=f"echo more >> {made}"),
            breach("a content in small letters", _CONTENT, after=f"tr A-Z a-z < {made} > ~/x && cp ~/x {made}"),
            breach("a file deleted", _CONTENT, after=f"rm {made}"),
            breach("a link in place of a file", _CONTENT, after=f"mv {made} ~/moved && ln -s ~/moved {made}"),
        ),
    )
    draft.honest(
        "from Python",
        instead=python(
            """
            import os
            for name in os.listdir(@root@):
                os.rename(os.path.join(@root@, name), os.path.join(@root@, name.lower().replace(" ", "_")))
            """,
            root=root,
        ),
    )
    draft.honest(
        "by expansions of bash", swap=(f"{every}{spaces})", 'for file in *; do\n  new="${file// /_}"\n  new="${new,,}"')
    )
    draft.honest("copied, then deleted", swap=('|| mv "$file" "$new"', '|| { cp "$file" "$new"; rm "$file"; }'))
    draft.final.files(root, expected)
    oracle = f'cd {root} || exit 1\n{every}{spaces})\n  [ "$file" = "$new" ] || mv "$file" "$new"\ndone\n'
    draft.solve(oracle, swap(oracle, spaces, "tr ' ' '_'"), "\n".join(sorted(expected)))


def _pad(draft: Draft) -> None:
    root = draft.root = f"{draft.project()}/{draft.pick('frames', 'scans', 'chapters', 'takes')}"
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
    free = draft.some([n for n in range(1, 100) if n not in numbers], 3)
    others = [f"{stem}{separator}notes.{extension}", f"{stem}{separator}{free[0]}.{extension}.old"]
    others += [f"old-{stem}{separator}{free[1]}.{extension}", f"{stem}{separator}{free[2]}b.{extension}"]
    for other in others:
        expected[other] = draft.text(50)
        draft.file(f"{root}/{other}", expected[other])
    example = f"{stem}{separator}7.{extension}"
    made = next(iter(expected))
    both = (_NOTHING_ELSE, _CONTENT)
    pattern = f"^{stem}\\{separator}([0-9]+)\\.{extension}$"
    wide = f"%0{width}d"
    draft.say(
        draft.pick(
            f"The numbered files in {root} come in a bad order.",
            f"I'd like {root} to list in numerical order.",
        ),
        draft.require(
            f"Pad the number in names of the form {stem}{separator}NUMBER.{extension} with zeros on the left to "
            f"{width} digits; {example} would become {stem}{separator}{7:0{width}d}.{extension}.",
            breach("one digit fewer", *both, swap=(wide, f"%0{width - 1}d")),
            breach("one digit more", *both, swap=(wide, f"%0{width + 1}d")),
            breach("numbers of one digit alone", *both, swap=("([0-9]+)", "([0-9])")),
            breach("spaces in place of zeros", *both, swap=(wide, f"%{width}d")),
            breach("another sign before the number", *both, swap=(f"{stem}{separator}%", f"{stem}={'%'}")),
            breach("no ending", *both, swap=(f"d.{extension}", "d")),
            breach("copies", _NOTHING_ELSE, swap=('|| mv "$file"', '|| cp "$file"')),
            breach(
                "links under the old names",
                _NOTHING_ELSE,
                swap=('|| mv "$file" "$new"', '|| { mv "$file" "$new"; ln -s "$new" "$file"; }'),
            ),
            breach("one more file", _NOTHING_ELSE, after="echo more > renamed.log"),
            breach("one more directory, empty", _NOTHING_ELSE, after="mkdir renamed"),
        ),
        draft.require(
            "Other files keep their names,",
            breach("names that go on", *both, swap=(f"{extension}$ ]]", f"{extension} ]]")),
            breach("names that begin in another way", *both, swap=(f"=~ ^{stem}", f"=~ {stem}")),
            breach("numbers with a letter", *both, swap=("([0-9]+)", "([0-9]+)[a-z]?")),
            breach("another file renamed", *both, after=f"mv {others[0]} {stem}{separator}000.{extension}"),
            breach("another file deleted", _CONTENT, after=f"rm {others[1]}"),
        ),
        draft.require(
            "and no content changes.",
            breach("a content changed", _CONTENT, after=f"echo more >> {made}"),
            breach("another content changed", _CONTENT, after=f"echo more >> {others[2]}"),
            breach("the content of another file", _CONTENT, after=f"cp {others[0]} {made}"),
            breach("a link in place of a file", _CONTENT, after=f"mv {made} ~/moved && ln -s ~/moved {made}"),
        ),
    )
    draft.honest(
        "from Python",
        instead=python(
            """
            import os, re
            os.chdir(@root@)
            for name in os.listdir():
                if found := re.fullmatch(@pattern@, name):
                    os.replace(name, name[:found.start(1)] + found[1].zfill(@width@) + name[found.end(1):])
            """,
            root=root,
            pattern=pattern.strip("^$"),
            width=width,
        ),
    )
    draft.honest("copied, then deleted", swap=('|| mv "$file" "$new"', '|| { cp "$file" "$new"; rm "$file"; }'))
    draft.honest("a list of the old names in the home", swap=("for file in *", "ls > ~/names.txt\nfor file in *"))
    draft.final.files(root, expected)
    oracle = (
        f"cd {root} || exit 1\nfor file in *; do\n"
        f'  if [[ "$file" =~ {pattern} ]]; then\n'
        f'    new=$(printf "{stem}{separator}{wide}.{extension}" "$((10#${{BASH_REMATCH[1]}}))")\n'
        '    [ "$file" = "$new" ] || mv "$file" "$new"\n  fi\ndone\n'
    )
    draft.solve(oracle, swap(oracle, wide, f"%0{width - 1}d"), "\n".join(sorted(expected)))


FAMILY = Family(
    "rename", "Rename files by a rule, and only those it concerns", (_extension, _clean, _pad), ("python3",)
)
