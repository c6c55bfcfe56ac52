"""Detection of tests that do not need pytest, whose import takes five times as long as most tests do.

A task's tests are nearly always functions without arguments and decorators that assert something, and pytest then does
nothing but call one after the other. ``plain_tests`` finds out whether a module is of that kind from its text alone,
and ``trusted_running`` calls the functions of such a module itself. Everything else is pytest's.

Invariant: whatever pytest might treat in a way of its own (fixtures, marks, classes, set-up functions, generators,
skipping, names bound in ways that cannot be read off the text) makes a module not plain. The same tests with the same
state get the same verdict either way (``tests/environments/terminal/test_plain_tests.py``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from .parsing import parse

__all__ = ["plain_tests"]

#: What pytest looks for by name in a module or collects from it.
_COLLECTED = ("test", "Test")
_OF_PYTEST = ("pytest", "setup", "teardown", "setUp", "tearDown", "collect_ignore", "load_tests", "__test__")
#: Packages whose import means more than a name, and names by which a module can change itself.
_FRAMEWORKS = ("pytest", "_pytest", "unittest", "doctest", "nose", "hypothesis")
_REFLECTION = frozenset(("globals", "locals", "vars", "setattr", "exec", "eval", "__import__"))
_LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Dict, ast.Tuple, ast.Set)


@lru_cache(maxsize=1024)
def plain_tests(text: str) -> str | None:
    """Return the text of a module of plain tests, with its line numbers unchanged; None for a module that needs pytest.

    An unused ``import pytest``, which language models often write, is removed from the text.
    """
    try:
        module = parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    unused = [statement for statement in module.body if _imports_pytest_alone(statement)]
    body = [statement for statement in module.body if statement not in unused and not _is_main_guard(statement)]
    if not all(_is_plain(statement) for statement in body):
        return None
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and (node.id in _REFLECTION or node.id.startswith("pytest")):
            return None
        if isinstance(node, ast.Global) and any(name.startswith((*_COLLECTED, *_OF_PYTEST)) for name in node.names):
            return None
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any(name in _FRAMEWORKS for name in _packages(node)):
            return None
    lines = text.split("\n")
    for statement in unused:
        if lines[statement.lineno - 1].strip() != "import pytest":
            return None
        lines[statement.lineno - 1] = ""
    return "\n".join(lines)


def _imports_pytest_alone(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import) and [(a.name, a.asname) for a in statement.names] == [("pytest", None)]


def _is_main_guard(statement: ast.stmt) -> bool:
    """Return whether a statement is ``if __name__ == "__main__":``, which is never true for tests."""
    if not isinstance(statement, ast.If) or statement.orelse:
        return False
    return ast.unparse(statement.test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _is_plain(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef):
        if not statement.name.startswith(_COLLECTED):
            return not statement.decorator_list and not statement.name.startswith(_OF_PYTEST)
        return not (
            statement.decorator_list
            or ast.unparse(statement.args)
            or any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement))
        )
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return all(
            alias.name != "*" and _is_free(alias.asname or alias.name.partition(".")[0]) for alias in statement.names
        )
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        literal = isinstance(statement.value, _LITERALS)
        return all(_is_assigned_plainly(target, literal=literal) for target in targets) and not _binds(statement.value)
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)  # the module's docstring


def _is_assigned_plainly(target: ast.expr, *, literal: bool) -> bool:
    if isinstance(target, ast.Name):
        # A list of cases may be called `tests`; what is not a literal may be a function.
        return _is_free(target.id) or (literal and target.id.startswith("test"))
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(isinstance(item, ast.Name) and _is_free(item.id) for item in target.elts)
    return False


def _binds(value: ast.expr | None) -> bool:
    """Return whether an expression also binds a name of the module."""
    return value is not None and any(isinstance(node, ast.NamedExpr) for node in ast.walk(value))


def _is_free(name: str) -> bool:
    return not name.startswith((*_COLLECTED, *_OF_PYTEST))


def _packages(statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(statement, ast.ImportFrom):
        yield (statement.module or "").partition(".")[0]
    else:
        for alias in statement.names:
            yield alias.name.partition(".")[0]
