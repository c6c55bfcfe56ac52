"""Family: permission bits, set, repaired by a rule, and audited."""

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS


def _table(draft: Draft) -> None:
    root = draft.project()
    modes: dict[str, int] = {}
    for name in draft.some(WORDS, draft.number(4, 7)):
        path = f"{root}/{draft.pick('', 'bin/', 'keys/', 'data/')}{name}"
        draft.file(path, draft.text(draft.number(20, 60)), 0o666)
        usual = (0o600, 0o640, 0o644, 0o700, 0o750, 0o755)
        modes[path] = draft.pick(*usual) if not modes else draft.pick(*usual, 0o440, 0o400)
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
    draft.mode(f"{draft.root}/*", "exact")
    draft.say(
        draft.pick(
            "Please set the permissions of these files:", f"The permissions below {root} are wrong. Set them to:"
        ),
        "! \n" + "\n".join(lines),
    )
    draft.say("! No other permission bits may be set on these files.")
    oracle = "".join(f"chmod {mode:04o} {path}\n" for path, mode in modes.items())
    path, mode = draft.pick(*modes.items())
    draft.solve(oracle, swap(oracle, f"chmod {mode:04o} {path}\n", f"chmod {mode ^ 0o040:04o} {path}\n"))


def _repair(draft: Draft) -> None:
    tree = f"{draft.project()}/{draft.pick('site', 'public', 'www', 'htdocs')}"
    script, script_mode, file_mode, folder_mode = draft.pick(
        ("sh", 0o755, 0o644, 0o755), ("cgi", 0o750, 0o640, 0o750), ("py", 0o700, 0o600, 0o700)
    )
    folders = [draft.directory(tree, draft.pick(0o777, 0o775, 0o711))]
    for name in draft.some(DEPARTMENTS, 3):
        folders.append(draft.directory(f"{draft.pick(*folders)}/{name}", draft.pick(0o777, 0o775, 0o711)))
    files: list[str] = []
    for index, name in enumerate(draft.some(WORDS, draft.number(7, 12))):
        extension = script if index < 2 else "html" if index == 2 else draft.pick("html", "css", "txt", script)
        end = f"{script}.bak" if index == 3 else extension
        mode = draft.pick(0o666, 0o777, 0o664, 0o611)
        files.append(draft.file(f"{draft.pick(*folders)}/{name}.{end}", draft.text(draft.number(20, 60)), mode))
    draft.mode(f"{draft.root}/*", "exact")
    draft.say(
        draft.pick(
            f"Somebody ran chmod carelessly on {tree}. Repair the permissions of the whole tree.",
            f"The web server refuses to serve {tree} because of its permissions. Please repair them.",
        ),
        f"! {tree} itself and every directory below it: {folder_mode:04o}.",
        f"! Files whose name ends in .{script}: {script_mode:04o}.",
        f"! All other files: {file_mode:04o}.",
    )
    oracle = (
        f"find {tree} -type d -exec chmod {folder_mode:04o} {{}} +\n"
        f"find {tree} -type f ! -name '*.{script}' -exec chmod {file_mode:04o} {{}} +\n"
        f"find {tree} -type f -name '*.{script}' -exec chmod {script_mode:04o} {{}} +\n"
    )
    draft.solve(oracle, f"chmod -R {folder_mode:04o} {tree}\n")


def _audit(draft: Draft) -> None:
    root = draft.project()
    tree = f"{root}/{draft.pick('srv', 'share', 'exports')}"
    report = f"{root}/{draft.pick('audit', 'world-writable', 'findings')}.txt"
    who, bit = draft.pick(("everybody (others)", 0o002), ("the group", 0o020))
    found: list[str] = []
    services = draft.some(SERVICES, 4)
    # A directory with the permission, which is not a file.
    draft.directory(f"{tree}/{services[0]}", 0o755 | bit)
    for index, name in enumerate(draft.some(WORDS, draft.number(9, 15))):
        mode = draft.pick(0o644, 0o600, 0o640, 0o755, 0o700, 0o444)
        if index < 3 or (index > 3 and draft.chance(0.3)):
            mode = draft.pick(0o751, 0o644, 0o640, 0o755, 0o700) | bit
        elif index == 3:
            mode = 0o624 if bit == 0o002 else 0o642
        path = draft.file(f"{tree}/{draft.pick(*services)}/{name}", draft.text(draft.number(20, 60)), mode)
        if mode & bit:
            found.append(path)
    letter = "o" if bit == 0o002 else "g"
    draft.say(
        draft.pick(f"Security wants an audit of {tree}.", f"Please check the file permissions below {tree}."),
        f"! Find every regular file below it that {who} may write to.",
        f"! Write the absolute paths of these files to {report}, one per line,",
        "! sorted in byte order (LC_ALL=C).",
        draft.every_line(),
    )
    draft.say(
        f"! Then take that one write permission of {who} away from them.",
        "! Their other permission bits stay, and so do the permissions of all other files and directories.",
    )
    oracle = (
        f"find {tree} -type f -perm -{letter}+w | LC_ALL=C sort > {report}\n"
        f"xargs -d '\\n' chmod {letter}-w < {report}\n"
    )
    draft.solve(oracle, swap(oracle, f"chmod {letter}-w", "chmod a-w"))


FAMILY = Family("permissions", "Set, repair and audit permission bits", (_table, _repair, _audit))
