"""A task while a shape writes it: its random numbers, files, prompt, tests and solutions.

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
    """Collects what becomes a ``GeneratedTask``."""

    def __init__(self, family: str, seed: int) -> None:
        self.family = family
        self.seed = seed
        self.name = f"{family}-{seed:06d}"
        self.random = random.Random(f"{family}:{seed}")  # noqa: S311 - tasks, not secrets
        self.files: dict[str, GeneratedFile] = {}
        #: Paths the prompt says not to change.
        self.kept: list[str] = []
        #: Whether their permissions must stay too.
        self.modes_kept = True
        #: Paths that are not as written when the task begins: ``setup`` uses them up or ``start`` writes to them.
        self.passing: list[str] = []
        self.initial = Checks()
        self.final = Checks()
        self.setup = ""
        self.start = ""
        #: The directory the task is about: the first that ``project`` gave.
        self.root = HOME
        self._paragraphs: list[str] = []
        self._sentences: list[str] = []
        self._requirements: list[Requirement] = []
        self._honest: list[Way] = []
        self._unchanged: list[tuple[str, Sequence[str], Sequence[str]]] = []
        self._truth = ""
        self._oracle = ""
        self._near_miss = ""

    # --- drawing -------------------------------------------------------------------------------

    def pick(self, *options: _Item) -> _Item:
        """One of them."""
        return self.random.choice(options)

    def some(self, options: Sequence[_Item], count: int) -> list[_Item]:
        """``count`` different ones of them, in any order."""
        return self.random.sample(options, count)

    def shuffled(self, items: Sequence[_Item]) -> list[_Item]:
        """All of them in another order."""
        return self.random.sample(items, len(items))

    def number(self, least: int, most: int) -> int:
        """A number between the two, both included."""
        return self.random.randrange(least, most + 1)

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random.random() < probability

    def project(self) -> str:
        """A directory for the task."""
        place = f"{HOME}/{self.pick(*vocabulary.PROJECTS)}"
        self.root = place if self.root == HOME else self.root
        return place

    def prose(self, words: int) -> str:
        """A sentence of about so many words."""
        text = " ".join(self.random.choice(vocabulary.WORDS) for _ in range(max(words, 2)))
        return text[0].upper() + text[1:] + "."

    def text(self, size: int) -> bytes:
        """Lines of words, exactly ``size`` bytes, the last of them a newline."""
        lines = ""
        while len(lines) < size:
            lines += self.prose(self.number(4, 9)) + "\n"
        return lines[: size - 1].encode() + b"\n" if size else b""

    # --- what is there -------------------------------------------------------------------------

    def file(self, path: str, content: str | bytes, mode: int = 0o644, *, keep: bool = False) -> str:
        """A file; with ``keep`` it must be the same afterwards. Returns its path."""
        data = content.encode() if isinstance(content, str) else content
        assert path not in self.files, path
        self.files[path] = GeneratedFile(data, mode)
        if keep:
            self.kept.append(path)
        return path

    def directory(self, path: str, mode: int = 0o755) -> str:
        """A directory that would not be implied, or that has a mode of its own."""
        self.files[path] = GeneratedFile(mode=mode, directory=True)
        return path

    def link(self, path: str, target: str) -> str:
        """A symbolic link."""
        self.files[path] = GeneratedFile(mode=0o777, link=target)
        return path

    # --- what is said --------------------------------------------------------------------------

    def say(self, *sentences: str) -> None:
        """A paragraph of the prompt. A sentence that begins with a newline keeps its own layout."""
        text = ""
        self._sentences += sentences
        for sentence in sentences:
            text += sentence if not text or sentence.startswith("\n") or text.endswith("\n") else f" {sentence}"
        self._paragraphs.append(text.strip("\n"))

    def require(self, sentence: str, *breaches: Way) -> str:
        """A sentence for ``say`` that demands something, and false solutions that break it and nothing else."""
        self._requirements.append(Requirement(sentence, breaches))
        return sentence

    def honest(self, what: str, *, after: str = "", instead: str = "", swap: tuple[str, str] = ("", "")) -> None:
        """A way that earns 1, though it is not the oracle's."""
        self._honest.append(Way(what, (), after, instead, swap))

    def pieces(self, path: str) -> None:
        """Honest ways of writing a file of lines: in two pieces, and line by line."""
        self.honest(
            "written in two pieces", after=f"head -n 1 {path} > ~/a; tail -n +2 {path} >> ~/a; cat ~/a > {path}"
        )
        loop = f"while IFS= read -r line; do printf '%s\\n' \"$line\"; done < {path} > ~/b && cp ~/b {path}"
        self.honest("written line by line", after=loop)

    def every_line(self, path: str, *more: str) -> str:
        """The rule about newlines in these files, as ``Checks.text`` sees it."""
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
        """That what is kept must be left alone; ``which`` as for ``untouched``."""
        sentence = self.pick(
            "Leave the existing files exactly as they are.",
            "Do not modify any of the files that are already there.",
            "The files that exist now must stay unchanged.",
        )
        return self.untouched(sentence, which=which)

    def untouched(self, sentence: str, *paths: str, which: str = "") -> str:
        """A sentence that says so of these files, or of all that are kept so far.

        ``which`` is the one that false solutions change, by default the first: one that no other check reads.
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
        """A sentence that everything else in the project's folder stays as it is, by default one that says it fully.

        ``made`` are paths, relative to the folder, that the task makes, changes or removes: they and what is below
        them have checks of their own. ``allowed`` are patterns of names that may appear (``*.db-wal``), which the
        sentence must say. ``which`` is a file that false solutions change, one that no other check reads.
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
        """What CSV leaves free, for an oracle that makes its writer so; ``writer`` lacks the closing bracket."""
        self.honest("every field quoted", swap=(f"{writer})", f"{writer}, quoting=csv.QUOTE_ALL)"))
        self.honest("a byte-order mark", swap=(', "w") as', ', "w", encoding="utf-8-sig") as'))
        self.honest("plain newlines", swap=(f"{writer})", f"{writer}, lineterminator='\\n')"))

    def _tree(self, root: str) -> dict[str, GeneratedFile]:
        """What is below a directory, by its path relative to it; implied directories too."""
        found = {".": GeneratedFile(mode=0o755, directory=True)}
        for path, file in self.files.items():
            if path == root or (path.startswith(f"{root}/") and path not in self.passing):
                relative = path[len(root) + 1 :] or "."
                parts = relative.split("/")
                for depth in range(1, len(parts)):
                    found.setdefault("/".join(parts[:depth]), GeneratedFile(mode=0o755, directory=True))
                found[relative] = file
        return found

    # --- what is right -------------------------------------------------------------------------

    def solve(self, oracle: str, near_miss: str, truth: str) -> None:
        """The two solutions, and what the graders know."""
        assert oracle != near_miss, self.name
        self._oracle, self._near_miss, self._truth = oracle, near_miss, truth

    def task(self, programs: tuple[str, ...], grading: Grading) -> GeneratedTask:
        """The finished task."""
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
    """Bash that runs Python code; ``@name@`` in it stands for a value's literal."""
    return f"python3 - <<'END'\n{fill(textwrap.dedent(code).strip(), {k: repr(v) for k, v in values.items()})}\nEND\n"


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with every ``@name@`` replaced. Raises ``KeyError`` for a name without a value."""
    return re.sub(r"@([a-z_]+)@", lambda found: values[found[1]], text)


def swap(text: str, old: str, new: str) -> str:
    """``text`` with one of its passages replaced: how most near misses are made."""
    assert old in text, f"{old!r} is not in {text!r}"
    return text.replace(old, new)
