"""Finding files by size, content or mode, and writing down which."""

from __future__ import annotations

from .draft import Draft, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS

__all__ = ["FAMILY"]


def _folders(draft: Draft) -> list[str]:
    top = draft.some(DEPARTMENTS, 3)
    return ["", f"{top[0]}/", f"{top[1]}/", f"{top[1]}/{top[2]}/", f"{top[0]}/old/"]


def _output(draft: Draft, root: str, expected: list[str]) -> str:
    output = f"{root}-{draft.pick('found', 'list', 'result')}.txt"
    draft.say(
        f"Write their absolute paths to {output}, one per line, sorted in plain byte order (as LC_ALL=C sort does).",
        draft.every_line(),
        draft.leave(),
    )
    draft.initial.absent(output)
    draft.final.text(output, "".join(f"{path}\n" for path in sorted(expected)))
    return output


def _by_size(draft: Draft) -> None:
    root = draft.project()
    limit = draft.number(300, 900)
    folders = _folders(draft)
    expected: list[str] = []
    for index, name in enumerate(draft.some(WORDS, draft.number(14, 22))):
        size = limit + 1 if index == 0 else limit if index == 1 else draft.number(20, 1500)
        path = f"{root}/{draft.pick(*folders)}{name}.{draft.pick('txt', 'dat', 'log')}"
        draft.file(path, draft.text(size), keep=True)
        if size > limit:
            expected.append(path)
    draft.say(
        draft.pick(
            f"Which files anywhere below {root} are larger than {limit} bytes?",
            f"I'm looking for the regular files below {root}, at any depth, with a size of more than {limit} bytes.",
        ),
        f"A file of exactly {limit} bytes does not count.",
    )
    output = _output(draft, root, expected)
    oracle = f"find {root} -type f -size +{limit}c | LC_ALL=C sort > {output}\n"
    draft.solve(oracle, swap(oracle, f"+{limit}c", f"+{limit - 1}c"), "\n".join(sorted(expected)))


def _by_content(draft: Draft) -> None:
    root = draft.project()
    service = draft.pick(*SERVICES)
    setting = f"{service}_{draft.pick('timeout', 'retries', 'limit', 'mode')}"
    folders = _folders(draft)
    expected: list[str] = []
    for index, name in enumerate(draft.some(WORDS, draft.number(12, 18))):
        extension = "conf" if index < 6 else draft.pick("conf", "txt", "bak")
        lines = [f"{word}={draft.number(1, 99)}" for word in draft.some(WORDS, 4)]
        active = index < 3 or (index > 7 and draft.chance(0.5))
        if active:
            lines.append(f"{setting}={draft.number(1, 500)}")
        elif index == 3:
            lines.append(f"# {setting}={draft.number(1, 500)}")
        elif index == 4:
            lines.append(f"old_{setting}={draft.number(1, 500)}")
        if index == 7:
            extension, lines = "txt", [*lines, f"{setting}=5"]
        path = f"{root}/{draft.pick(*folders)}{name}.{extension}"
        draft.file(path, "".join(f"{line}\n" for line in draft.shuffled(lines)), keep=True)
        if active and extension == "conf":
            expected.append(path)
    draft.say(
        draft.pick(
            f"I need to know which configuration files below {root} set {setting}.",
            f"Somewhere below {root} the setting {setting} is set in several configuration files. Find them all.",
        ),
        "Look at every file below it whose name ends in .conf, at any depth. A file sets it if one of its lines "
        f"begins with {setting}= (at the very start of the line, so commented-out lines and other settings whose name "
        "merely ends the same do not count).",
    )
    output = _output(draft, root, expected)
    oracle = f"grep -rl --include='*.conf' '^{setting}=' {root} | LC_ALL=C sort > {output}\n"
    draft.solve(oracle, swap(oracle, f"'^{setting}='", f"'{setting}='"), "\n".join(sorted(expected)))


def _by_mode(draft: Draft) -> None:
    root = draft.project()
    folders = _folders(draft)
    shell = draft.pick("#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env python3")
    other = draft.pick("#!/usr/bin/perl", "#!/usr/bin/awk -f", "#!/usr/bin/env ruby")
    expected: list[str] = []
    for index, name in enumerate(draft.some(WORDS, draft.number(12, 18))):
        executable = index in (0, 1, 3) or (index > 4 and draft.chance(0.5))
        right = index in (0, 1, 2) or (index > 4 and draft.chance(0.6))
        first = f"# {shell}" if index == 4 else shell if right else draft.pick(other, f"# {name}")
        body = "".join(f"# {draft.prose(5)}\n" for _ in range(draft.number(1, 4)))
        path = f"{root}/{draft.pick(*folders)}{name}{draft.pick('', '.run', '.tool')}"
        draft.file(path, f"{first}\n{body}", draft.pick(0o755, 0o744, 0o700) if executable else 0o644, keep=True)
        if executable and right and index != 4:
            expected.append(path)
    draft.say(
        draft.pick(
            f"List the scripts below {root} that can really be started and are for one interpreter.",
            f"I want an inventory of certain scripts below {root}.",
        ),
        "Wanted are all regular files, at any depth, that are executable by their owner and whose first line is "
        f"exactly {shell}",
    )
    output = _output(draft, root, expected)
    oracle = (
        f"find {root} -type f -perm -u+x | while read -r file; do\n"
        f'  [ "$(head -n 1 "$file")" = \'{shell}\' ] && echo "$file"\ndone | LC_ALL=C sort > {output}\n'
    )
    draft.solve(oracle, swap(oracle, " -perm -u+x", ""), "\n".join(sorted(expected)))


FAMILY = Family("find_files", "Find files by size, content or mode", (_by_size, _by_content, _by_mode))
