"""Family: lists of files selected by size, content or mode."""

from __future__ import annotations

from .draft import Draft, breach, python, swap
from .family import Family
from .vocabulary import DEPARTMENTS, SERVICES, WORDS

__all__ = ["FAMILY"]

_LINES = "* has the right lines"


def _paths(draft: Draft, root: str, count: int) -> list[str]:
    """Return paths below ``root`` without extensions. Only the first has a capital; the second is deeply nested."""
    top = draft.some(DEPARTMENTS, 3)
    folders = ["", f"{top[0]}/", f"{top[1]}/", f"{top[1]}/{top[2]}/", f"{top[0]}/old/"]
    names = draft.some(WORDS, count)
    paths = [f"{root}/Zones-{names[0]}", f"{root}/{folders[3]}{names[1]}"]
    return [*paths, *(f"{root}/{draft.pick(*folders)}{name}" for name in names[2:])]


def _output(draft: Draft, root: str, expected: list[str], every: str) -> str:
    """Ask for a list of paths; ``every`` is Bash that prints the expected paths below the directory, in any order."""
    output = f"{root}-{draft.pick('found', 'list', 'result')}.txt"
    draft.say(
        draft.require(
            f"Write their absolute paths to {output}, one per line,",
            breach("relative paths", _LINES, after=f"sed -i s#^{root}/## {output}"),
            breach("names alone", _LINES, after=f"sed -i s#^.*/## {output}"),
            breach("all on one line", _LINES, after=f"paste -s -d ' ' {output} > ~/one && mv ~/one {output}"),
            breach("a path twice", _LINES, after=f"sed -i 1p {output}"),
            breach("a path left out", _LINES, after=f"sed -i 1d {output}"),
            breach("sizes beside the paths", _LINES, after=f"sed -i 's/^/12 /' {output}"),
        ),
        draft.require(
            "sorted in plain byte order (as LC_ALL=C sort does).",
            breach("sorted backwards", "lines of * are in order", after=f"LC_ALL=C sort -r -o {output} {output}"),
            breach("sorted as in a dictionary", "lines of * are in order", after=f"sort -f -o {output} {output}"),
        ),
        draft.every_line(output),
        draft.leave(),
    )
    draft.honest("by a copy in another place", instead=f"{every} > ~/found\nLC_ALL=C sort -u ~/found > {output}\n")
    draft.honest("written through a temporary file", after=f"cp {output} {output}.new && mv {output}.new {output}")
    draft.result(output, "".join(f"{path}\n" for path in sorted(expected)))
    return output


def _by_size(draft: Draft) -> None:
    root = draft.project()
    limit = draft.number(300, 900)
    expected: list[str] = []
    for index, place in enumerate(_paths(draft, root, draft.number(14, 22))):
        size = draft.number(20, 1500)
        size = (
            limit + 1
            if index == 0
            else 2 * limit
            if index == 1
            else (limit, limit // 2)[index - 2]
            if index < 4
            else size
        )
        path = f"{place}.{draft.pick('txt', 'dat', 'log')}"
        draft.file(path, draft.text(size), keep=True)
        if size > limit:
            expected.append(path)
    draft.link(f"{root}/latest", expected[1])
    draft.say(
        draft.require(
            draft.pick(
                f"Which regular files anywhere below {root} are larger than {limit} bytes?",
                f"I'm looking for the regular files below {root}, at any depth, with a size of more than {limit} "
                "bytes.",
            ),
            breach("the top directory alone", _LINES, swap=(" -type f", " -maxdepth 1 -type f")),
            breach("two directories deep at most", _LINES, swap=(" -type f", " -maxdepth 2 -type f")),
            breach("smaller ones", _LINES, swap=(f"+{limit}c", f"-{limit}c")),
            breach("larger than it by two", _LINES, swap=(f"+{limit}c", f"+{limit + 1}c")),
        ),
        draft.require(
            f"A file of exactly {limit} bytes does not count.",
            breach("files of just that size", _LINES, swap=(f"+{limit}c", f"+{limit - 1}c")),
        ),
        draft.require(
            "Symbolic links do not count either.", breach("a link to a large file", _LINES, swap=("find ", "find -L "))
        ),
    )
    every = python(
        """
        import os
        for place, _, names in os.walk(@root@):
            for path in (os.path.join(place, name) for name in names):
                if os.path.isfile(path) and not os.path.islink(path) and os.stat(path).st_size > @limit@:
                    print(path)
        """,
        root=root,
        limit=limit,
    )
    output = _output(draft, root, expected, f"{{ {every}}}")
    oracle = f"find {root} -type f -size +{limit}c | LC_ALL=C sort > {output}\n"
    draft.solve(oracle, swap(oracle, f"+{limit}c", f"+{limit - 1}c"), "\n".join(sorted(expected)))


def _by_content(draft: Draft) -> None:
    root = draft.project()
    service = draft.pick(*SERVICES)
    setting = f"{service}_{draft.pick('timeout', 'retries', 'limit', 'mode')}"
    expected: list[str] = []
    # Lines that do not match, and a matching line in a file that is not selected.
    others = {3: f"# {setting}", 4: f"old_{setting}", 5: f"  {setting}", 6: setting.upper(), 9: f"{setting}_most"}
    extensions = {7: "txt", 8: "conf.old"}
    for index, place in enumerate(_paths(draft, root, draft.number(13, 19))):
        extension = "conf" if index < 7 or index in others else extensions.get(index, draft.pick("conf", "txt", "bak"))
        lines = [f"{word}={draft.number(1, 99)}" for word in draft.some(WORDS, 4)]
        active = index in (0, 1, 2, 7, 8) or (index > 9 and draft.chance(0.5))
        if active or index in others:
            lines.append(f"{others.get(index, setting)}={draft.number(1, 500)}")
        path = f"{place}.{extension}"
        draft.file(path, "".join(f"{line}\n" for line in draft.shuffled(lines)), keep=True)
        if active and extension == "conf":
            expected.append(path)
    draft.say(
        draft.pick(
            f"I need to know which configuration files below {root} set {setting}.",
            f"Somewhere below {root} the setting {setting} is set in several configuration files. Find them all.",
        ),
        draft.require(
            "Look at every file below it whose name ends in .conf, at any depth.",
            breach("every file", _LINES, swap=(" --include='*.conf'", "")),
            breach("names with .conf within", _LINES, swap=("'*.conf'", "'*.conf*'")),
            breach("the top directory alone", _LINES, swap=(f"' {root}", f"' -d skip {root}/*")),
            breach("one directory deep at most", _LINES, swap=(f"' {root}", f"' -d skip {root}/* {root}/*/*")),
        ),
        draft.require(
            f"A file sets it if one of its lines begins with {setting}= (at the very start of the line, so "
            "commented-out lines and other settings whose name merely ends the same do not count).",
            breach("anywhere in a line", _LINES, swap=(f"'^{setting}=", f"'{setting}=")),
            breach("lines that are commented out", _LINES, swap=(f"'^{setting}=", f"'^\\(# \\)*{setting}=")),
            breach("names that end so", _LINES, swap=(f"'^{setting}=", f"'^[a-z_]*{setting}=")),
            breach("names that begin so", _LINES, swap=(f"'^{setting}=", f"'^{setting}")),
            breach("after spaces", _LINES, swap=(f"'^{setting}=", f"'^ *{setting}=")),
            breach("in capitals", _LINES, swap=(f"'^{setting}=", f"-i '^{setting}=")),
            breach("the other files", _LINES, swap=("grep -rl", "grep -rL")),
        ),
    )
    output = _output(
        draft,
        root,
        expected,
        f"find {root} -name '*.conf' -exec awk '/^{setting}=/ {{ print FILENAME; exit }}' {{}} \\;",
    )
    oracle = f"grep -rl --include='*.conf' '^{setting}=' {root} | LC_ALL=C sort > {output}\n"
    draft.solve(oracle, swap(oracle, f"'^{setting}='", f"'{setting}='"), "\n".join(sorted(expected)))


def _by_mode(draft: Draft) -> None:
    root = draft.project()
    shell = draft.pick("#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env python3")
    other = draft.pick("#!/usr/bin/perl", "#!/usr/bin/awk -f", "#!/usr/bin/env ruby")
    expected: list[str] = []
    # Wrong first lines, in files that are executable.
    firsts = {2: other, 3: f"# {shell}", 4: f"{shell} -e", 5: f"# first\n{shell}"}
    modes = {0: 0o755, 1: 0o700, 6: 0o644, 7: 0o654}
    for index, place in enumerate(_paths(draft, root, draft.number(13, 19))):
        executable = index not in (6, 7) and (index < 8 or draft.chance(0.5))
        right = index not in firsts and (index < 8 or draft.chance(0.6))
        first = firsts.get(index, shell if right else draft.pick(other, f"# {draft.pick(*WORDS)}"))
        body = "".join(f"# {draft.prose(5)}\n" for _ in range(draft.number(1, 4)))
        mode = modes.get(index, draft.pick(0o755, 0o744, 0o700) if executable else 0o644)
        path = draft.file(f"{place}{draft.pick('', '.run', '.tool')}", f"{first}\n{body}", mode, keep=True)
        if executable and right:
            expected.append(path)
    draft.link(f"{root}/current", expected[1])
    test = f'[ "$(head -n 1 "$file")" = \'{shell}\' ]'
    draft.say(
        draft.pick(
            f"List the scripts below {root} that can really be started and are for one interpreter.",
            f"I want an inventory of certain scripts below {root}.",
        ),
        draft.require(
            "Wanted are all regular files (not links), at any depth,",
            breach("a link to a script", _LINES, swap=("find ", "find -L ")),
            breach("the top directory alone", _LINES, swap=(" -type f", " -maxdepth 1 -type f")),
            breach("two directories deep at most", _LINES, swap=(" -type f", " -maxdepth 2 -type f")),
        ),
        draft.require(
            "that are executable by their owner",
            breach("whatever their permissions", _LINES, swap=(" -perm -u+x", "")),
            breach("executable by anybody", _LINES, swap=(" -perm -u+x", " -perm /111")),
            breach("executable by everybody", _LINES, swap=(" -perm -u+x", " -perm -111")),
        ),
        draft.require(
            f"and whose first line is exactly {shell}",
            breach("whatever their first line", _LINES, swap=(f"{test} &&", "")),
            breach("a first line that begins so", _LINES, swap=(test, f"head -n 1 \"$file\" | grep -q '^{shell}'")),
            breach("a first line that ends so", _LINES, swap=(test, f"head -n 1 \"$file\" | grep -q '{shell}$'")),
            breach("such a line anywhere", _LINES, swap=(test, f"grep -qx '{shell}' \"$file\"")),
        ),
    )
    output = _output(
        draft,
        root,
        expected,
        f"find {root} -type f -perm -100 -exec awk 'FNR == 1 && $0 == \"{shell}\" {{ print FILENAME }}' {{}} +",
    )
    oracle = (
        f"find {root} -type f -perm -u+x | while read -r file; do\n"
        f'  {test} && echo "$file"\ndone | LC_ALL=C sort > {output}\n'
    )
    draft.solve(oracle, swap(oracle, " -perm -u+x", ""), "\n".join(sorted(expected)))


FAMILY = Family("find_files", "Find files by size, content or mode", (_by_size, _by_content, _by_mode), ("python3",))
