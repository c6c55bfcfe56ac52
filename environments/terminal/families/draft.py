"""Draft of a task, which a shape fills in: random numbers, files, prompt, tests and solutions.

Invariant: randomness comes from ``Draft.random`` alone, by methods that give the same numbers in Python 3.11 to 3.13.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TypeVar

from . import vocabulary
from .checks import Checks
from .requirements import Requirement, Way, breach
from .task import GeneratedFile, GeneratedTask, Grading

__all__ = ["HOME", "Draft", "breach", "fill", "python", "swap"]

HOME = "/home/user"

_Item = TypeVar("_Item")
_NOTHING_ELSE = (
    "Nothing else in {} may change: no other files, directories, links or permissions.",
    "Everything else in {} must stay as it is, permissions included, and nothing may be added to it.",
    "Change and add nothing else in {} (files, directories, links, permissions).",
)


class Draft:
    """The parts of a future ``GeneratedTask``."""

    def __init__(self, family: str, seed: int) -> None:
        self.family = family
        self.seed = seed
        self.name = f"{family}-{seed:06d}"
        self.random = random.Random(f"{family}:{seed}")  # noqa: S311 - tasks, not secrets
        self.files: dict[str, GeneratedFile] = {}
        #: Paths that must not change, according to the prompt.
        self.kept: list[str] = []
        #: Whether their permissions must stay, too.
        self.modes_kept = True
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
        self._requirements: list[Requirement] = []
        self._honest: list[Way] = []
        self._unchanged: list[tuple[str, Sequence[str], Sequence[str]]] = []
        self._truth = ""
        self._oracle = ""
        self._near_miss = ""

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

    def file(self, path: str, content: str | bytes, mode: int = 0o644, *, keep: bool = False) -> str:
        """Add a file. With ``keep`` it must be unchanged afterwards. Return its path."""
        data = content.encode() if isinstance(content, str) else content
        assert path not in self.files, path
        self.files[path] = GeneratedFile(data, mode)
        if keep:
            self.kept.append(path)
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
        """Add a paragraph to the prompt. A sentence that begins with a newline keeps its own layout."""
        text = ""
        self._sentences += sentences
        for sentence in sentences:
            text += sentence if not text or sentence.startswith("\n") or text.endswith("\n") else f" {sentence}"
        self._paragraphs.append(text.strip("\n"))

    def require(self, sentence: str, *breaches: Way) -> str:
        """Return a sentence for ``say`` that states a requirement.

        Each breach is a false solution that breaks this sentence and no other.
        """
        self._requirements.append(Requirement(sentence, breaches))
        return sentence

    def honest(self, what: str, *, after: str = "", instead: str = "", swap: tuple[str, str] = ("", "")) -> None:
        """Add a way other than the oracle's that earns 1."""
        self._honest.append(Way(what, (), after, instead, swap))

    def pieces(self, path: str) -> None:
        """Add honest ways to write a file of lines: in two pieces, and line by line."""
        self.honest(
            "written in two pieces", after=f"head -n 1 {path} > ~/a; tail -n +2 {path} >> ~/a; cat ~/a > {path}"
        )
        loop = f"while IFS= read -r line; do printf '%s\\n' \"$line\"; done < {path} > ~/b && cp ~/b {path}"
        self.honest("written line by line", after=loop)

    def result(self, path: str, text: str) -> None:
        """Require a file that does not exist before: ``text`` is its content afterwards."""
        self.initial.absent(path)
        self.final.text(path, text)

    def every_line(self, path: str, *more: str) -> str:
        """Return the rule about newlines in these files, as ``Checks.text`` checks it."""
        sentence = self.pick(
            "Every line ends with a newline, including the last one.",
            "End each line, the last one too, with a single newline; no blank lines.",
            "Terminate every line (also the last) with a newline and add no empty lines.",
        )
        breaches: list[Way] = []
        for file in (path, *more):
            name = file.rpartition("/")[2]
            breaches.append(
                breach(
                    f"{name} without its last newline", f"{name} ends with a newline", after=f"truncate -s -1 {file}"
                )
            )
            breaches.append(breach(f"{name} with a blank line", f"{name} has the right lines", after=f"echo >> {file}"))
        return self.require(sentence, *breaches)

    def leave(self, which: str = "") -> str:
        """Return a sentence that all kept files must stay unchanged; ``which`` as for ``untouched``."""
        sentence = self.pick(
            "Leave the existing files exactly as they are.",
            "Do not modify any of the files that are already there.",
            "The files that exist now must stay unchanged.",
        )
        return self.untouched(sentence, which=which)

    def untouched(self, sentence: str, *paths: str, which: str = "") -> str:
        """Return ``sentence`` as the requirement that these files, or all files kept so far, are unchanged.

        ``which`` is the file that false solutions change, by default the first kept one. No other check may read it.
        """
        self.kept += [path for path in paths if path not in self.kept]
        which = which or self.kept[0]
        check = "existing files are unchanged"
        breaches = [breach("a line more in a file that was there", check, after=f"echo more >> {which}")]
        if self.modes_kept:
            link = f"mv {which} ~/moved && ln -s ~/moved {which}"
            breaches.append(breach("a link in place of a file that was there", check, after=link))
            mode = self.files[which].mode ^ 0o011
            breaches.append(
                breach("other permissions of a file that was there", check, after=f"chmod {mode:o} {which}")
            )
        return self.require(sentence, *breaches)

    def nothing_else(
        self,
        sentence: str = "",
        *,
        made: Sequence[str] = (),
        allowed: Sequence[str] = (),
        root: str = "",
        which: str = "",
    ) -> str:
        """Return the requirement that everything else in the project's folder is unchanged.

        ``sentence`` states it; the default is one of ``_NOTHING_ELSE``. ``made`` are paths, relative to the folder,
        that the task makes, changes or removes: they and everything below them have checks of their own. ``allowed``
        are patterns of names that may appear (``*.db-wal``); the sentence must mention them. ``which`` is a file that
        false solutions change. No other check may read it.
        """
        root = root or self.root
        self._unchanged.append((root, made, allowed))
        check = f"nothing else in {root.rpartition('/')[2]} has changed"
        breaches = [
            breach("one more file", check, after=f"echo more > {root}/leftover.txt"),
            breach("one more directory, empty", check, after=f"mkdir {root}/leftover"),
            breach("one more link", check, after=f"ln -s /etc/hostname {root}/leftover"),
            breach("other permissions of the folder", check, after=f"chmod 711 {root}"),
        ]
        if which:
            breaches.append(breach("a line more in another file", check, after=f"echo more >> {which}"))
            breaches.append(breach("another file gone", check, after=f"rm {which}"))
        return self.require(sentence or self.pick(*_NOTHING_ELSE).format(root), *breaches)

    def honest_csv(self, writer: str) -> None:
        """Add honest ways that vary the format of CSV; ``writer`` is the oracle's call without its closing bracket."""
        self.honest("every field quoted", swap=(f"{writer})", f"{writer}, quoting=csv.QUOTE_ALL)"))
        self.honest("a byte-order mark", swap=(', "w") as', ', "w", encoding="utf-8-sig") as'))
        self.honest("plain newlines", swap=(f"{writer})", f"{writer}, lineterminator='\\n')"))

    def _tree(self, root: str) -> dict[str, GeneratedFile]:
        """Return everything below a directory by its relative path, implied directories included."""
        found = {".": GeneratedFile(mode=0o755, directory=True)}
        for path, file in self.files.items():
            if path == root or (path.startswith(f"{root}/") and path not in self.passing):
                relative = path[len(root) + 1 :] or "."
                parts = relative.split("/")
                for depth in range(1, len(parts)):
                    found.setdefault("/".join(parts[:depth]), GeneratedFile(mode=0o755, directory=True))
                found[relative] = file
        return found

    # --- solutions ---------------------------------------------------------------------------------

    def solve(self, oracle: str, near_miss: str, truth: str) -> None:
        """Set both solutions and the facts for graders."""
        assert oracle != near_miss, self.name
        self._oracle, self._near_miss, self._truth = oracle, near_miss, truth

    def task(self, programs: tuple[str, ...], grading: Grading) -> GeneratedTask:
        """Return the finished task."""
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
        if self.kept:
            self.final.kept({path: self.files[path] for path in self.kept}, modes=self.modes_kept)
        for root, made, allowed in self._unchanged:
            kept = [path[len(root) + 1 :] for path in self.kept if path.startswith(f"{root}/")]
            self.final.unchanged(root, self._tree(root), made=[*made, *kept], allowed=allowed)
        return GeneratedTask(
            family=self.family,
            seed=self.seed,
            name=self.name,
            prompt="\n\n".join(self._paragraphs) + "\n",
            truth=self._truth,
            files=dict(self.files),
            setup=self.setup,
            initial_tests=self.initial.source(f"What holds before {self.name} begins."),
            final_tests=self.final.source(f"What holds when {self.name} is solved."),
            oracle=self._oracle,
            near_miss=self._near_miss,
            grading=grading,
            start=self.start,
            programs=programs,
            root=self.root,
            sentences=tuple(self._sentences),
            requirements=tuple(self._requirements),
            honest=tuple(self._honest),
        )


def python(code: str, **values: object) -> str:
    """Return Bash that runs Python code; ``@name@`` in the code stands for the literal of a value."""
    return f"python3 - <<'END'\n{fill(textwrap.dedent(code).strip(), {k: repr(v) for k, v in values.items()})}\nEND\n"


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return ``text`` with every ``@name@`` replaced. Raises ``KeyError`` for a name without a value."""
    return re.sub(r"@([a-z_]+)@", lambda found: values[found[1]], text)


def swap(text: str, old: str, new: str) -> str:
    """Return ``text`` with one passage replaced. Most near misses are made this way."""
    assert old in text, f"{old!r} is not in {text!r}"
    return text.replace(old, new)
