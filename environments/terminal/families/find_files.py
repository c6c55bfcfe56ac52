"""Family: lists of files selected by size, content or mode."""

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS


def _paths(draft: Draft, root: str, count: int) -> list[str]:
    """Return paths below ``root`` without extensions. Only the first has a capital; the second is deeply nested."""
    top = draft.some(DEPARTMENTS, 3)
    folders = ["", f"{top[0]}/", f"{top[1]}/", f"{top[1]}/{top[2]}/", f"{top[0]}/old/"]
    names = draft.some(WORDS, count)
    paths = [f"{root}/Zones-{names[0]}", f"{root}/{folders[3]}{names[1]}"]
    return [*paths, *(f"{root}/{draft.pick(*folders)}{name}" for name in names[2:])]


def _output(draft: Draft, root: str) -> str:
    """Ask for a list of paths. Return its path."""
    output = draft.result(f"{root}-{draft.pick('found', 'list', 'result')}.txt")
    draft.say(
        f"! Write their absolute paths to {output}, one per line,",
        "! sorted in plain byte order (as LC_ALL=C sort does).",
        draft.every_line(),
    )
    return output


def _by_size(draft: Draft) -> None:
    root = draft.project()
    limit = draft.number(300, 900)
    paths: list[str] = []
    for index, place in enumerate(_paths(draft, root, draft.number(14, 22))):
        size = draft.number(20, 1500)
        size = {0: limit + 1, 1: 2 * limit, 2: limit, 3: limit // 2}.get(index, size)
        paths.append(draft.file(f"{place}.{draft.pick('txt', 'dat', 'log')}", draft.text(size)))
    draft.link(f"{root}/latest", paths[1])
    question = draft.pick(
        f"Which regular files anywhere below {root} are larger than {limit} bytes?",
        f"I'm looking for the regular files below {root}, at any depth, with a size of more than {limit} bytes.",
    )
    draft.say(
        f"! {question}", f"! A file of exactly {limit} bytes does not count.", "! Symbolic links do not count either."
    )
    output = _output(draft, root)
    oracle = f"find {root} -type f -size +{limit}c | LC_ALL=C sort > {output}\n"
    draft.solve(oracle, swap(oracle, f"+{limit}c", f"+{limit - 1}c"))


def _by_content(draft: Draft) -> None:
    root = draft.project()
    service = draft.pick(*SERVICES)
    setting = f"{service}_{draft.pick('timeout', 'retries', 'limit', 'mode')}"
    # Lines that do not match, and a matching line in a file that is not selected.
    others = {3: f"# {setting}", 4: f"old_{setting}", 5: f"  {setting}", 6: setting.upper(), 9: f"{setting}_most"}
    extensions = {7: "txt", 8: "conf.old"}
    for index, place in enumerate(_paths(draft, root, draft.number(13, 19))):
        extension = "conf" if index < 7 or index in others else extensions.get(index, draft.pick("conf", "txt", "bak"))
        lines = [f"{word}={draft.number(1, 99)}" for word in draft.some(WORDS, 4)]
        active = index in (0, 1, 2, 7, 8) or (index > 9 and draft.chance(0.5))
        if active or index in others:
            lines.append(f"{others.get(index, setting)}={draft.number(1, 500)}")
        draft.file(f"{place}.{extension}", "".join(f"{line}\n" for line in draft.shuffled(lines)))
    draft.say(
        draft.pick(
            f"I need to know which configuration files below {root} set {setting}.",
            f"Somewhere below {root} the setting {setting} is set in several configuration files. Find them all.",
        ),
        "! Look at every file below it whose name ends in .conf, at any depth.",
        f"! A file sets it if one of its lines begins with {setting}= (at the very start of the line, so "
        "commented-out lines and other settings whose name merely ends the same do not count).",
    )
    output = _output(draft, root)
    oracle = f"grep -rl --include='*.conf' '^{setting}=' {root} | LC_ALL=C sort > {output}\n"
    draft.solve(oracle, swap(oracle, f"'^{setting}='", f"'{setting}='"))


def _by_mode(draft: Draft) -> None:
    root = draft.project()
    shell = draft.pick("#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env python3")
    other = draft.pick("#!/usr/bin/perl", "#!/usr/bin/awk -f", "#!/usr/bin/env ruby")
    paths: list[str] = []
    # Wrong first lines, in files that are executable.
    firsts = {2: other, 3: f"# {shell}", 4: f"{shell} -e", 5: f"# first\n{shell}"}
    modes = {0: 0o755, 1: 0o700, 6: 0o644, 7: 0o654}
    for index, place in enumerate(_paths(draft, root, draft.number(13, 19))):
        executable = index not in (6, 7) and (index < 8 or draft.chance(0.5))
        right = index not in firsts and (index < 8 or draft.chance(0.6))
        first = firsts.get(index, shell if right else draft.pick(other, f"# {draft.pick(*WORDS)}"))
        body = "".join(f"# {draft.prose(5)}\n" for _ in range(draft.number(1, 4)))
        mode = modes.get(index, draft.pick(0o755, 0o744, 0o700) if executable else 0o644)
        paths.append(draft.file(f"{place}{draft.pick('', '.run', '.tool')}", f"{first}\n{body}", mode))
    draft.link(f"{root}/current", paths[1])
    test = f'[ "$(head -n 1 "$file")" = \'{shell}\' ]'
    draft.say(
        draft.pick(
            f"List the scripts below {root} that can really be started and are for one interpreter.",
            f"I want an inventory of certain scripts below {root}.",
        ),
        "! Wanted are all regular files (not links), at any depth,",
        "! that are executable by their owner",
        f"! and whose first line is exactly {shell}",
    )
    output = _output(draft, root)
    oracle = (
        f"find {root} -type f -perm -u+x | while read -r file; do\n"
        f'  {test} && echo "$file"\ndone | LC_ALL=C sort > {output}\n'
    )
    draft.solve(oracle, swap(oracle, " -perm -u+x", ""))


FAMILY = Family("find_files", "Find files by size, content or mode", (_by_size, _by_content, _by_mode), ("python3",))
