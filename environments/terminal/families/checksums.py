"""Family: checksums, written, verified and used for repairs."""

from __future__ import annotations

import hashlib

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, WORDS

__all__ = ["FAMILY"]


def _sum(kind: str, data: bytes) -> str:
    return hashlib.new(kind, data, usedforsecurity=False).hexdigest()


def _make(draft: Draft) -> None:
    root = draft.project()
    kind = draft.pick("sha256", "sha1", "md5", "sha512")
    name = f"{kind.upper()}SUMS"
    folders = ["", *(f"{name}/" for name in draft.some(DEPARTMENTS, 2))]
    lines: dict[str, str] = {}
    for index, word in enumerate(draft.some(WORDS, draft.number(6, 12))):
        path = f"{draft.pick(*folders)}{word}.{'bin' if index else 'txt'}"
        data = draft.text(draft.number(20, 400))
        draft.file(f"{root}/{path}", data, keep=True)
        lines[path] = f"{_sum(kind, data)}  {path}\n"
    expected = "".join(lines[path] for path in sorted(lines))
    target, right = f"{root}/{name}", f"{name} has the right lines"
    oracle = (
        f"cd {root} || exit 1\nfind . -type f ! -name {name} -printf '%P\\n' | LC_ALL=C sort "
        f"| xargs -d '\\n' {kind}sum > ../sums.new\nmv ../sums.new {name}\n"
    )
    another = next(other for other in ("sha256", "sha1", "md5", "sha512") if other != kind)
    draft.say(
        draft.pick(f"Please create checksums for everything below {root}.", f"We are about to publish {root}."),
        draft.require(
            f"Write {target} with the {kind.upper()} checksum of every regular file below {root} at any depth,",
            breach("another kind of checksum", right, swap=(f"{kind}sum >", f"{another}sum >")),
            breach(
                "the files of the first directory alone", right, swap=("find . -type f", "find . -maxdepth 1 -type f")
            ),
            breach("a file missing", right, after=f"sed -i 1d {name}"),
            breach("a checksum that was not computed", right, after=f"sed -i '1s/^......../00000000/' {name}"),
        ),
        draft.require(
            "the list itself apart,",
            breach(
                "the list in itself",
                right,
                after=f"{kind}sum {name} > ~/own && cat ~/own >> {name}",
            ),
        ),
        draft.require(
            f"in the format that {kind}sum prints: the checksum in small hexadecimal digits, two spaces, and the path "
            f"relative to {root} without a leading ./",
            breach("a leading ./", right, swap=("-printf '%P\\n'", "-print")),
            breach("whole paths", right, swap=("-printf '%P\\n'", f"-printf '{root}/%P\\n'")),
            breach("capital digits", right, after=f"sed -Ei 's/^[0-9a-f]+/\\U&/' {name}"),
            breach("one space", right, after=f"sed -i 's/  / /' {name}"),
            breach("a star for binary files", right, swap=(f"{kind}sum >", f"{kind}sum -b >")),
        ),
        draft.require(
            "\nSort the lines by path in byte order (LC_ALL=C).",
            breach("sorted backwards", f"lines of {name} are in order", swap=("LC_ALL=C sort", "LC_ALL=C sort -r")),
            breach("sorted by checksum", f"lines of {name} are in order", after=f"sort -o {name} {name}"),
        ),
        draft.every_line(target),
        draft.leave(),
    )
    draft.result(target, expected)
    draft.honest(
        "computed by Python",
        instead=python(
            """
            import hashlib, os
            os.chdir(@root@)
            found = [os.path.relpath(os.path.join(place, name)) for place, _, names in os.walk(".") for name in names]
            with open(@name@, "w") as file:
                for path in sorted(found):
                    print(hashlib.new(@kind@, open(path, "rb").read()).hexdigest(), "", path, file=file)
            """,
            root=root,
            name=name,
            kind=kind,
        ),
    )
    draft.pieces(target)
    draft.solve(oracle, swap(oracle, "-printf '%P\\n'", "-print"), expected)


def _verify(draft: Draft) -> None:
    root = draft.project()
    report = f"{root}-verification.txt"
    right, ordered = "* has the right lines", "lines of * are in order"
    lines: list[str] = []
    status: dict[str, str] = {}
    for index, word in enumerate(draft.some(WORDS, draft.number(10, 16))):
        path = f"{draft.pick('', 'lib/', 'share/', 'share/doc/')}{word}.dat"
        data = draft.text(draft.number(20, 200))
        kind = index if index < 4 else draft.number(0, 5)
        if kind != 1:
            draft.file(f"{root}/{path}", data[:-1] + b"x" if kind == 2 else data, keep=True)
        if kind != 3:
            lines.append(f"{_sum('sha256', data)}  {path}\n")
        if kind in (1, 2, 3):
            status[path] = {1: "MISSING", 2: "CHANGED", 3: "UNKNOWN"}[kind]
    good = next(line[66:-1] for line in lines if line[66:-1] not in status)
    draft.file(f"{root}/MANIFEST.sha256", "".join(draft.shuffled(lines)), keep=True)
    draft.say(
        draft.pick(
            f"I suspect that {root} was damaged in transfer.",
            f"Check {root} against its manifest for me.",
        ),
        f"{root}/MANIFEST.sha256 lists SHA-256 checksums and paths relative to {root}, as sha256sum writes them.",
        draft.require(
            f"Write {report} with one line for each problem: a word, one space, and the relative path.",
            breach("two spaces", right, after=f"sed -i 's/ /  /' {report}"),
            breach("whole paths", right, after=f"sed -i 's# #&{root}/#' {report}"),
            breach("a problem twice", right, after=f"sed -i 1p {report}"),
        ),
        draft.require(
            "The word is CHANGED for a file whose checksum is not the one in the manifest,",
            breach("changed files left out", right, after=f"sed -i /^CHANGED/d {report}"),
            breach("another word for a changed file", right, after=f"sed -i s/^CHANGED/FAILED/ {report}"),
        ),
        draft.require(
            "MISSING for one that the manifest lists but that is not there,",
            breach("missing files left out", right, swap=("{*listed, *there}", "there")),
            breach("changed in place of missing", right, after=f"sed -i s/^MISSING/CHANGED/ {report}"),
        ),
        draft.require(
            f"and UNKNOWN for a file that is below {root} at any depth but not in the manifest",
            breach("unknown files left out", right, swap=("{*listed, *there}", "listed")),
            breach("changed in place of unknown", right, after=f"sed -i s/^UNKNOWN/CHANGED/ {report}"),
        ),
        draft.require(
            "(the manifest itself does not count).",
            breach("the manifest unknown", right, swap=('del there["MANIFEST.sha256"]', "")),
        ),
        draft.require(
            "Sort the lines by path in byte order (LC_ALL=C).",
            breach("sorted by word", ordered, after=f"LC_ALL=C sort -o {report} {report}"),
            breach(
                "sorted backwards",
                ordered,
                swap=("sorted({*listed, *there})", "sorted({*listed, *there}, reverse=True)"),
            ),
        ),
        draft.require(
            "Files that are all right are not mentioned.",
            breach("files that are all right", right, after=f"echo 'OK {good}' >> {report}"),
        ),
        draft.every_line(report),
        draft.leave(which=f"{root}/{good}"),
    )
    expected = "".join(f"{status[path]} {path}\n" for path in sorted(status))
    draft.result(report, expected)
    draft.honest(
        "found out by sha256sum",
        instead=f"""
cd {root} || exit 1
{{
    sha256sum -c MANIFEST.sha256 2> /dev/null | sed -En 's/^(.*): FAILED$/\\1/p' | while read -r path; do
        echo "CHANGED $path"
    done
    cut -c 67- MANIFEST.sha256 | while read -r path; do [ -e "$path" ] || echo "MISSING $path"; done
    find . -type f ! -path ./MANIFEST.sha256 -printf '%P\\n' | while read -r path; do
        cut -c 67- MANIFEST.sha256 | grep -qxF "$path" || echo "UNKNOWN $path"
    done
}} | LC_ALL=C sort -k 2 > {report}
""",
    )
    draft.honest("a list beside the files", after="sha256sum $(find . -type f) > sums-now.txt")
    draft.pieces(report)
    oracle = python(
        """
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
        """,
        root=root,
        report=report,
    )
    draft.solve(oracle, swap(oracle, "{*listed, *there}", "listed"), expected)


def _restore(draft: Draft) -> None:
    root = draft.project()
    backups = [f"backup-{number}" for number in range(1, draft.number(3, 4) + 1)]
    right: dict[str, bytes] = {}
    lines: list[str] = []
    for index, word in enumerate(draft.some(WORDS, draft.number(7, 12))):
        path = f"{draft.pick('', 'a/', 'b/')}{word}.dat"
        data = draft.text(draft.number(40, 200))
        right[path] = data
        lines.append(f"{_sum('sha256', data)}  {path}\n")
        damaged = index < 3 or draft.chance(0.4)
        good = backups[index % len(backups)]
        draft.file(f"{root}/live/{path}", data[: len(data) // 2] + b"\n" if damaged else data)
        for backup in backups:
            if backup == good or (not damaged and draft.chance(0.5)):
                draft.file(f"{root}/{backup}/{path}", data, keep=True)
            else:
                draft.file(f"{root}/{backup}/{path}", draft.text(len(data)), keep=True)
    content = "files are repaired"
    damaged_one = next(iter(right))
    bad = next(
        path.removeprefix(f"{root}/")
        for path, file in draft.files.items()
        if "/backup-" in path and file.content != right[path.split("/", 5)[5]]
    )
    draft.file(f"{root}/checksums.txt", "".join(sorted(lines, key=lambda line: line[66:])), keep=True)
    draft.say(
        draft.pick(
            f"Some files in {root}/live have been damaged.",
            f"A disk error hit {root}/live.",
        ),
        f"{root}/checksums.txt has the SHA-256 checksum that each file in it should have (sha256sum format, paths "
        f"relative to {root}/live). There are also the backups {', '.join(f'{root}/{backup}' for backup in backups)}, "
        "with the same paths, but not every file in them is good either.",
        draft.require(
            f"Repair {root}/live: replace each damaged file by a copy from whichever backup has the right version, so "
            "that all checksums match.",
            breach("copies of the first backup alone", content, swap=("in backup-*", "in backup-1")),
            breach("one file not repaired", content, after=f"echo more >> live/{damaged_one}"),
            breach("a file that was all right damaged", content, after=f"echo more >> live/{max(right)}"),
            breach(
                "a link in place of a copy",
                content,
                after=f"mv live/{damaged_one} ~ && ln -s ~/{damaged_one.rpartition('/')[2]} live/{damaged_one}",
            ),
            breach("a file gone", content, after=f"rm live/{damaged_one}"),
        ),
        draft.untouched("The backups and the checksum list must not be changed,", which=f"{root}/{bad}"),
        draft.nothing_else(
            f"and nothing else may be added to {root}: no files, directories or links.",
            made=[f"live/{path}" for path in right],
        ),
    )
    draft.final.contents("files are repaired", {f"{root}/live/{path}": data for path, data in right.items()})
    draft.honest(
        "repaired by Python",
        instead=python(
            """
            import glob, hashlib, os, shutil
            os.chdir(@root@)
            for line in open("checksums.txt"):
                sum, path = line.rstrip("\\n").split("  ", 1)
                for copy in ["live/" + path, *glob.glob("backup-*/" + path)]:
                    if hashlib.sha256(open(copy, "rb").read()).hexdigest() == sum:
                        shutil.copyfile(copy, "/tmp/copy")
                shutil.copyfile("/tmp/copy", "live/" + path)
            """,
            root=root,
        ),
    )
    draft.honest("copies with times and permissions", swap=('cp "$place', 'cp -p "$place'))
    draft.honest("new files in place of the damaged ones", swap=('cp "$place', 'cp --remove-destination "$place'))
    oracle = (
        f"cd {root} || exit 1\nwhile read -r sum path; do\n"
        "  for place in backup-*; do\n"
        '    if [ "$(sha256sum < "$place/$path" | cut -d " " -f 1)" = "$sum" ]; then cp "$place/$path" "live/$path"; '
        "fi\n"
        "  done\ndone < checksums.txt\n"
    )
    draft.solve(oracle, swap(oracle, "in backup-*", "in backup-1"), "\n".join(sorted(right)))


FAMILY = Family("checksums", "Make, verify and use checksums", (_make, _verify, _restore), ("python3",))
