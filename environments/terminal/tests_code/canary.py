"""A test that must fail, among tests in whose process the agent's code may run.

Code that forges results forges this one as well, unless it can tell the tests apart. So the name is drawn for each
examination, and so is the place among the tests. Code that reads the tests' text finds this test all the same, so a
verdict of such tests is marked (``grading.CODE_RAN``).
"""

from __future__ import annotations

import ast
import secrets

from .parsing import parse

__all__ = ["name_of_canary", "with_canary"]


def name_of_canary() -> str:
    """Draw the name of a test."""
    return f"test_{secrets.token_hex(5)}"


def with_canary(text: str, name: str) -> str:
    """Return the text of a module of tests with another test that fails, before or after one of its functions.

    A text that cannot be parsed is returned unchanged: it is reported as such.
    """
    try:
        module = parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text
    lines = text.split("\n")
    places = [len(lines)]
    for statement in module.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
            places.append(first - 1)
    place = secrets.choice(places)
    one, other = secrets.token_hex(4), secrets.token_hex(4)
    added = ["", f"def {name}():", f"    assert {one + '-'!r} == {other!r}", ""]
    return "\n".join([*lines[:place], *added, *lines[place:]])
