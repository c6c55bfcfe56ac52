"""Forbidden changes and other solutions of tasks: how each is written down, and which a task has.

A module of ``solutions`` lists them by the function of the shape, or of a part that several shapes have: ``FORBIDDEN``
by the demanding sentence, as a template, or by its beginning, and ``HONEST``. Scripts and passages are templates:
``«expression»`` is evaluated with the local variables of the shape's function, as they were when the task was drafted.
So a template can name what was drawn.

Invariant: a forbidden change breaks the sentence it stands beside. It earns 0 in every task that has the sentence.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import TYPE_CHECKING, Any

from tests.environments.terminal_families.loading import load_generation

if TYPE_CHECKING:
    from environments.terminal.tasks.generation import GeneratedTask

__all__ = ["EVERYWHERE", "Drafted", "Solution", "Way", "after", "drafted", "instead", "python", "swap"]


@dataclass(frozen=True)
class Way:
    """A script that runs after the oracle or instead of it, or a passage of the oracle and its replacement."""

    kind: str
    first: str
    second: str = ""


def after(script: str) -> Way:
    """Return a way that runs ``script`` in the project's folder after the oracle."""
    return Way("after", script)


def instead(script: str) -> Way:
    """Return a way that runs ``script`` in the home instead of the oracle."""
    return Way("instead", script)


def python(code: str) -> Way:
    """Return a way that runs Python instead of the oracle. ``@name@`` stands for the literal of a variable."""
    return Way("instead", "python3 - <<'END'\n" + re.sub("@([a-z_]+)@", "«repr(\\1)»", code.strip("\n")) + "\nEND\n")


def swap(old: str, new: str) -> Way:
    """Return a way that is the oracle with a passage replaced. Tasks whose oracle lacks the passage do not have it."""
    return Way("swap", old, new)


@dataclass(frozen=True)
class Solution:
    """One way of one task, ready to be played."""

    what: str
    script: str
    #: The script runs after the oracle, in the project's folder.
    solved: bool


@dataclass(frozen=True)
class Drafted:
    """A task with its ways; the forbidden ones by demanding sentence."""

    task: GeneratedTask
    forbidden: Mapping[str, Sequence[Solution]]
    honest: Sequence[Solution]


#: What an agent may do in every task.
EVERYWHERE = (
    Solution(
        "leftovers in the home",
        """
cd ~ && mkdir -p .cache/tool 'scratch place/empty' && echo 'print(1)' > solve.py && echo ls >> .bash_history
ln -s /nowhere broken && echo x > .cache/tool/entry && chmod 700 .cache
""",
        True,
    ),
    Solution("a process left running", "nohup sleep 300 > /dev/null 2>&1 < /dev/null & setsid -f sleep 300", True),
    Solution("other times of files", "find . -exec touch -h -d '2001-02-03 04:05:06' {} +", True),
    Solution(
        "texts written again line by line",
        """
export LC_ALL=C  # elsewhere `read` takes a newline for a part of a letter that is not UTF-8
find . -name .git -prune -o -type f -links 1 -perm -600 -size +0 -print0 | while IFS= read -r -d '' file; do
  [ -z "$(tail -c 1 "$file")" ] && grep -Iq . "$file" || continue
  while IFS= read -r line; do printf '%s\\n' "$line"; done < "$file" > ~/again && cat ~/again > "$file"
done
true
""",
        True,
    ),
    Solution(
        "files written anew",
        """
find . -name .git -prune -o -type f -links 1 -perm -600 -print0 | while IFS= read -r -d '' file; do
  cp -p "$file" ~/anew && mv ~/anew "$file"
done
true
""",
        True,
    ),
)


def drafted(family: str, seed: int) -> Drafted:
    """Draft a task and its ways."""
    generation = load_generation()
    known = importlib.import_module(f"tests.environments.terminal_families.solutions.{family}")
    parts = {*known.FORBIDDEN, *known.HONEST}
    values: dict[str, dict[str, Any]] = {}
    folder = f"families/{generation.FAMILIES[family].shapes[0].__module__.rpartition('.')[2]}.py"

    def keep(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code.co_name in parts and frame.f_code.co_filename.endswith(folder):
            values[frame.f_code.co_name] = {**frame.f_globals, **frame.f_locals}

    sys.setprofile(keep)
    try:
        task: GeneratedTask = generation.generate(family, seed)
    finally:
        sys.setprofile(None)
    forbidden: dict[str, list[Solution]] = {}
    honest: list[Solution] = []
    for name, names in values.items():
        for sentence, ways in known.FORBIDDEN.get(name, {}).items():
            begins = filled(sentence, names)
            for demand in task.demands:
                if demand.strip().startswith(begins.strip()):
                    forbidden.setdefault(demand, []).extend(_solutions(task, ways, names))
        honest += _solutions(task, known.HONEST.get(name, ()), names)
    return Drafted(task, forbidden, honest)


def _solutions(task: GeneratedTask, ways: Sequence[Way], names: Mapping[str, Any]) -> Iterator[Solution]:
    for way in ways:
        first, second = filled(way.first, names), filled(way.second, names)
        if way.kind != "swap":
            yield Solution(f"{way.kind} {first!r}", first, way.kind == "after")
        elif first in task.oracle:
            assert first != second, f"{task.name}: {first!r} is replaced by itself"
            yield Solution(f"{first!r} replaced by {second!r}", task.oracle.replace(first, second), False)


def filled(template: str, names: Mapping[str, Any]) -> str:
    """Return a template with its expressions evaluated."""
    return re.sub("«(.*?)»", lambda found: str(_evaluated(found[1], names)), template, flags=re.DOTALL)


def _evaluated(expression: str, names: Mapping[str, Any]) -> object:
    try:
        # One mapping: a comprehension does not see the variables of the function that evaluates it.
        return eval(_compiled(expression), dict(names))
    except NameError as error:
        raise AssertionError(f"«{expression}»: {error}") from error


@cache
def _compiled(expression: str) -> Any:
    return compile(expression, "«»", "eval")
