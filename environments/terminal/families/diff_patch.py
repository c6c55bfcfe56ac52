"""Family: differences between files and directories, written and applied."""

from __future__ import annotations

import difflib

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import SERVICES, WORDS

__all__ = ["FAMILY"]

_LINES, _ORDER = "* has the right lines", "lines of * are in order"


def _apply(draft: Draft) -> None:
    root = draft.project()
    patch = ""
    expected: dict[str, bytes] = {}
    names = [f"{draft.pick('', 'lib/', 'conf/')}{name}.txt" for name in draft.some(SERVICES, draft.number(3, 5))]
    for index, name in enumerate(sorted(names)):
        old = [f"{word} = {draft.number(1, 99)}\n" for word in draft.some(WORDS, draft.number(14, 24))]
        new = list(old)
        if index != 2:
            for _ in range(draft.number(2, 4)):
                place = draft.number(0, len(new) - 1)
                kind = draft.number(0, 2)
                if kind == 0:
                    new[place] = f"{draft.pick(*WORDS)} = {draft.number(100, 999)}\n"
                elif kind == 1:
                    new.insert(place, f"added_{draft.pick(*WORDS)} = {draft.number(100, 999)}\n")
                else:
                    del new[place]
        patch += "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"))
        draft.file(f"{root}/{name}", "".join(old))
        expected[name] = "".join(new).encode()
    file = draft.file(
        f"/home/user/{draft.pick('fix', 'update', 'changes', 'review')}-{draft.number(1, 99)}.patch", patch
    )
    draft.kept.append(file)
    content, alone = "files of * have the right content", "* holds nothing else"
    changed = next(name for name, data in expected.items() if draft.files[f"{root}/{name}"].content != data)
    oracle = f"cd {root} && patch -s -p1 < {file}\n"
    last = f"$(grep -n '^--- ' {file} | tail -n 1 | cut -d : -f 1)"
    near = f"cd {root} && head -n {last} {file} | head -n -1 | patch -s -p1\n"
    draft.say(
        draft.require(
            draft.pick(f"Apply the patch {file} to {root}.", f"A colleague sent me {file}; please apply it to {root}."),
            breach("the last file of the patch left out", content, instead=near),
            breach("the patch applied twice, backwards the second time", content, after=f"patch -s -R -p1 < {file}"),
            breach("more than the patch says", content, after=f"echo more >> {changed}"),
            breach("a file deleted", content, after=f"rm {changed}"),
            breach("a link in place of a file", content, after=f"mv {changed} ~/moved && ln -s ~/moved {changed}"),
        ),
        f"It is a unified diff whose paths begin with a/ and b/ and are otherwise relative to {root}. All its hunks "
        "apply cleanly.",
        draft.require(
            f"When you are done there must be nothing additional below {root}: no files (such as .orig or .rej files), "
            "links or directories,",
            breach("backups left", alone, swap=("patch -s", "patch -s -b")),
            breach("rejected hunks left", alone, after=f"echo more > {changed}.rej"),
            breach("one more link", alone, after="ln -s /etc/hostname more"),
            breach("one more directory, empty", alone, after="mkdir more"),
        ),
        draft.untouched("and the patch itself must be unchanged."),
    )
    draft.final.files(root, expected)
    draft.honest("applied from above", instead=f"patch -s -d {root} -p1 -i {file}")
    draft.honest("a new file in place of a patched one", after=f"cp {changed} ~/new && mv ~/new {changed}")
    draft.honest("tried first", instead=f"cd {root} && patch --dry-run -s -p1 < {file} && patch -s -p1 < {file}")
    draft.solve(oracle, near, patch)


def _trees(draft: Draft) -> None:
    root = draft.project()
    old, new = draft.pick(("old", "new"), ("before", "after"), ("v1", "v2"), ("staging", "production"))
    lines: dict[str, str] = {}
    equal = ""
    for index, word in enumerate(draft.some(WORDS, draft.number(10, 16))):
        path = f"{draft.pick('', 'src/', 'src/core/', 'docs/')}{word}.txt"
        data = draft.text(draft.number(40, 160))
        kind = index if index < 5 else draft.number(0, 5)
        if kind != 0:
            draft.file(f"{root}/{old}/{path}", data, keep=True)
        if kind != 1:
            draft.file(f"{root}/{new}/{path}", data[:-2] + b"#\n" if kind == 2 else data, keep=True)
        if kind < 3:
            lines[path] = f"{'ADM'[kind]} {path}\n"
        else:
            equal = path
    report = f"{root}/{draft.pick('changes', 'report', 'status')}.txt"
    draft.say(
        draft.pick(
            f"What has changed from {root}/{old} to {root}/{new}?",
            f"Compare the directory trees {root}/{old} and {root}/{new}.",
        ),
        draft.require(
            f"Write {report} with one line for each file that differs: a letter, one space and the path relative to "
            "the tree.",
            breach("a tab in place of the space", _LINES, after=f"sed -i 's/ /\\t/' {report}"),
            breach("paths with the tree", _LINES, after=f"sed -i 's# #&{new}/#' {report}"),
            breach("a line twice", _LINES, after=f"sed -i 1p {report}"),
        ),
        draft.require(
            f"The letter is A for a file that only {new} has,",
            breach("new files left out", _LINES, swap=("{*old, *new}", "old")),
            breach("another letter for a new file", _LINES, after=f"sed -i s/^A/N/ {report}"),
        ),
        draft.require(
            f"D for one that only {old} has,",
            breach("deleted files left out", _LINES, swap=("{*old, *new}", "new")),
            breach("old and new exchanged", _LINES, after=f"sed -i y/AD/DA/ {report}"),
        ),
        draft.require(
            "and M for one that both have with different content.",
            breach(
                "files of different sizes alone",
                _LINES,
                swap=("old[path] != new[path]", "len(old[path]) != len(new[path])"),
            ),
            breach("changed files left out", _LINES, after=f"sed -i /^M/d {report}"),
        ),
        draft.require(
            "Files that are equal are not mentioned.",
            breach("files that are equal", _LINES, swap=("elif old[path] != new[path]", "else")),
        ),
        draft.require(
            "Sort the lines by path in byte order (LC_ALL=C).",
            breach(
                "sorted by letter",
                _ORDER,
                swap=(
                    "in sorted({*old, *new})",
                    "in sorted({*old, *new}, key=lambda path: (path not in old, path in new, path))",
                ),
            ),
            breach("sorted backwards", _ORDER, swap=("in sorted({*old, *new})", "in sorted({*old, *new})[::-1]")),
        ),
        draft.every_line(report),
        draft.leave(which=f"{root}/{old}/{equal}"),
    )
    expected = "".join(lines[path] for path in sorted(lines))
    draft.result(report, expected)
    oracle = python(
        """
        import os
        def tree(root):
            paths = [os.path.join(place, name) for place, _, names in os.walk(root) for name in names]
            return {os.path.relpath(path, root): open(path, "rb").read() for path in paths}
        old, new = tree(@old@), tree(@new@)
        with open(@report@, "w") as report:
            for path in sorted({*old, *new}):
                if path not in old:
                    print("A", path, file=report)
                elif path not in new:
                    print("D", path, file=report)
                elif old[path] != new[path]:
                    print("M", path, file=report)
        """,
        old=f"{root}/{old}",
        new=f"{root}/{new}",
        report=report,
    )
    draft.honest(
        "found out by diff",
        instead=f"""
cd {root} || exit 1
{{
    (cd {new} && find . -type f -printf '%P\\n') | while read -r path; do [ -e "{old}/$path" ] || echo "A $path"; done
    (cd {old} && find . -type f -printf '%P\\n') | while read -r path; do
        [ -e "{new}/$path" ] || echo "D $path"
        [ ! -e "{new}/$path" ] || cmp -s "{old}/$path" "{new}/$path" || echo "M $path"
    done
}} | LC_ALL=C sort -k 2 > {report}
""",
    )
    draft.honest("the differences beside it", after=f"diff -r {old} {new} > differences.txt; true")
    draft.pieces(report)
    draft.solve(oracle, swap(oracle, "old[path] != new[path]", "len(old[path]) != len(new[path])"), expected)


def _settings(draft: Draft) -> None:
    root = draft.project()
    old = {
        f"{draft.pick(*SERVICES)}.{word}": str(draft.number(1, 99)) for word in draft.some(WORDS, draft.number(10, 16))
    }
    new = dict(old)
    for index, key in enumerate(draft.some(list(old), 6)):
        if index < 2:
            del new[key]
        elif index < 5:
            new[key] = str(draft.number(100, 999))
    for word in draft.some(WORDS, 3):
        new[f"extra.{word}"] = draft.pick("true", "false", "auto")
    for name, settings in (("old", old), ("new", new)):
        text = "".join(
            draft.pick("", "", f"# {draft.prose(3)}\n", "\n") + f"{key}{draft.pick('=', ' = ', '= ')}{value}\n"
            for key, value in draft.shuffled(list(settings.items()))
        )
        draft.file(f"{root}/{name}.properties", text, keep=True)
    lines = [
        f"- {key}={old[key]}\n"
        if key not in new
        else f"+ {key}={new[key]}\n"
        if key not in old
        else f"~ {key}={old[key]} -> {new[key]}\n"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]
    report = f"{root}/{draft.pick('settings', 'differences', 'delta')}.diff"
    draft.say(
        draft.pick(
            f"Tell me how the settings differ between {root}/old.properties and {root}/new.properties.",
            f"Somebody rewrote {root}/old.properties as {root}/new.properties in another order.",
        ),
        draft.require(
            "Both have lines of the form key=value, where spaces around = mean nothing; empty lines and lines "
            "beginning with # are to be ignored, and so is the order.",
            breach("spaces that belong to keys", _LINES, swap=("key.strip(): value", "key: value")),
            breach("comments as settings", _LINES, after=f"echo '+ # comment=1' >> {report}"),
        ),
        draft.require(
            f"Write {report} with one line per difference,",
            breach("a line twice", _LINES, after=f"sed -i 1p {report}"),
            breach("a headline", _LINES, after=f"sed -i 1i---old {report}"),
        ),
        draft.require(
            "sorted by key in byte order, in these forms:",
            breach("sorted by form", _ORDER, after=f"LC_ALL=C sort -s -k 1,1 -o {report} {report}"),
            breach("sorted backwards", _ORDER, swap=("in sorted({*old, *new})", "in sorted({*old, *new})[::-1]")),
        ),
        draft.require(
            "\n- key=value\n+ key=value\n~ key=old -> new",
            breach("another sign for a changed value", _LINES, after=f"sed -i s/^~/!/ {report}"),
            breach("the new value alone", _LINES, swap=("{old[key]} -> {new[key]}", "{new[key]}")),
            breach("the values exchanged", _LINES, swap=("{old[key]} -> {new[key]}", "{new[key]} -> {old[key]}")),
        ),
        draft.require(
            "\nfor a key that only the old file has,",
            breach("keys of the old file alone left out", _LINES, swap=("{*old, *new}", "new")),
        ),
        draft.require(
            "for one that only the new file has,",
            breach("keys of the new file alone left out", _LINES, swap=("{*old, *new}", "old")),
        ),
        draft.require(
            "and for one whose value is different.",
            breach("changed values left out", _LINES, swap=("elif old[key] != new[key]", "elif False")),
        ),
        draft.require(
            "There is exactly one space after the first character, none around =, and one on each side of the arrow.",
            breach("no space after the first character", _LINES, after=f"sed -i 's/ //' {report}"),
            breach("spaces around =", _LINES, after=f"sed -i 's/=/ = /' {report}"),
            breach("no space beside the arrow", _LINES, after=f"sed -i 's/ -> /->/' {report}"),
        ),
        draft.require(
            "Settings that are the same in both are not mentioned.",
            breach("settings that are the same", _LINES, swap=("elif old[key] != new[key]", "else")),
        ),
        draft.every_line(report),
        draft.leave(),
    )
    draft.result(report, "".join(lines))
    oracle = python(
        """
        def read(path):
            lines = [line.strip() for line in open(path)]
            pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
            return {key.strip(): value.strip() for key, value in pairs}
        old, new = read(@root@ + "/old.properties"), read(@root@ + "/new.properties")
        with open(@report@, "w") as report:
            for key in sorted({*old, *new}):
                if key not in new:
                    print(f"- {key}={old[key]}", file=report)
                elif key not in old:
                    print(f"+ {key}={new[key]}", file=report)
                elif old[key] != new[key]:
                    print(f"~ {key}={old[key]} -> {new[key]}", file=report)
        """,
        root=root,
        report=report,
    )
    draft.honest("normalised copies beside it", after="tr -d ' ' < old.properties | sort > old.sorted")
    draft.pieces(report)
    draft.solve(oracle, swap(oracle, "{*old, *new}", "new"), "".join(lines))


FAMILY = Family(
    "diff_patch", "Apply patches and compare trees and settings", (_apply, _trees, _settings), ("python3", "patch")
)
