"""Detection, from the text of tests alone, of code that they would run in their own process and that is not theirs.

Such code is the agent's, or of a package that the grader lacks: the tests see the standard library and pytest only. The
text does not tell everything (a path that is computed, a template that is evaluated), so the grader watches as well
(``trusted_guard``). This search finds at once what a folder of tasks does as a rule, with its line.

Invariant: what this module reports would be refused, or be missing, in every examination that reaches it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

__all__ = ["imported_code"]

_KNOWN = sys.stdlib_module_names | {"_pytest", "iniconfig", "packaging", "pluggy", "pytest"}
#: Functions that run code of a file or a text, whatever they are given.
_RUNNERS = frozenset(
    (
        "code.InteractiveConsole",
        "code.InteractiveInterpreter",
        "code.interact",
        "distutils.core.run_setup",
        "doctest.testfile",
        "imp.load_compiled",
        "imp.load_dynamic",
        "imp.load_source",
        "importlib.machinery.ExtensionFileLoader",
        "importlib.machinery.SourceFileLoader",
        "importlib.machinery.SourcelessFileLoader",
        "importlib.util.spec_from_file_location",
        "logging.config.fileConfig",
        "marshal.load",
        "marshal.loads",
        "cProfile.run",
        "pdb.run",
        "profile.run",
        "pydoc.importfile",
        "pytest.main",
        "runpy.run_module",
        "runpy.run_path",
        "trace.Trace",
        "unittest.TestLoader",
        "unittest.defaultTestLoader",
        "zipimport.zipimporter",
    )
)
_EVALUATORS = frozenset(("eval", "exec"))
#: Functions that import a module by its name.
_IMPORTERS = frozenset(("__import__", "importlib.__import__", "importlib.import_module"))
_LIBRARIES = frozenset(("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary"))
#: Exceptions by which a module that need not be there is forgiven.
_FORGIVING = frozenset(("BaseException", "Exception", "ImportError", "ModuleNotFoundError"))
#: Attributes and arguments by which tests find modules elsewhere.
_PATHS = frozenset(("addsitedir", "chdir", "path", "path_hooks", "meta_path", "syspath_prepend"))


def imported_code(module: ast.Module) -> list[tuple[int, str]]:
    """Return the line of each such piece of code, and what it is, in the order of the lines."""
    return sorted(set(_Search(module).found()))


class _Search:
    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._names = dict(_aliases(module))
        self._own = set(_own_modules(module)) | {
            node.name for node in ast.walk(module) if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        looks_elsewhere = any(isinstance(node, ast.Attribute) and self._is_path(node) for node in ast.walk(module))
        #: Imports that may fail: the module is certainly missing, so no code is run.
        self._forgiven = set[ast.stmt]() if looks_elsewhere else set(_forgiven(module))

    def found(self) -> Iterator[tuple[int, str]]:
        called = {id(node.func): node for node in ast.walk(self._module) if isinstance(node, ast.Call)}
        for node in ast.walk(self._module):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if node not in self._forgiven:
                    yield from ((node.lineno, words) for words in self._of_import(node))
            elif isinstance(node, (ast.Name, ast.Attribute)) and (
                words := self._of_reference(self._dotted(node), called.get(id(node)))
            ):
                yield node.lineno, words

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield "the tests import relatively, and they are in no package"
            return
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            if not self._is_known(name):
                yield f"the tests import {name}, which is neither of the standard library nor pytest"

    def _of_reference(self, name: str, call: ast.Call | None) -> str:
        first = call.args[0] if call is not None and call.args else None
        given = first.value if isinstance(first, ast.Constant) else None
        if name in _EVALUATORS and name not in self._own:
            return f"the tests use {name}"
        if name in _RUNNERS:
            return f"the tests use {name}, which runs code of files"
        if name in _IMPORTERS and not (isinstance(given, str) and self._is_known(given)):
            return f"the tests import {given if isinstance(given, str) else 'a module'} by {name}"
        if name in _LIBRARIES and isinstance(given, str) and "/" in given:
            return f"the tests load the library {given}"
        return ""

    def _is_known(self, module: str) -> bool:
        return module.partition(".")[0] in _KNOWN or module in self._own

    def _is_path(self, node: ast.Attribute) -> bool:
        name = self._dotted(node)
        return node.attr in _PATHS and (not name.startswith("os.path") and name != "os.path")

    def _dotted(self, node: ast.expr) -> str:
        """Return the full name that an expression stands for; empty where it is not a name of a module."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            above = self._dotted(node.value)
            return above and f"{above}.{node.attr}"
        return ""


def _aliases(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, and what they stand for."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield alias.asname or top, alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _own_modules(module: ast.Module) -> Iterator[str]:
    """Yield the names of modules that the tests make: ``sys.modules[NAME] = …``."""
    for node in ast.walk(module):
        match node:
            case ast.Subscript(
                value=ast.Attribute(attr="modules"), slice=ast.Constant(value=str(name)), ctx=ast.Store()
            ):
                yield name
            case _:
                pass


def _forgiven(module: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of blocks whose failure to import is handled."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Try):
            continue
        handled = {
            part.id
            for handler in node.handlers
            for part in ast.walk(handler.type or ast.Name("Exception", ast.Load()))
            if isinstance(part, ast.Name)
        }
        if handled & _FORGIVING:
            inner = (part for statement in node.body for part in ast.walk(statement))
            yield from (part for part in inner if isinstance(part, ast.stmt))
