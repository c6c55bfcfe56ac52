"""Programs of tests that are given a place of the agent: which program, in which test, and which place.

Such a program behaves as its data and configuration there tell it (``git``, ``make``, ``file``). The list is made from
the tests' text, and completed by what a run of the tests has started (``trusted_programs``).

Invariant: a program that lies in a place of the agent is the agent's, and its row says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .parsing import parse

__all__ = ["ReadingProgram", "merged", "reading_programs"]

_STARTERS = frozenset(
    (
        "os.popen",
        "os.system",
        "subprocess.Popen",
        "subprocess.call",
        "subprocess.check_call",
        "subprocess.check_output",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
        "subprocess.run",
    )
)
#: Folders in which every user may write.
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - of the sandbox
_PATH = re.compile(r"(?:~|/)[\w./@+~-]*")
_DEEPEST = 8

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class ReadingProgram:
    """A program of a test, and the agent's places among its arguments and in its working directory."""

    #: Empty for a program that is started when the tests are imported.
    test: str
    program: str
    places: tuple[str, ...]
    #: Whether the program itself is a file of the agent.
    agents: bool
    #: Whether a run of the tests has shown it; else it follows from the tests' text.
    seen: bool = False


def reading_programs(text: str, home: str) -> list[ReadingProgram]:
    """Return such programs in the text of tests, for an agent whose home directory is ``home``."""
    try:
        module = parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    return sorted(set(_Search(module, home).found()))


def merged(static: Iterable[ReadingProgram], run: Sequence[Sequence[Any]], home: str) -> list[ReadingProgram]:
    """Return the programs of the text with those that a run has started: test, program and places each."""
    seen = {
        ReadingProgram(str(test).partition("[")[0], program, tuple(places), _is_agents(program, home), seen=True)
        for test, program, places in run
    }
    # A shell's command has the shell as its program in a run, and its first word in the text.
    said = {
        row for row in static if not any(row.test == each.test and set(row.places) <= set(each.places) for each in seen)
    }
    return sorted(seen | said)


def _is_agents(path: str, home: str) -> bool:
    return path.startswith(("./", "~")) or any(f"{path}/".startswith(f"{place}/") for place in (home, *_SHARED))


class _Search:
    def __init__(self, module: ast.Module, home: str) -> None:
        self._module = module
        self._home = home.rstrip("/") or "/"
        self._functions = {node.name: node for node in ast.walk(module) if isinstance(node, Function)}
        self._names = dict(_aliases(module))
        self._texts = {
            target.id: statement.value
            for statement in module.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }

    def found(self) -> Iterator[ReadingProgram]:
        for name, function in self._functions.items():
            if name.startswith("test"):
                yield from self._of(name, function, frozenset((name,)))
        for statement in self._module.body:
            if not isinstance(statement, (*Function.__args__, ast.ClassDef)):
                yield from self._of("", statement, frozenset())

    def _of(self, test: str, node: ast.AST, above: frozenset[str]) -> Iterator[ReadingProgram]:
        """Yield the programs that a piece of a test starts itself, and through functions of the module."""
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            name = self._dotted(call.func)
            helper = self._functions.get(name)
            if name in _STARTERS or (helper is not None and self._passes_on(helper)):
                yield from self._row(test, call)
            if helper is not None and name not in above and len(above) < _DEEPEST:
                yield from self._of(test, helper, above | {name})

    def _passes_on(self, helper: Function) -> bool:
        """Return whether a function starts a program with what it is given."""
        given = {argument.arg for argument in ast.walk(helper.args) if isinstance(argument, ast.arg)}
        return any(
            self._dotted(call.func) in _STARTERS
            and any(isinstance(part, ast.Name) and part.id in given for part in ast.walk(call))
            for call in ast.walk(helper)
            if isinstance(call, ast.Call)
        )

    def _row(self, test: str, call: ast.Call) -> Iterator[ReadingProgram]:
        words = [word for argument in call.args for word in self._words(argument)]
        folders = [word for keyword in call.keywords if keyword.arg == "cwd" for word in self._words(keyword.value)]
        if not words:
            return
        program = words[0].split()[0] if words[0].split() else words[0]
        rest = [*words[0].split()[1:], *words[1:], *folders]
        places = {path for word in rest for path in _PATH.findall(word) if _is_agents(path, self._home)}
        agents = _is_agents(program, self._home)
        if places or agents:
            yield ReadingProgram(test, program, tuple(sorted(places)), agents)

    def _words(self, node: ast.expr, depth: int = 0) -> Iterator[str]:
        """Yield the texts of an argument: of a list each of its own, of a sum and a formatted text the whole."""
        if isinstance(node, (ast.List, ast.Tuple)):
            for item in node.elts:
                yield from self._words(item, depth)
        elif isinstance(node, ast.Starred):
            yield from self._words(node.value, depth)
        elif depth < _DEEPEST and (text := self._text(node, depth)):
            yield text

    def _text(self, node: ast.expr, depth: int) -> str:
        """Return what is known of a text; what is not known is left out."""
        if isinstance(node, ast.Constant):
            return str(node.value) if isinstance(node.value, (str, bytes)) else ""
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part, depth + 1) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            return self._text(node.value, depth + 1)
        if isinstance(node, ast.BinOp):
            separator = "/" if isinstance(node.op, ast.Div) else ""
            return separator.join((self._text(node.left, depth + 1), self._text(node.right, depth + 1)))
        if isinstance(node, ast.Name) and node.id in self._texts and depth < _DEEPEST:
            return self._text(self._texts[node.id], depth + 1)
        if isinstance(node, ast.Call) and node.args:  # str(path), Path("…"), shlex.quote(…), os.path.join(…)
            return "/".join(filter(None, (self._text(argument, depth + 1) for argument in node.args)))
        return ""

    def _dotted(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return f"{above}.{node.attr}" if above else ""
        return ""


def _aliases(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
