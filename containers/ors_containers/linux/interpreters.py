"""Scripts of interpreters, by the names and arguments of their processes.

A file that an interpreter is given runs as a program does that is executed, and a Python looks for modules where its
script lies, or in its working folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interpretation", "interpretation"]

#: Interpreters; their options of one letter after which no script follows, because the text is an argument; and those
#: whose value follows in the same argument.
_INTERPRETERS = tuple(
    (re.compile(names), letters, valued)
    for names, letters, valued in (
        (r"(ba|da|z|k|mk|a|fi|rba|t?c)?sh", "c", ""),
        (r"(python|pypy)[\d.]*t?", "cm", "WX"),
        (r"perl[\d.]*", "eE", "IMmx"),
        (r"(ruby|lua|luajit|julia|Rscript|R|octave)[\d.]*", "e", "Ir"),
        (r"(node|nodejs|deno|bun|tsx|ts-node)", "ep", "r"),
        (r"php[\d.]*", "r", "d"),
        (r"(java|tclsh|wish|expect|guile|racket)[\d.]*", "", ""),
    )
)
_PYTHON = _INTERPRETERS[1][0]
#: Options of Python after which it does not look for modules in its script's folder or its working folder.
_ISOLATED = "IP"
_LETTERS = re.compile(r"-[A-Za-z]+")


class Interpretation(NamedTuple):
    """A command of an interpreter."""

    #: Arguments of which the first that names a file is its script; without one, it runs text.
    candidates: tuple[str, ...]
    #: Its working folder, or its script's, is on its path of modules.
    looks_here: bool
    #: It is a Python, which looks in the folders of ``PYTHONPATH``, too.
    is_python: bool


def interpretation(program: str, arguments: Sequence[str]) -> Interpretation | None:
    """Return what a program interprets; None for one that is not an interpreter. ``arguments`` begin with its name.

    A program that is several, as ``busybox``, is the one whose name it is given.
    """
    for name in (program, *arguments[:1]):
        base = name.rpartition("/")[2].lstrip("-")
        found = next((row for row in _INTERPRETERS if row[0].fullmatch(base)), None)
        if found is None:
            continue
        names, letters, valued = found
        candidates: list[str] = []
        isolated = False
        for argument in arguments[1:]:
            if argument == "-":
                break
            if not argument.startswith("-"):
                candidates.append(argument)
            elif not candidates and _LETTERS.fullmatch(argument):
                options = re.split(f"[{valued}]", argument)[0] if valued else argument
                isolated = isolated or any(letter in options for letter in _ISOLATED)
                if any(letter in options for letter in letters):
                    break
        is_python = names is _PYTHON
        return Interpretation(tuple(candidates), is_python and not isolated, is_python)
    return None
