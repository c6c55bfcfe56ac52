"""Keep a git that reads from starting a program other than git, whatever its repository configures.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import read_only_git``).

A repository's settings name programs: ``diff.external``, ``diff.*.textconv``, ``filter.*.clean``. The domain of a
reader (``sealed_programs``) permits the listed programs of its command, so a git beside ``sh`` or ``sed`` could execute
these on a file of the agent. Therefore git looks programs up in a folder that contains git alone: a shell's command
begins with functions by which git, and the programs that start git, get this folder as their ``PATH``. A git that was
started by git could print what an alias says, so ``diff`` gets the option to start none.

Invariant: no word of a command is changed within quotes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_containers.graders.read_only_commands import Proof
    from ors_containers.graders.sealed_programs import SealedPrograms

__all__ = ["is_kept_alone", "keep_alone"]

#: Text of tests that are about programs for differences.
_ABOUT = re.compile(r"(?i)ext-diff|external|textconv")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_DIFF = r"diff(?:-files|-index|-tree)?(?![\w./=-])"
#: git's own options, and the command after them. A quoted word is ``\0`` and digits.
_OPTIONS = r"((?:\s+(?:-[Cc]\s+\S+|--[\w-]+=\S+|--no-pager|-P))*)"
_IN_LINE = re.compile(rf"((?:^|[;&|({{\n!]|\b(?:then|do|else|timeout\s+\S+))\s*)git{_OPTIONS}\s+({_DIFF})")
_NO_PROGRAM = "--no-ext-diff"


def is_kept_alone(proof: Proof) -> bool:
    """Return whether the programs of a command that start others start git alone, or never git."""
    return "git" not in proof.started or proof.started == {"git"}


def keep_alone(
    words: list[str], shells: tuple[int, str] | None, proof: Proof, room: SealedPrograms, text: str
) -> tuple[list[str], str]:
    """Return the words with which a command is started, and its ``PATH``.

    ``shells`` is the text of a shell's command (``read_only_commands.shell_text``), ``text`` that of the tests.
    """
    about = _ABOUT.search(text) is not None
    if shells is None:
        path = room.alone if proof.started <= {"git"} else room.programs
        return words if about else _without_programs(words), path
    number, line = shells
    if not about:
        line = _line_without_programs(line)
    names = ["git", *(sorted(proof.starting) if "git" in proof.started else ())]
    functions = "".join(f'{name}() {{ PATH={room.alone} {room.programs}/{name} "$@"; }}; ' for name in names)
    return [*words[: number + 1], functions + line, *words[number + 2 :]], room.programs


def _without_programs(words: Sequence[str]) -> list[str]:
    """Add the option to a command without a shell."""
    position = next((n for n, word in enumerate(words) if word.rpartition("/")[2] == "git"), len(words)) + 1
    while position < len(words) and words[position].startswith("-"):
        position += 2 if words[position] in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else 1
    if position < len(words) and re.fullmatch(_DIFF, words[position]):
        return [*words[: position + 1], _NO_PROGRAM, *words[position + 1 :]]
    return list(words)


def _line_without_programs(line: str) -> str:
    """Add the option to each command of a shell's text."""
    quoted = _QUOTED.findall(line)
    numbers = iter(range(len(quoted)))
    bare = _QUOTED.sub(lambda _: f"\0{next(numbers)}\0", line)
    changed = _IN_LINE.sub(rf"\1git\2 \3 {_NO_PROGRAM}", bare)
    return re.sub(r"\0(\d+)\0", lambda found: quoted[int(found[1])], changed)
