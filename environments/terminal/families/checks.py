"""Writer of the pytest modules that grade a task.

Invariant: a module needs only the standard library and the paths it names, and does not import the task's code. It
checks the final state rather than the way to it, in small tests whose names say what failed.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .check_helpers import HELPERS, MODULES, NEEDS
from .requirements import words

if TYPE_CHECKING:
    from .task import GeneratedFile

__all__ = ["Checks", "digest"]


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

    def absent(self, path: str) -> None:
        """Check that nothing exists at ``path``."""
        self.test(f"{_base(path)} is not there", f"assert missing({path!r})")

    def directory(self, path: str) -> None:
        """Check that ``path`` is a directory."""
        self.test(f"{_base(path)} is a directory", f"assert stat.S_ISDIR(os.lstat({path!r}).st_mode)")

    def text(self, path: str, expected: str) -> None:
        """Check that ``path`` is a file of exactly this text, in UTF-8."""
        name = _base(path)
        if not expected.endswith("\n"):
            self.test(f"{name} has the right text", f"assert {_decoded(path)} == {_literal(expected)}")
            return
        lines = f"expected = {_literal(expected.split(chr(10))[:-1])}\n"
        self.test(f"{name} has the right lines", f"{lines}assert sorted(lines({path!r})) == sorted(expected)")
        if expected.count("\n") > 1:
            self.test(f"lines of {name} are in order", f"{lines}assert ordered(lines({path!r}), expected)")
        self.test(f"{name} ends with a newline", f'assert content({path!r})[-1:] == b"\\n"')

    def contents(self, name: str, expected: Mapping[str, bytes]) -> None:
        """Check that these paths are files with these bytes."""
        digests = {path: digest(data) for path, data in expected.items()}
        self.test(
            name,
            f"expected = {_literal(digests)}\n"
            "for path, value in expected.items():\n"
            "    assert digest(content(path)) == value, path",
        )

    def kept(self, expected: Mapping[str, GeneratedFile], *, modes: bool) -> None:
        """Check that these files are unchanged: content and, with ``modes``, permissions."""
        if not modes:
            self.contents("existing files are unchanged", {path: file.content for path, file in expected.items()})
            return
        states = {path: f"{file.mode:04o} {digest(file.content)}" for path, file in expected.items()}
        self.test(
            "existing files are unchanged",
            f"expected = {_literal(states)}\n"
            "for path, value in expected.items():\n"
            "    state = f'{stat.S_IMODE(os.lstat(path).st_mode):04o} {digest(content(path))}'\n"
            "    assert state == value, path",
        )

    def unchanged(
        self, root: str, expected: Mapping[str, GeneratedFile], *, made: Sequence[str], allowed: Sequence[str]
    ) -> None:
        """Check that a directory is unchanged, except ``made`` and everything below it, and names like ``allowed``."""
        states = {path: _state(file) for path, file in expected.items() if not _below(path, made)}
        free = [pattern for path in made for pattern in (path, f"{path}/*")]
        self.test(
            f"nothing else in {_base(root)} has changed",
            f"expected = {_literal(states)}\n"
            f"free, allowed = {free!r}, {list(allowed)!r}\n"
            "found = {}\n"
            f"for path, what in tree({root!r}).items():\n"
            "    names = any(fnmatch.fnmatchcase(name, one) for name in path.split('/') for one in allowed)\n"
            "    if not names and not any(fnmatch.fnmatchcase(path, one) for one in free):\n"
            "        found[path] = what\n"
            "changed = {path for path in {**expected, **found} if expected.get(path) != found.get(path)}\n"
            "assert not changed, sorted(changed)",
        )

    def files(self, folder: str, expected: Mapping[str, bytes], what: str = "", *, empty: Sequence[str] = ()) -> None:
        """Check that ``folder`` contains exactly these files and their directories; those in ``empty`` are optional."""
        name = what or _base(folder)
        paths = sorted(expected)
        above = {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/") + 1)}
        self.test(
            f"{name} holds nothing else",
            f"expected = {_literal(sorted({'.', *paths, *above, *empty}))}\n"
            f"assert sorted(set(tree({folder!r})) - set(expected)) == []",
        )
        digests = {path: digest(expected[path]) for path in paths}
        self.test(
            f"files of {name} have the right content",
            f"expected = {_literal(digests)}\n"
            f"for path, value in expected.items():\n"
            f"    assert digest(content(os.path.join({folder!r}, path))) == value, path",
        )

    def json(self, path: str, expected: Any) -> None:
        """Check that ``path`` is a JSON file of this value; layout and order of keys are free."""
        name = _base(path)
        self.test(
            f"{name} has the right value",
            f"expected = json.loads({_literal(json.dumps(expected, indent=1, ensure_ascii=False))})\n"
            f"assert same(json.loads({_decoded(path)}), expected)",
        )

    def rows(self, path: str, expected: Sequence[Sequence[str]]) -> None:
        """Check that ``path`` is a CSV file of these records, header included; quoting and line ends are free."""
        name = _base(path)
        self.test(f"{name} has the right header", f"assert rows({path!r})[0] == {tuple(expected[0])!r}")
        records = f"expected = {_literal([tuple(row) for row in expected[1:]])}\n"
        self.test(f"{name} has the right records", f"{records}assert sorted(rows({path!r})[1:]) == sorted(expected)")
        if len(expected) > 2:
            self.test(f"records of {name} are in order", f"{records}assert ordered(rows({path!r})[1:], expected)")

    def modes(self, expected: Mapping[str, int]) -> None:
        """Check the permission bits of files and directories."""
        for path, mode in expected.items():
            self.test(
                f"mode of {_base(path)} is {mode:04o}",
                f"mode = stat.S_IMODE(os.lstat({path!r}).st_mode)\nassert mode == {mode:#06o}, oct(mode)",
            )

    def link(self, path: str, target: str) -> None:
        """Check that ``path`` is a symbolic link with the target ``target``."""
        self.test(f"{_base(path)} is a link", f"assert os.path.islink({path!r})")
        self.test(f"{_base(path)} leads to the right place", f"assert os.readlink({path!r}) == {target!r}")

    def cases(self, command: Sequence[str], cases: Iterable[tuple[Sequence[str], str, str]]) -> None:
        """Check that a program prints the right text for arguments and standard input that the agent has not seen.

        The tests hold digests of the right text only: a program that reads its own grader learns nothing.
        """
        for number, (arguments, given, printed) in enumerate(cases, 1):
            line = ", ".join(repr(part) for part in (*command, *arguments))
            self.test(
                f"hidden case {number}",
                f"given = {_literal(given)}\n"
                f'status, printed = run({line}, given=given.encode("utf-8"))\n'
                f'assert status == 0, f"exit status {{status}}"\n'
                f"assert digest(printed) == {digest(printed.encode())!r}",
            )

    def source(self, title: str) -> str:
        """Return the module's source."""
        tests = "\n\n\n".join(f"def {name}():\n{textwrap.indent(body, '    ')}" for name, body in self._tests.items())
        called = set(re.findall(r"\b(\w+)\(", tests))
        wanted = [name for name in HELPERS if name in called]
        wanted += [need for name in wanted for need in NEEDS.get(name, ()) if need not in wanted]
        helpers = [textwrap.dedent(code).strip("\n") for name, code in HELPERS.items() if name in wanted]
        code = "\n\n\n".join([*helpers, tests])
        imports = "\n".join(
            f"import {name}" for name in MODULES if f"{name}." in code and re.search(rf"\b{name}\.", code)
        )
        return f'"""{title}"""\n\n{imports}\n\n\n{code}\n' if imports else f'"""{title}"""\n\n\n{code}\n'


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _state(file: GeneratedFile) -> str:
    """Describe a file as the helper ``tree`` does."""
    if file.directory:
        return f"directory {file.mode:04o}"
    return f"file {file.mode:04o} {digest(file.content)}" if file.link is None else f"link {file.link}"


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _decoded(path: str) -> str:
    return f'content({path!r}).decode("utf-8")'


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
