"""Family: permission bits, set, repaired by a rule, and audited."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _table(draft: Draft) -> None:
    draft.modes_kept = False
    root = draft.project()
    modes: dict[str, int] = {}
    for name in draft.some(WORDS, draft.number(4, 7)):
        path = f"{root}/{draft.pick('', 'bin/', 'keys/', 'data/')}{name}"
        draft.file(path, draft.text(draft.number(20, 60)), 0o666, keep=True)
        usual = (0o600, 0o640, 0o644, 0o700, 0o750, 0o755)
        modes[path] = draft.pick(*usual) if not modes else draft.pick(*usual, 0o440, 0o400)
    # The owner may write to the first, whatever the modes of the others.
    first, last = next(iter(modes)), list(modes)[-1]
    words = {4: "read", 2: "write", 1: "execute"}

    def spoken(bits: int) -> str:
        return " and ".join(word for bit, word in words.items() if bits & bit) or "nothing"

    spell = draft.chance(0.5)
    lines = [
        f"- {path}: "
        + (
            f"owner {spoken(mode >> 6)}, group {spoken(mode >> 3 & 7)}, everybody else {spoken(mode & 7)}"
            if spell
            else f"{mode:04o}"
        )
        for path, mode in modes.items()
    ]
    draft.say(
        draft.pick(
            "Please set the permissions of these files:", f"The permissions below {root} are wrong. Set them to:"
        ),
        draft.require(
            "\n" + "\n".join(lines),
            breach("one file's group", "mode of *", after=f"chmod {modes[last] ^ 0o040:04o} {last}"),
            breach("one file's owner", "mode of *", after=f"chmod {modes[last] ^ 0o100:04o} {last}"),
            breach("all alike", "mode of *", after="find . -type f -exec chmod 777 {} +"),
        ),
    )
    draft.say(
        draft.require(
            "No other permission bits may be set on them,",
            breach("others may read", "mode of *", after=f"chmod {modes[last] ^ 0o004:04o} {last}"),
            breach("the bit of another user", "mode of *", after=f"chmod u+s {last}"),
            breach("the sticky bit", "mode of *", after=f"chmod +t {last}"),
        ),
        draft.untouched("and their contents must not change.", which=first),
    )
    draft.honest("by letters", after=f"chmod u=rwx {last}; chmod {modes[last]:o} {last}")
    draft.honest(
        "from Python",
        instead=python("import os\nfor path, mode in @modes@.items():\n    os.chmod(path, mode)", modes=modes),
    )
    draft.final.modes(modes)
    oracle = "".join(f"chmod {mode:04o} {path}\n" for path, mode in modes.items())
    path, mode = draft.pick(*modes.items())
    draft.solve(oracle, swap(oracle, f"chmod {mode:04o} {path}\n", f"chmod {mode ^ 0o040:04o} {path}\n"), oracle)


def _repair(draft: Draft) -> None:
    draft.modes_kept = False
    root = f"{draft.project()}/{draft.pick('site', 'public', 'www', 'htdocs')}"
    script, script_mode, file_mode, folder_mode = draft.pick(
        ("sh", 0o755, 0o644, 0o755), ("cgi", 0o750, 0o640, 0o750), ("py", 0o700, 0o600, 0o700)
    )
    modes: dict[str, int] = {root: folder_mode}
    draft.directory(root, draft.pick(0o777, 0o775, 0o711))
    folders = [root]
    for name in draft.some(DEPARTMENTS, 3):
        folder = f"{draft.pick(*folders)}/{name}"
        draft.directory(folder, draft.pick(0o777, 0o775, 0o711))
        folders.append(folder)
        modes[folder] = folder_mode
    for index, name in enumerate(draft.some(WORDS, draft.number(7, 12))):
        extension = script if index < 2 else "html" if index == 2 else draft.pick("html", "css", "txt", script)
        path = f"{draft.pick(*folders)}/{name}.{extension}"
        draft.file(path, draft.text(draft.number(20, 60)), draft.pick(0o666, 0o777, 0o664, 0o611), keep=True)
        modes[path] = script_mode if extension == script else file_mode
    scripts = [path for path in modes if path.endswith(f".{script}")]
    others = [path for path in draft.kept if path not in scripts]
    draft.say(
        draft.pick(
            f"Somebody ran chmod carelessly on {root}. Repair the permissions of the whole tree.",
            f"The web server refuses to serve {root} because of its permissions. Please repair them.",
        ),
        draft.require(
            f"{root} itself and every directory below it: {folder_mode:04o}.",
            breach("the directory itself left", "mode of *", after=f"chmod 777 {root}"),
            breach(
                "directories like files",
                "mode of *",
                after=f"find {root} -depth -mindepth 1 -type d -exec chmod {folder_mode ^ 0o010:o} {{}} +",
            ),
            breach("a bit that directories inherit", "mode of *", after=f"find {root} -type d -exec chmod g+s {{}} +"),
        ),
        draft.require(
            f"Files whose name ends in .{script}: {script_mode:04o}.",
            breach("one file left out", "mode of *", after=f"chmod 777 {scripts[0]}"),
            breach("all files alike", "mode of *", after=f"find {root} -type f -exec chmod {file_mode:o} {{}} +"),
        ),
        draft.require(
            f"All other files: {file_mode:04o}.",
            breach(
                "all of them executable", "mode of *", after=f"find {root} -type f -exec chmod {script_mode:o} {{}} +"
            ),
            breach("one more bit", "mode of *", after=f"chmod o+w {others[0]}"),
        ),
        draft.untouched("Contents stay as they are.", which=others[0]),
    )
    walk = _walk(root, script, folder_mode, script_mode, file_mode)
    draft.honest("one directory after the other", instead=walk)
    draft.honest("closed on the way", instead=f"find {root} -type f -exec chmod 600 {{}} +\n{walk}")
    draft.final.modes(modes)
    oracle = (
        f"find {root} -type d -exec chmod {folder_mode:04o} {{}} +\n"
        f"find {root} -type f ! -name '*.{script}' -exec chmod {file_mode:04o} {{}} +\n"
        f"find {root} -type f -name '*.{script}' -exec chmod {script_mode:04o} {{}} +\n"
    )
    draft.solve(oracle, f"chmod -R {folder_mode:04o} {root}\n", "\n".join(f"{m:04o} {p}" for p, m in modes.items()))


def _walk(root: str, script: str, folder_mode: int, script_mode: int, file_mode: int) -> str:
    return python(
        """
        import os
        os.chmod(@root@, @folder_mode@)
        for place, folders, names in os.walk(@root@):
            for name in folders:
                os.chmod(os.path.join(place, name), @folder_mode@)
            for name in names:
                os.chmod(os.path.join(place, name), @script_mode@ if name.endswith(@end@) else @file_mode@)
        """,
        root=root,
        end=f".{script}",
        folder_mode=folder_mode,
        script_mode=script_mode,
        file_mode=file_mode,
    )


def _audit(draft: Draft) -> None:
    draft.modes_kept = False
    root = draft.project()
    report = f"{root}-{draft.pick('audit', 'world-writable', 'findings')}.txt"
    who, bit = draft.pick(("everybody (others)", 0o002), ("the group", 0o020))
    modes: dict[str, int] = {}
    found: list[str] = []
    services = draft.some(SERVICES, 4)
    for index, name in enumerate(draft.some(WORDS, draft.number(9, 15))):
        mode = draft.pick(0o644, 0o600, 0o640, 0o755, 0o700, 0o444)
        if index < 3 or (index > 3 and draft.chance(0.3)):
            mode = draft.pick(0o751, 0o644, 0o640, 0o755, 0o700) | bit
        path = f"{root}/{draft.pick(*services)}/{name}"
        draft.file(path, draft.text(draft.number(20, 60)), mode, keep=True)
        modes[path] = mode & ~bit
        if mode & bit:
            found.append(path)
    letter, seen = ("o", "????????w?") if bit == 0o002 else ("g", "?????w????")
    other = next(path for path in modes if path not in found)
    writable = next(path for path, mode in modes.items() if mode & 0o200)
    right = "* has the right lines"
    draft.say(
        draft.pick(
            f"Security wants an audit of {root}.",
            f"Please check the file permissions below {root}.",
        ),
        draft.require(
            f"Find every regular file below it that {who} may write to.",
            breach("one left out", right, after=f"sed -i '$d' {report}"),
            breach("the directories too", right, after=f"echo {root} >> {report}; LC_ALL=C sort -o {report} {report}"),
            breach("all files", right, after=f"find {root} -type f | LC_ALL=C sort > {report}"),
        ),
        draft.require(
            f"Write the absolute paths of these files to {report}, one per line,",
            breach("relative paths", right, after=f"sed -i 's!^{root}/!!' {report}"),
            breach("names alone", right, after=f"sed -i 's!.*/!!' {report}"),
            breach("all in one line", right, after=f"paste -s -d ' ' {report} > ~/line; cat ~/line > {report}"),
        ),
        draft.require(
            "sorted in byte order (LC_ALL=C).",
            breach("backwards", "lines of * are in order", after=f"sort -r -o {report} {report}"),
        ),
        draft.every_line(report),
    )
    draft.say(
        draft.require(
            f"Then take that one write permission of {who} away from them.",
            breach("not taken away", "mode of *", after=f"xargs chmod {letter}+w < {report}"),
            breach("taken from one only", "mode of *", after=f"tail -n 1 {report} | xargs chmod {letter}+w"),
        ),
        draft.require(
            "All their other permission bits, the permissions of all other files,",
            breach("the owner's taken too", "mode of *", swap=(f"chmod {letter}-w", "chmod a-w")),
            breach("another bit of one", "mode of *", after=f"chmod {modes[found[0]] ^ 0o010:o} {found[0]}"),
            breach("a bit of another file", "mode of *", after=f"chmod {modes[other] ^ 0o010:o} {other}"),
        ),
        draft.untouched("and all contents stay exactly as they are.", which=writable),
    )
    draft.honest(
        "file by file",
        instead=f"find {root} -type f | LC_ALL=C sort | while read -r file; do\n"
        f'  case $(stat -c %A "$file") in {seen}) echo "$file"; chmod {letter}-w "$file" ;; esac\ndone > {report}\n',
    )
    draft.honest(
        "the report written line by line",
        after=f"while read -r line; do echo $line; done < {report} > ~/r; mv ~/r {report}",
    )
    draft.honest("a report that nobody else may read", after=f"chmod 600 {report}")
    draft.result(report, "".join(f"{path}\n" for path in sorted(found)))
    draft.final.modes(modes)
    oracle = (
        f"find {root} -type f -perm -{letter}+w | LC_ALL=C sort > {report}\n"
        f"xargs -d '\\n' chmod {letter}-w < {report}\n"
    )
    draft.solve(oracle, swap(oracle, f"chmod {letter}-w", "chmod a-w"), "\n".join(sorted(found)))


FAMILY = Family("permissions", "Set, repair and audit permission bits", (_table, _repair, _audit))
