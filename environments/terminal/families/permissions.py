"""Permission bits: set, repaired by a rule, audited."""

from __future__ import annotations

from .draft import Draft, swap
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
        modes[path] = draft.pick(0o600, 0o640, 0o644, 0o700, 0o750, 0o755, 0o440, 0o400)
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
        "\n" + "\n".join(lines),
    )
    draft.say("No other permission bits may be set on them, and their contents must not change.")
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
    draft.say(
        draft.pick(
            f"Somebody ran chmod carelessly on {root}. Repair the permissions of the whole tree.",
            f"The web server refuses to serve {root} because of its permissions. Please repair them.",
        ),
        f"{root} itself and every directory below it: {folder_mode:04o}. Files whose name ends in .{script}: "
        f"{script_mode:04o}. All other files: {file_mode:04o}.",
        "Contents stay as they are.",
    )
    draft.final.modes(modes)
    oracle = (
        f"find {root} -type d -exec chmod {folder_mode:04o} {{}} +\n"
        f"find {root} -type f ! -name '*.{script}' -exec chmod {file_mode:04o} {{}} +\n"
        f"find {root} -type f -name '*.{script}' -exec chmod {script_mode:04o} {{}} +\n"
    )
    draft.solve(oracle, f"chmod -R {folder_mode:04o} {root}\n", "\n".join(f"{m:04o} {p}" for p, m in modes.items()))


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
        if index < 3 or draft.chance(0.3):
            mode = draft.pick(0o751, 0o644, 0o640, 0o755, 0o700) | bit
        path = f"{root}/{draft.pick(*services)}/{name}"
        draft.file(path, draft.text(draft.number(20, 60)), mode, keep=True)
        modes[path] = mode & ~bit
        if mode & bit:
            found.append(path)
    draft.say(
        draft.pick(
            f"Security wants an audit of {root}.",
            f"Please check the file permissions below {root}.",
        ),
        f"Find every regular file below it that {who} may write to. Write the absolute paths of these files to "
        f"{report}, one per line, sorted in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    draft.say(
        f"Then take that one write permission of {who} away from them. All their other permission bits, the "
        "permissions of all other files, and all contents stay exactly as they are.",
    )
    draft.initial.absent(report)
    draft.final.text(report, "".join(f"{path}\n" for path in sorted(found)))
    draft.final.modes(modes)
    letter = "o" if bit == 0o002 else "g"
    oracle = (
        f"find {root} -type f -perm -{letter}+w | LC_ALL=C sort > {report}\n"
        f"xargs -d '\\n' chmod {letter}-w < {report}\n"
    )
    draft.solve(oracle, swap(oracle, f"chmod {letter}-w", "chmod a-w"), "\n".join(sorted(found)))


FAMILY = Family("permissions", "Set, repair and audit permission bits", (_table, _repair, _audit))
