"""Writer of the pytest modules that grade a task.

Invariant: a module needs only the standard library and the paths it names, and does not import the task's code. It
checks the final state rather than the way to it, in small tests whose names say what failed.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..states.program import DEFINED
from .check_helpers import HELPERS, MODULES, NEEDS

__all__ = ["DRAWN", "Case", "Checks", "digest"]

#: Arguments and standard input of a program.
Case = tuple[list[str], str]
#: Cases that are drawn for each examination of a program.
DRAWN = 20


def digest(data: bytes) -> str:
    """Return the digest that a test holds instead of a file's content."""
    return hashlib.sha256(data).hexdigest()


class Checks:
    """The tests of one module."""

    def __init__(self) -> None:
        self._tests: dict[str, str] = {}

    def test(self, name: str, body: str) -> None:
        """Add a test. ``body`` is its code, which may call ``content``, ``rows`` and the other helpers."""
        name = f"test_{words(name)}"
        number = 2
        unique = name
        while unique in self._tests:
            unique = f"{name}_{number}"
            number += 1
        self._tests[unique] = textwrap.dedent(body).strip("\n")

    def directory(self, path: str) -> None:
        """Check that ``path`` is a directory."""
        self.test(f"{_base(path)} is a directory", f"assert stat.S_ISDIR(os.lstat({path!r}).st_mode)")

    def contents(self, name: str, expected: Mapping[str, bytes]) -> None:
        """Check that these paths are files with these bytes."""
        digests = {path: digest(data) for path, data in expected.items()}
        self.test(
            name,
            f"expected = {_literal(digests)}\n"
            "for path, value in expected.items():\n"
            "    assert digest(content(path)) == value, path",
        )

    def link(self, path: str, target: str) -> None:
        """Check that ``path`` is a symbolic link with the target ``target``."""
        self.test(f"{_base(path)} is a link", f"assert os.path.islink({path!r})")
        self.test(f"{_base(path)} leads to the right place", f"assert os.readlink({path!r}) == {target!r}")

    def judged(self, name: str, body: str, *functions: Callable[..., object], **values: object) -> None:
        """Add a test that has ``values`` as variables and may call ``functions``, which are written into it.

        A function may use the modules of the helpers, builtins and the other functions. It runs in the grader, which no
        program of the agent can read. What it draws comes from ``random.Random(SEED)``, by methods that give the same
        numbers in every Python.
        """
        sources = "\n\n".join(textwrap.dedent(inspect.getsource(one)).rstrip() for one in functions)
        given = "".join(f"{key} = {value!r}\n" for key, value in values.items())
        self.test(name, f"{sources}\n\n{given}{textwrap.dedent(body)}")

    def drawn(
        self,
        command: str,
        draw: Callable[..., Case],
        answer: Callable[..., str],
        *uses: Callable[..., object],
        material: Sequence[object] = (),
        always: Sequence[Case] = (),
        **values: object,
    ) -> None:
        """Check that a program prints what ``answer`` returns, for 20 drawn cases and those in ``always``.

        ``draw(numbers, turn, *material)`` returns the arguments and the standard input of case number ``turn``, and
        ``answer(arguments, given, **values)`` the right output. Both run in the grader, with the functions in ``uses``.
        The turns reach the ends of what the prompt promises about the input, whatever the numbers are.
        """
        self.judged(
            "drawn cases",
            f"""
            numbers = random.Random(SEED)
            for arguments, given in [*always, *({draw.__name__}(numbers, turn, *material) for turn in range({DRAWN}))]:
                status, printed = run(command, *arguments, given=given.encode())
                assert status == 0, f"exit status {{status}}, {{arguments}} {{given!r}}"
                expected = {answer.__name__}(arguments, given, **values).encode()
                assert printed == expected, f"{{arguments}} {{given!r}}: {{printed[:200]!r}}"
            """,
            draw,
            answer,
            *uses,
            command=command,
            always=[*always],
            material=[*material],
            values=values,
        )

    def body(self) -> str:
        """Return the tests and their helpers, as they follow the comparison of a folder; empty without tests."""
        return self._code(DEFINED) if self._tests else ""

    def source(self, title: str) -> str:
        """Return the source of a module of these tests alone."""
        return f'"""{title}"""\n\n{self._code(())}'

    def _code(self, defined: Collection[str]) -> str:
        tests = "\n\n\n".join(f"def {name}():\n{textwrap.indent(body, '    ')}" for name, body in self._tests.items())
        called = set(re.findall(r"\b(\w+)\(", tests))
        wanted = [name for name in HELPERS if name in called]
        wanted += [need for name in wanted for need in NEEDS.get(name, ()) if need not in wanted]
        helpers = [
            textwrap.dedent(code).strip("\n")
            for name, code in HELPERS.items()
            if name in wanted and name not in defined
        ]
        code = "\n\n\n".join([*helpers, tests])
        imports = "\n".join(
            f"import {name}" for name in MODULES if f"{name}." in code and re.search(rf"\b{name}\.", code)
        )
        return f"{imports}\n\n\n{code}\n" if imports else f"\n{code}\n"


def words(text: str) -> str:
    """Return a check's name as it appears in the name of its test."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _literal(value: str | list[Any] | dict[str, str]) -> str:
    """Return a value as source, with one line of source for each line of the value."""
    if isinstance(value, str):
        lines = value.splitlines(keepends=True) if "\n" in value else [value]
        if len(lines) <= 1:
            return repr(value)
        return "(\n" + "".join(f"    {line!r}\n" for line in lines) + ")"
    if isinstance(value, dict):
        return "{\n" + "".join(f"    {key!r}: {item!r},\n" for key, item in value.items()) + "}"
    return "[\n" + "".join(f"    {item!r},\n" for item in value) + "]" if value else "[]"
