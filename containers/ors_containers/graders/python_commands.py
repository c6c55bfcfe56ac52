"""Code that a Python of a test executes and imports, as its arguments tell.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset
(``import python_commands``).
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Sequence

__all__ = ["ignores_folder", "python_reads", "pythons_ignore_folder"]


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PYTHON = re.compile(r"python[0-9.]*")
#: Modules of the standard library that run no code of the files that they read.
_READING = _named("""
    __future__ abc argparse array ast base64 binascii bisect builtins bz2 calendar cmath codecs collections
    colorsys configparser contextlib copy csv dataclasses datetime decimal difflib email enum errno fcntl filecmp
    fileinput fnmatch fractions functools getpass glob grp gzip hashlib heapq hmac html http io ipaddress
    itertools json keyword locale lzma math mimetypes numbers operator os pathlib platform plistlib pprint pwd
    queue quopri random re resource secrets select shlex shutil signal socket sqlite3 stat statistics string
    struct sys tarfile tempfile textwrap threading time token tokenize tomllib traceback types typing unicodedata
    urllib uuid warnings wave weakref xml zipfile zlib zoneinfo
    """)
#: Modules of which only the module itself runs no such code, not those below it.
_READING_ALONE = frozenset(("logging",))
#: Modules of the standard library that run code which a file or an argument names.
_RUNNING = _named("""
    code codeop ctypes dbm doctest idlelib imp importlib marshal multiprocessing os.path pdb pickle pkgutil profile
    cProfile pty runpy shelve site subprocess test timeit trace unittest venv zipimport
    """)
_MODULES = _named("""
    ast base64 calendar gzip json.tool mimetypes py_compile quopri tabnanny tokenize uuid
    """)
_RUNNING_NAMES = frozenset(("__import__", "compile", "eval", "exec", "execfile", "import_module"))


def _python_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return what a Python is given: ``-c`` or ``-m`` and what follows, or nothing and the script."""
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word in ("-W", "-X"):
            position += 2
        elif (found := re.fullmatch(r"-[bBdEiIOPqRsSuvx]*([cm])(.*)", word, re.DOTALL)) is not None:
            rest = [found[2]] if found[2] else []
            return f"-{found[1]}", [*rest, *arguments[position + 1 :]]
        elif word.startswith("-") and word != "-":
            position += 1
        else:
            break
    return "", list(arguments[position:])


def python_reads(arguments: Sequence[str]) -> bool:
    """Return whether a Python with these arguments executes its own library, or a text that only reads."""
    how, rest = _python_arguments(arguments)
    if how == "-m" and rest:
        return rest[0] in _MODULES
    if not how and not rest:
        return all(word in ("--version", "-V", "-VV") for word in arguments) and bool(arguments)
    return how == "-c" and bool(rest) and _imports_standard_only(rest[0], running=False)


def ignores_folder(arguments: Sequence[str]) -> bool:
    """Return whether a Python with these arguments imports nothing from the folder that it is started in."""
    how, rest = _python_arguments(arguments)
    if not rest:
        return False
    if how == "-m":
        name = rest[0].partition(".")[0]
        return name in sys.stdlib_module_names and name not in _RUNNING
    return how == "-c" and _imports_standard_only(rest[0], running=True)


def pythons_ignore_folder(words: Sequence[str], text: str | None) -> bool:
    """Return whether a command line starts Pythons, and each of them ignores the folder that it is started in.

    ``text``: that of a shell's command, if the command line is one.
    """
    tokens = list(words)
    if text is not None:
        lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            tokens = list(lexer)
        except ValueError:
            return False
    places = [number for number, word in enumerate(tokens) if _PYTHON.fullmatch(word.rpartition("/")[2])]
    operators = set("<>&|;()")
    ends = [next((n for n in range(p, len(tokens)) if set(tokens[n]) <= operators), len(tokens)) for p in places]
    return bool(places) and all(ignores_folder(tokens[p + 1 : end]) for p, end in zip(places, ends, strict=True))


def _imports_standard_only(text: str, *, running: bool) -> bool:
    """Return whether a text imports modules of the standard library alone; ``running``: also those that run code.

    ``from logging import config`` imports a module below another, so names that are imported count as modules there.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if names[0] in _READING_ALONE:
                names = [
                    f"{names[0]}.{alias.name}" if alias.name in ("config", "*") else names[0] for alias in node.names
                ]
        elif (isinstance(node, ast.Name) and node.id in _RUNNING_NAMES and not running) or (
            isinstance(node, ast.Name) and node.id in ("__import__", "import_module")
        ):
            return False
        elif isinstance(node, ast.Attribute) and node.attr in ("path", "import_module", "run_path", "run_module"):
            if node.attr != "path" or (isinstance(node.value, ast.Name) and node.value.id == "sys"):
                return False
            continue
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names:
                return False
            if not running and top not in _READING and name not in _READING_ALONE:
                return False
            if top in ("runpy", "importlib", "pkgutil", "unittest", "doctest"):
                return False
    return True
