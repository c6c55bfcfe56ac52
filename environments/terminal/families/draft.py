"""Draft of a task, which a shape fills in: random numbers, files, prompt, rules of the comparison, and solutions.

What the oracle leaves in the project's folder is the measure (``states``). A shape states what is up to the agent: a
comparer for a document's layout (``form``), files whose permissions matter (``mode``), paths that may appear
(``may_appear``). Each of these adds its sentence to the prompt's last paragraph, which also forbids every other change.
Tests of their own (``final``) are for what lies outside of the folder: programs, processes, services.

Invariant: randomness comes from ``Draft.random`` alone, by methods that give the same numbers in Python 3.11 to 3.13.
"""

from __future__ import annotations

import inspect
import os
import random
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ..states.program import State
from . import vocabulary
from .checks import Checks
from .task import Allowance, GeneratedFile, GeneratedTask, Grading

__all__ = ["HOME", "Draft", "fill", "python", "swap"]

HOME = "/home/user"

_Item = TypeVar("_Item")
_NOTHING_ELSE = (
    "Nothing else in {} may change: no other files, directories, links or permissions.",
    "Everything else in {} must stay as it is, permissions included, and nothing may be added to it.",
    "Change and add nothing else in {} (files, directories, links, permissions).",
)
_MODES = (
    "Permissions of what you make there and times of files are up to you.",
    "Times of files, and the permissions of new ones, do not matter.",
    "It does not matter which permissions new files have, nor which times.",
)
_TIMES = "Times of files do not matter."
#: Sentences on the layout of documents, by comparer.
_LAYOUTS = {
    "csv": (
        "CSV is UTF-8 without a byte-order mark or empty lines, and the last line ends like the others; quotes and the "
        "kind of line ends are up to you."
    ),
    "json": "JSON is UTF-8 without a byte-order mark; its layout and the order of keys are up to you.",
    "xml": "XML is UTF-8 without a byte-order mark, comments and document type; white space between elements is up "
    "to you.",
}


class Draft:
    """The parts of a future ``GeneratedTask``."""

    def __init__(self, family: str, seed: int) -> None:
        self.family = family
        self.seed = seed
        self.name = f"{family}-{seed:06d}"
        self.random = random.Random(f"{family}:{seed}")  # noqa: S311 - tasks, not secrets
        self.files: dict[str, GeneratedFile] = {}
        #: Paths whose content differs when the task begins: ``setup`` consumes them or ``start`` writes to them.
        self.passing: list[str] = []
        self.initial = Checks()
        self.final = Checks()
        self.setup = ""
        self.start = ""
        #: The task's directory: the first one that ``project`` returned.
        self.root = HOME
        self._paragraphs: list[str] = []
        self._sentences: list[str] = []
        self._requirements: list[str] = []
        self._allowances: list[Allowance] = []
        self._forms: dict[str, Sequence[str]] = {}
        self._modes: dict[str, str] = {}
        self._free: list[str] = []
        self._also: list[str] = []
        self._oracle = ""
        self._near_miss = ""
        self._truth = ""

    # --- random choices ----------------------------------------------------------------------------

    def pick(self, *options: _Item) -> _Item:
        """Return one of the options."""
        return self.random.choice(options)

    def some(self, options: Sequence[_Item], count: int) -> list[_Item]:
        """Return ``count`` different options, in random order."""
        return self.random.sample(options, count)

    def shuffled(self, items: Sequence[_Item]) -> list[_Item]:
        """Return all items in random order."""
        return self.random.sample(items, len(items))

    def number(self, least: int, most: int) -> int:
        """Return a number from ``least`` to ``most``, both included."""
        return self.random.randrange(least, most + 1)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def project(self) -> str:
        """Return a random project directory. The first call sets ``root``."""
        place = f"{HOME}/{self.pick(*vocabulary.PROJECTS)}"
        self.root = place if self.root == HOME else self.root
        return place

    def prose(self, words: int) -> str:
        """Return a sentence of ``words`` words, at least two."""
        text = " ".join(self.random.choice(vocabulary.WORDS) for _ in range(max(words, 2)))
        return text[0].upper() + text[1:] + "."

    def text(self, size: int) -> bytes:
        """Return lines of words, exactly ``size`` bytes; the last byte is a newline."""
        lines = ""
        while len(lines) < size:
            lines += self.prose(self.number(4, 9)) + "\n"
        return lines[: size - 1].encode() + b"\n" if size else b""

    # --- initial files -----------------------------------------------------------------------------

    def file(self, path: str, content: str | bytes, mode: int = 0o644) -> str:
        """Add a file. Return its path."""
        assert path not in self.files, path
        self.files[path] = GeneratedFile(content.encode() if isinstance(content, str) else content, mode)
        return path

    def directory(self, path: str, mode: int = 0o755) -> str:
        """Add a directory that no file's path implies, or that has a mode of its own. Return its path."""
        self.files[path] = GeneratedFile(mode=mode, directory=True)
        return path

    def link(self, path: str, target: str) -> str:
        """Add a symbolic link. Return its path."""
        self.files[path] = GeneratedFile(mode=0o777, link=target)
        return path

    # --- prompt ------------------------------------------------------------------------------------

    def say(self, *sentences: str) -> None:
        """Add a paragraph to the prompt.

        A sentence after ``! `` states a requirement, which false solutions of the tests break; the mark is not shown. A
        sentence that begins with a newline keeps its own layout.
        """
        text = ""
        for marked in sentences:
            sentence = marked.removeprefix("! ")
            self._sentences.append(sentence)
            self._requirements += [sentence] if sentence != marked else []
            text += sentence if not text or sentence.startswith("\n") or text.endswith("\n") else f" {sentence}"
        self._paragraphs.append(text.strip("\n"))

    def every_line(self) -> str:
        """Return the requirement that every line of a text file ends with a newline."""
        return self.pick(
            "! Every line ends with a newline, including the last one.",
            "! End each line, the last one too, with a single newline; no blank lines.",
            "! Terminate every line (also the last) with a newline and add no empty lines.",
        )

    # --- rules of the comparison -------------------------------------------------------------------

    def result(self, path: str) -> str:
        """Compare a path that may be outside of the task's directory, too. Return ``path``."""
        if not path.startswith(f"{self.root}/"):
            self._also.append(self._relative(path))
        return path

    def form(self, path: str, name: str, *arguments: str, sentence: str = "") -> str:
        """Compare a file (``path`` may be a pattern) by a comparer of ``states``. Return ``path``.

        The prompt gets ``sentence``, by default the comparer's own. For ``any`` it has to be given.
        """
        self._forms[self._relative(path)] = (name, *arguments)
        said = sentence or _LAYOUTS.get(name, "")
        if said and all(allowance.sentence != said for allowance in self._allowances):
            self._allowances.append(Allowance(name, said))
        return path

    def mode(self, path: str, policy: str) -> None:
        """Compare the permissions of a path: ``exact``, ``executable`` by its owner, or ``free``."""
        self._modes[self._relative(path)] = policy

    def may_appear(self, pattern: str, sentence: str) -> None:
        """Allow paths like ``pattern``, with any content. The prompt gets the sentence."""
        self._free.append(self._relative(pattern))
        self._allowances.append(Allowance("appearing", sentence))

    def _relative(self, path: str) -> str:
        # A relative path would depend on the folder in which the server runs.
        assert path.startswith("/"), path
        return os.path.relpath(path, self.root)

    # --- solutions ---------------------------------------------------------------------------------

    def solve(self, oracle: str, near_miss: str, truth: str = "") -> None:
        """Set both solutions, and facts for graders."""
        assert oracle != near_miss, self.name
        self._oracle, self._near_miss = oracle, near_miss
        self._truth = truth or f"What solution.sh leaves in {self.root}."

    def task(self, programs: tuple[str, ...], grading: Grading) -> GeneratedTask:
        """Return the finished task."""
        nothing_else = self.pick(*_NOTHING_ELSE).format(self.root)
        rules = [nothing_else]
        free = self.pick(*_MODES)
        self._allowances.insert(0, Allowance("modes and times", _TIMES if "exact" in self._modes.values() else free))
        rules += [allowance.sentence for allowance in self._allowances]
        self.say(*dict.fromkeys(rules))
        data = {
            path: file.content
            for path, file in self.files.items()
            if not file.directory and file.link is None and path not in self.passing
        }
        if data:
            self.initial.contents("the files are there", data)
        for path, file in self.files.items():
            if file.directory:
                self.initial.directory(path)
            elif file.link is not None:
                self.initial.link(path, file.link)
        return GeneratedTask(
            family=self.family,
            seed=self.seed,
            name=self.name,
            prompt="\n\n".join(self._paragraphs) + "\n",
            truth=self._truth,
            files=dict(self.files),
            setup=self.setup,
            initial_tests=self.initial.source(f"What holds before {self.name} begins."),
            final_tests=self.final.body(),
            oracle=self._oracle,
            near_miss=self._near_miss,
            grading=grading,
            start=self.start,
            programs=programs,
            root=self.root,
            sentences=tuple(self._sentences),
            demands=tuple(self._requirements),
            allowances=tuple(self._allowances),
            state=State(self.root, tuple(self._also), dict(self._forms), dict(self._modes), tuple(self._free)),
        )


def python(code: str, **values: object) -> str:
    """Return Bash that runs Python code, in which ``@name@`` stands for the literal of a value.

    A value is given, or is the caller's variable of that name. ``@name/rest@`` is a path below it.
    """
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    names = {**frame.f_back.f_locals, **values}
    text = re.sub(
        "@([a-z_]+)(/[a-z./-]*)?@",
        lambda found: repr(f"{names[found[1]]}{found[2]}" if found[2] else names[found[1]]),
        textwrap.dedent(code).strip(),
    )
    return f"python3 - <<'END'\n{text}\nEND\n"


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with every ``@name@`` replaced. Raises ``KeyError`` for a name without a value."""
    return re.sub(r"@([a-z_]+)@", lambda found: values[found[1]], text)


def swap(text: str, old: str, new: str) -> str:
    """Return ``text`` with one passage replaced. Most near misses are made this way."""
    assert old in text, f"{old!r} is not in {text!r}"
    return text.replace(old, new)
