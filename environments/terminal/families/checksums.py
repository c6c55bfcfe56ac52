"""Family: checksums, written, verified and used for repairs."""

import hashlib

from .draft import Draft, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _make(draft: Draft) -> None:
    root = draft.project()
    kind = draft.pick("sha256", "sha1", "md5", "sha512")
    name = f"{kind.upper()}SUMS"
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 2))]
    for index, word in enumerate(draft.some(WORDS, draft.number(6, 12))):
        path = f"{draft.pick(*folders)}{word}.{'bin' if index else 'txt'}"
        draft.file(f"{root}/{path}", draft.text(draft.number(20, 400)))
    target = f"{root}/{name}"
    oracle = (
        f"cd {root} || exit 1\nfind . -type f ! -name {name} -printf '%P\\n' | LC_ALL=C sort "
        f"| xargs -d '\\n' {kind}sum > ../sums.new\nmv ../sums.new {name}\n"
    )
    draft.say(
        draft.pick(f"Please create checksums for everything below {root}.", f"We are about to publish {root}."),
        f"! Write {target} with the {kind.upper()} checksum of every regular file below {root} at any depth,",
        "! the list itself apart,",
        f"! in the format that {kind}sum prints: the checksum in small hexadecimal digits, two spaces, and the path "
        f"relative to {root} without a leading ./",
        "! \nSort the lines by path in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    draft.solve(oracle, swap(oracle, "-printf '%P\\n'", "-print"))


def _verify(draft: Draft) -> None:
    root = draft.project()
    report = draft.result(f"{root}-verification.txt")
    lines: list[str] = []
    for index, word in enumerate(draft.some(WORDS, draft.number(10, 16))):
        path = f"{draft.pick('', 'lib/', 'share/', 'share/doc/')}{word}.dat"
        data = draft.text(draft.number(20, 200))
        kind = index if index < 4 else draft.number(0, 5)
        if kind != 1:
            draft.file(f"{root}/{path}", data[:-1] + b"x" if kind == 2 else data)
        if kind != 3:
            lines.append(f"{_sum(data)}  {path}\n")
    draft.file(f"{root}/MANIFEST.sha256", "".join(draft.shuffled(lines)))
    draft.say(
        draft.pick(f"I suspect that {root} was damaged in transfer.", f"Check {root} against its manifest for me."),
        f"{root}/MANIFEST.sha256 lists SHA-256 checksums and paths relative to {root}, as sha256sum writes them.",
        f"! Write {report} with one line for each problem: a word, one space, and the relative path.",
        "! The word is CHANGED for a file whose checksum is not the one in the manifest,",
        "! MISSING for one that the manifest lists but that is not there,",
        f"! and UNKNOWN for a file that is below {root} at any depth but not in the manifest",
        "! (the manifest itself does not count).",
        "! Sort the lines by path in byte order (LC_ALL=C).",
        "! Files that are all right are not mentioned.",
        draft.every_line(),
    )
    oracle = python("""
        import hashlib, os
        root = @root@
        listed = dict(reversed(line.rstrip("\\n").split("  ", 1)) for line in open(root + "/MANIFEST.sha256"))
        there = {}
        for place, _, names in os.walk(root):
            for name in names:
                path = os.path.join(place, name)
                there[os.path.relpath(path, root)] = hashlib.sha256(open(path, "rb").read()).hexdigest()
        del there["MANIFEST.sha256"]
        with open(@report@, "w") as report:
            for path in sorted({*listed, *there}):
                if path not in there:
                    print("MISSING", path, file=report)
                elif path not in listed:
                    print("UNKNOWN", path, file=report)
                elif there[path] != listed[path]:
                    print("CHANGED", path, file=report)
        """)
    draft.solve(oracle, swap(oracle, "{*listed, *there}", "listed"))


def _restore(draft: Draft) -> None:
    root = draft.project()
    backups = [f"backup-{number}" for number in range(1, draft.number(3, 4) + 1)]
    lines: list[str] = []
    for index, word in enumerate(draft.some(WORDS, draft.number(7, 12))):
        path = f"{draft.pick('', 'a/', 'b/')}{word}.dat"
        data = draft.text(draft.number(40, 200))
        lines.append(f"{_sum(data)}  {path}\n")
        damaged = index < 3 or draft.chance(0.4)
        good = backups[index % len(backups)]
        draft.file(f"{root}/live/{path}", data[: len(data) // 2] + b"\n" if damaged else data)
        for backup in backups:
            if backup == good or (not damaged and draft.chance(0.5)):
                draft.file(f"{root}/{backup}/{path}", data)
            else:
                draft.file(f"{root}/{backup}/{path}", draft.text(len(data)))
    draft.file(f"{root}/checksums.txt", "".join(sorted(lines, key=lambda line: line[66:])))
    draft.say(
        draft.pick(f"Some files in {root}/live have been damaged.", f"A disk error hit {root}/live."),
        f"{root}/checksums.txt has the SHA-256 checksum that each file in it should have (sha256sum format, paths "
        f"relative to {root}/live). There are also the backups {', '.join(f'{root}/{backup}' for backup in backups)}, "
        "with the same paths, but not every file in them is good either.",
        f"! Repair {root}/live: replace each damaged file by a copy from whichever backup has the right version, so "
        "that all checksums match.",
    )
    oracle = (
        f"cd {root} || exit 1\nwhile read -r sum path; do\n"
        "  for place in backup-*; do\n"
        '    if [ "$(sha256sum < "$place/$path" | cut -d " " -f 1)" = "$sum" ]; then cp "$place/$path" "live/$path"; '
        "fi\n"
        "  done\ndone < checksums.txt\n"
    )
    draft.solve(oracle, swap(oracle, "in backup-*", "in backup-1"))


FAMILY = Family("checksums", "Make, verify and use checksums", (_make, _verify, _restore), ("python3",))
