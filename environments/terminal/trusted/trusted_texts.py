"""Texts that may become code in the grader although they come from no file of the toolset.

Libraries execute text for many reasons: they evaluate hints and conditions, and generate methods. As soon as a test
passes them text that it has read from a file, that text is the agent's. So text is executed in two cases only: it
equals a constant of the tests, or a library has made it from nothing but identifiers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, cast

__all__ = ["Texts"]

#: Functions of the standard library that check the names from which they make code.
_CAREFUL = frozenset(
    (
        ("collections", "namedtuple"),
        ("gettext", "c2py"),
        ("inspect", "wrap_value"),
        ("unittest.mock", "_set_signature"),
    )
)
#: Functions that do not check them, and the local variable that holds the name.
_CARELESS = {
    ("multiprocessing.managers", "MakeProxyType"): "meth",
    ("multiprocessing.sharedctypes", "make_property"): "name",
}
#: Modules that look for text in files that need not exist.
_LOOKING = frozenset(("pdb", "site"))
#: Flags of code except those of `from __future__ import ...`, which come from the evaluating module.
_FLAGS = 0x1FFFF


class Texts:
    """Decision on the texts that libraries execute in a run of the tests."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._own: set[CodeType] | None = None

    def objection(self, code: CodeType, frame: FrameType) -> tuple[str, bool]:
        """Return the objection to code that a trusted module's frame executes, and whether the agent planted it."""
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if (module, function) in _CAREFUL or (module == "timeit" and _times_functions(frame)):
            return "", False
        names = _names(module, function, frame)
        if names is not None:
            odd = next((name for name in names if not (isinstance(name, str) and str.isidentifier(name))), None)
            return ("", False) if odd is None else (f"a name given to {module}, {odd!r:.200},", True)
        if self._is_own(code):
            return "", False
        return f"text given to {module}", module in _LOOKING

    def _is_own(self, code: CodeType) -> bool:
        """Return whether code is an expression among the tests' constants; annotations may be constants, too."""
        if self._own is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # constants are not meant to be compiled
                self._own = set(_expressions(self._text))
        return _plain(code) in self._own


def _expressions(text: str) -> Iterator[CodeType]:
    """Yield the code of every constant that is an expression, then of the constants in that code, and so on."""
    seen = set[str]()
    waiting = list(_constants(compile(text, "<tests>", "exec", dont_inherit=True)))
    while waiting:
        constant = waiting.pop()
        if constant in seen:
            continue
        seen.add(constant)
        try:
            code = compile(constant, "<constant>", "eval", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        yield _plain(code)
        waiting.extend(_constants(code))


def _constants(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (CodeType, tuple, frozenset)):
        for constant in value.co_consts if isinstance(value, CodeType) else cast("tuple[object, ...]", value):
            yield from _constants(constant)


def _plain(code: CodeType) -> CodeType:
    return code.replace(co_filename="", co_flags=code.co_flags & _FLAGS)


def _names(module: str, function: str, frame: FrameType) -> list[Any] | None:
    """Return the names from which a library is about to make code; None for other functions."""
    if (module, function) in _CARELESS:
        return [frame.f_locals.get(_CARELESS[module, function])]
    if module != "dataclasses":
        return None
    above: FrameType | None = frame
    while above is not None and above.f_globals is frame.f_globals:
        if above.f_code.co_name == "_process_class":
            return list(above.f_locals["fields"])
        above = above.f_back
    return None


def _times_functions(frame: FrameType) -> bool:
    """Return whether a frame is that of a ``timeit.Timer`` that times functions, with no text except its default."""
    given = frame.f_locals.get("local_ns", ())
    return "_stmt" in given and ("_setup" in given or frame.f_locals.get("setup") == "pass")
