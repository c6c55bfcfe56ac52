"""Text of the tests that compare a folder with the state that the solution leaves, for an examination.

The modules beside this one are put together into one module that needs the standard library alone, without docstrings
and annotations, so that the grader compiles little. Its line ``REFERENCE = None`` stands for the solution's state,
which is made once a task in a sandbox (``reference_states``), and its line ``SEED = 0`` for the seed of the drawn
cases.

Invariant: the text is the same for the same ``State`` in every process and Python.
"""

from __future__ import annotations

import ast
import json
import pprint
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..tests_code.parsing import parse

__all__ = ["DEFINED", "State", "printing_state", "read_state", "state_tests", "with_reference", "with_seed"]

_REFERENCE = "REFERENCE = None\n"
_SEED = "SEED = 0\n"
#: The module of each comparer, and modules that it needs.
_MODULES = {
    "any": ("documents",),
    "csv": ("documents",),
    "git": ("repositories",),
    "gzip": ("archives",),
    "json": ("documents",),
    "sqlite": ("databases",),
    "tar": ("archives",),
    "xml": ("documents",),
    "zip": ("archives",),
}
_AFTER = """

def test_the_folder_is_still_so_after_these_tests():
    test_the_folder_is_as_the_solution_leaves_it()
"""
#: Functions that every such module defines, for the tests that follow.
DEFINED = frozenset(("content", "digest"))


@dataclass(frozen=True)
class State:
    """Rules of the comparison of one folder; paths are relative to it, and may be patterns."""

    #: The folder, an absolute path.
    root: str
    #: Paths outside of the folder, relative to it.
    also: Sequence[str] = ()
    #: Comparers by path: the comparer's name without ``form_`` and its arguments.
    forms: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    #: ``exact``, ``executable`` or ``free`` by path (``tree.made_by``).
    modes: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Paths that may be there or not, with any content.
    free: Sequence[str] = ()


def state_tests(state: State, tests: str) -> str:
    """Return the module of a task's final tests: the comparison, and ``tests``, which may be empty.

    After ``tests`` the comparison is made once more: a program or service that they use may have changed the folder.
    """
    comparers = sorted({form[0] for form in state.forms.values()})
    modules = ["tree", *dict.fromkeys(module for name in comparers for module in _MODULES[name])]
    imports, code = zip(*map(_parts, modules), strict=True)
    forms = {path: tuple(form) for path, form in state.forms.items()}
    found = ", ".join(f"{name!r}: form_{name}" for name in comparers)
    return (
        f"from __future__ import annotations\n\n{_merged(imports)}\n{_SEED}{_REFERENCE}"
        f"ROOT = {state.root!r}\nALSO = {tuple(state.also)!r}\n"
        f"FORMS = {pprint.pformat(forms, sort_dicts=False)}\nFREE = {tuple(state.free)!r}\n\n\n"
        + "\n\n\n".join(code)
        + "\n\n\ndef state():\n"
        f"    return look(ROOT, ALSO, FORMS, FREE, {{{found}}})\n\n\n"
        "def test_the_folder_is_as_the_solution_leaves_it():\n"
        "    assert REFERENCE is not None\n"
        "    wrong = differences(REFERENCE, state())\n"
        "    assert not wrong, wrong[:20]\n" + (f"\n\n{tests}{_AFTER}" if tests else "")
    )


def with_reference(text: str, reference: Mapping[str, Sequence[str | None]]) -> str:
    """Return the tests with the solution's state. Text without a place for it is unchanged."""
    entries = "".join(f"    {path!r}: {list(entry)!r},\n" for path, entry in sorted(reference.items()))
    return text.replace(f"\n{_REFERENCE}", f"\nREFERENCE = {{\n{entries}}}\n", 1)


def with_seed(text: str, seed: int) -> str:
    """Return the tests with the seed of their drawn cases. Text without a place for it is unchanged."""
    return text.replace(f"\n{_SEED}", f"\nSEED = {seed}\n", 1)


def printing_state(text: str) -> str:
    """Return a program that prints the state as JSON, from the text of ``state_tests``."""
    return f"{text}\n\nprint(json.dumps(state()))\n"


def read_state(printed: str) -> dict[str, list[str]]:
    """Return the state that a program of ``printing_state`` printed."""
    return json.loads(printed)


class _Bare(ast.NodeTransformer):
    """Removal of annotations and docstrings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
            if argument is not None:
                argument.annotation = None
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def bare(source: str) -> str:
    """Return source without comments, docstrings and annotations."""
    return ast.unparse(ast.fix_missing_locations(_Bare().visit(parse(source))))


@cache
def _parts(name: str) -> tuple[tuple[str, ...], str]:
    """Return the modules that one of the modules beside this one imports, and its functions and constants."""
    module = parse(bare(Path(__file__).with_name(f"{name}.py").read_text("utf-8")))
    imports: list[str] = []
    body: list[ast.stmt] = []
    for statement in module.body:
        if isinstance(statement, ast.Import):
            imports += [alias.name for alias in statement.names]
        elif isinstance(statement, (ast.FunctionDef, ast.Assign)) and "__all__" not in ast.unparse(statement):
            body.append(statement)
    return tuple(imports), "\n\n\n".join(map(ast.unparse, body))


def _merged(imports: Sequence[Sequence[str]]) -> str:
    return "".join(f"import {name}\n" for name in sorted({name for names in imports for name in names}))
