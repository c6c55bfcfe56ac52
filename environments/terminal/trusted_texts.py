"""Which text may become code in the grader, though it comes from no file of the toolset's.

Libraries execute text for many reasons: hints and conditions are evaluated, methods are generated. What they are given
is the agent's as soon as a test has read it from a file. So text runs for two reasons only: it is word for word a
constant of the tests' own, or a library has made it by itself, from nothing but identifiers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, cast

__all__ = ["Texts"]

#: Functions of the standard library that look at the names they make code of.
_CAREFUL = frozenset(
    (
        ("collections", "namedtuple"),
        ("gettext", "c2py"),
        ("inspect", "wrap_value"),
        ("unittest.mock", "_set_signature"),
    )
)
#: Functions that do not, and the variable that has the name.
_CARELESS = {
    ("multiprocessing.managers", "MakeProxyType"): "meth",
    ("multiprocessing.sharedctypes", "make_property"): "name",
}
#: Modules that look for text by themselves, in files that need not be there.
_LOOKING = frozenset(("pdb", "site"))
#: Flags of code but those of `from __future__ import ...`, which are the evaluating module's.
_FLAGS = 0x1FFFF


class Texts:
    """What may run of the texts that a run of the tests gives to libraries."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._own: set[CodeType] | None = None

    def objection(self, code: CodeType, frame: FrameType) -> tuple[str, bool]:
        """What speaks against code that a frame of a trusted module executes, and whether an agent has caused it that
        an honest one would not have. Nothing: an empty text."""
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
        """Whether code is an expression that the tests have as a constant; annotations may be constants too."""
        if self._own is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # constants are not written to be compiled
                self._own = set(_expressions(self._text))
        return _plain(code) in self._own


def _expressions(text: str) -> Iterator[CodeType]:
    """The code of every constant that is an expression, of the constants of these, and so on."""
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
    """The names that a library is about to make code of; None where this is no such library."""
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
    """Whether a frame is that of a ``timeit.Timer`` which was given functions, and no text but its own."""
    given = frame.f_locals.get("local_ns", ())
    return "_stmt" in given and ("_setup" in given or frame.f_locals.get("setup") == "pass")
