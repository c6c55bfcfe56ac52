"""Family: differences between files and directories, written and applied."""

import difflib

from .draft import HOME, Draft, python, swap
from .family import Family
from .vocabulary import SERVICES, WORDS


def _apply(draft: Draft) -> None:
    root = draft.project()
    patch = ""
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
    file = draft.file(f"{HOME}/{draft.pick('fix', 'update', 'changes', 'review')}-{draft.number(1, 99)}.patch", patch)
    oracle = f"cd {root} && patch -s -p1 < {file}\n"
    last = f"$(grep -n '^--- ' {file} | tail -n 1 | cut -d : -f 1)"
    near = f"cd {root} && head -n {last} {file} | head -n -1 | patch -s -p1\n"
    draft.say(
        draft.pick(f"! Apply the patch {file} to {root}.", f"! A colleague sent me {file}; please apply it to {root}."),
        f"It is a unified diff whose paths begin with a/ and b/ and are otherwise relative to {root}. All its hunks "
        "apply cleanly.",
        f"! Leave no files such as .orig or .rej below {root}.",
    )
    draft.solve(oracle, near)


def _trees(draft: Draft) -> None:
    root = draft.project()
    old, new = draft.pick(("old", "new"), ("before", "after"), ("v1", "v2"), ("staging", "production"))
    paths = [
        f"{draft.pick('', 'src/', 'src/core/', 'docs/')}{word}.txt" for word in draft.some(WORDS, draft.number(10, 16))
    ]
    # By path there is M before A before D among the first three, so that lines in order of their letters are wrong.
    for index, path in enumerate([*sorted(paths[:3]), *paths[3:]]):
        data = draft.text(draft.number(40, 160))
        kind = "MAD=="[index] if index < 5 else draft.pick(*"ADM===")
        if kind != "A":
            draft.file(f"{root}/{old}/{path}", data)
        if kind != "D":
            draft.file(f"{root}/{new}/{path}", data[:-2] + b"#\n" if kind == "M" else data)
    report = f"{root}/{draft.pick('changes', 'report', 'status')}.txt"
    draft.say(
        draft.pick(
            f"What has changed from {root}/{old} to {root}/{new}?",
            f"Compare the directory trees {root}/{old} and {root}/{new}.",
        ),
        f"! Write {report} with one line for each file that differs: a letter, one space and the path relative to "
        "the tree.",
        f"! The letter is A for a file that only {new} has,",
        f"! D for one that only {old} has,",
        "! and M for one that both have with different content.",
        "! Files that are equal are not mentioned.",
        "! Sort the lines by path in byte order (LC_ALL=C).",
        draft.every_line(),
    )
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
    )
    draft.solve(oracle, swap(oracle, "old[path] != new[path]", "len(old[path]) != len(new[path])"))


def _settings(draft: Draft) -> None:
    root = draft.project()
    old = {
        f"{draft.pick(*SERVICES)}.{word}": str(draft.number(1, 99)) for word in draft.some(WORDS, draft.number(10, 16))
    }
    new = dict(old)
    # Kinds of differences alternate, so that lines in order of their signs are wrong.
    for index, key in enumerate(sorted(draft.some(list(old), 5))):
        if index % 2:
            del new[key]
        else:
            new[key] = str(draft.number(100, 999))
    for word in draft.some(WORDS, 3):
        new[f"extra.{word}"] = draft.pick("true", "false", "auto")
    for name, settings in (("old", old), ("new", new)):
        text = f"# {name}.settings = {len(settings)}\n" + "".join(
            draft.pick("", "", f"# {draft.prose(3)}\n", "\n") + f"{key}{draft.pick('=', ' = ', '= ')}{value}\n"
            for key, value in draft.shuffled(list(settings.items()))
        )
        draft.file(f"{root}/{name}.properties", text)
    report = f"{root}/{draft.pick('settings', 'differences', 'delta')}.diff"
    draft.say(
        draft.pick(
            f"Tell me how the settings differ between {root}/old.properties and {root}/new.properties.",
            f"Somebody rewrote {root}/old.properties as {root}/new.properties in another order.",
        ),
        "! Both have lines of the form key=value, where spaces around = mean nothing; empty lines and lines "
        "beginning with # are to be ignored, and so is the order.",
        f"! Write {report} with one line per difference,",
        "! sorted by key in byte order, in these forms:",
        "! \n- key=value\n+ key=value\n~ key=old -> new",
        "! \nfor a key that only the old file has,",
        "! for one that only the new file has,",
        "! and for one whose value is different.",
        "! There is exactly one space after the first character, none around =, and one on each side of the arrow.",
        "! Settings that are the same in both are not mentioned.",
        draft.every_line(),
    )
    oracle = python("""
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
        """)
    draft.solve(oracle, swap(oracle, "{*old, *new}", "new"))


FAMILY = Family(
    "diff_patch", "Apply patches and compare trees and settings", (_apply, _trees, _settings), ("python3", "patch")
)
