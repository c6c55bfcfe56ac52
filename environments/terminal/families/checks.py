"""Writes the pytest modules that grade a task.

Invariant: a module needs nothing but the standard library and the paths it names, and imports nothing of the task's. It
checks what is there, not how it came about, in small tests whose names say what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .requirements import words

if TYPE_CHECKING:
    from .task import GeneratedFile

__all__ = ["Checks", "digest"]

#: Helpers the tests use, each written into a module that needs it.
_HELPERS = {
    "content": '''
        def content(path):
            """The bytes of a regular file; a link, a pipe or a giant is none."""
            status = os.lstat(path)
            assert stat.S_ISREG(status.st_mode), f"{path} is not a regular file"
            assert status.st_size < 20_000_000, f"{path} is far too large"
            with open(path, "rb") as file:
                return file.read()
        ''',
    "digest": """
        def digest(data):
            return hashlib.sha256(data).hexdigest()
        """,
    "same": '''
        def same(value, expected):
            """Equal as JSON: 1 is 1.0, but true is not 1."""
            if isinstance(expected, dict):
                return (
                    isinstance(value, dict)
                    and value.keys() == expected.keys()
                    and all(same(value[key], expected[key]) for key in expected)
                )
            if isinstance(expected, list):
                return isinstance(value, list) and len(value) == len(expected) and all(map(same, value, expected))
            return isinstance(value, bool) == isinstance(expected, bool) and value == expected
        ''',
    "lines": '''
        def lines(path):
            """The lines of a file; whether the last one ends is not seen."""
            found = content(path).decode("utf-8").split("\\n")
            return found if found[-1] else found[:-1]
        ''',
    "ordered": '''
        def ordered(found, expected):
            """Whether what both have is in the same order in both; what only one of them has does not count."""
            if sorted(found) == sorted(expected):
                return found == expected
            both = set(found) & set(expected)
            return [item for item in dict.fromkeys(found) if item in both] == [
                item for item in dict.fromkeys(expected) if item in both
            ]
        ''',
    "rows": '''
        def rows(path):
            """The records of a CSV file; empty lines and a byte-order mark do not count."""
            text = content(path).decode("utf-8-sig")
            return [tuple(row) for row in csv.reader(io.StringIO(text, newline="")) if row]
        ''',
    "below": '''
        def below(folder):
            """Every file and link below a directory, by its path relative to it."""
            assert stat.S_ISDIR(os.lstat(folder).st_mode), f"{folder} is not a directory"
            found = []

            def unreadable(error):
                raise error

            for place, directories, names in os.walk(folder, onerror=unreadable):
                links = [name for name in directories if os.path.islink(os.path.join(place, name))]
                found += [os.path.relpath(os.path.join(place, name), folder) for name in names + links]
            return sorted(found)
        ''',
    "tree": '''
        def tree(folder):
            """What is at and below a directory: for each path its kind, its permissions and its content."""

            def unreadable(error):
                raise error

            paths = [folder]
            for place, directories, names in os.walk(folder, onerror=unreadable):
                paths += [os.path.join(place, name) for name in directories + names]
            found = {}
            for path in paths:
                status = os.lstat(path)
                mode = f"{stat.S_IMODE(status.st_mode):04o}"
                if stat.S_ISDIR(status.st_mode):
                    what = f"directory {mode}"
                elif stat.S_ISLNK(status.st_mode):
                    what = f"link {os.readlink(path)}"
                elif stat.S_ISREG(status.st_mode):
                    what = f"file {mode} {digest(content(path))}"
                else:
                    what = "neither a file nor a directory"
                found[os.path.relpath(path, folder)] = what
            return found
        ''',
    "one_file": '''
        def one_file(path, other):
            """Whether two paths are one file. What is done to one shows in the other: inode numbers can differ."""
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            shown = [stat.S_IMODE(os.lstat(other).st_mode)]
            os.chmod(path, mode ^ 0o001)
            shown.append(stat.S_IMODE(os.lstat(other).st_mode))
            os.chmod(path, mode)
            return shown == [mode, mode ^ 0o001]
        ''',
    "run": '''
        def run(*command, given=b"", folder="/"):
            """Run a program by itself; its exit status and its standard output."""
            environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
            environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
            finished = subprocess.run(
                command,
                input=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment,
                timeout=20,
                start_new_session=True,
            )
            return finished.returncode, finished.stdout
        ''',
    "missing": '''
        def missing(path):
            """Whether nothing is there. A directory that cannot be looked into is no such answer: it fails the test."""
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return True
            return False
        ''',
    "git": '''
        def git(*arguments, folder):
            """What git prints, whatever the configuration of the user. It has to succeed: nothing is an answer too."""
            safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*")
            status, printed = run("git", *safe, *arguments, folder=folder)
            assert status == 0, f"git {arguments[0]} ended with {status}"
            return printed.decode("utf-8", "replace")
        ''',
    "commit": '''
        def commit(name, folder):
            """What a commit says: its headers, each with all its values, and its message."""
            head, _, message = git("cat-file", "commit", name, folder=folder).partition("\\n\\n")
            headers = {}
            for line in head.splitlines():
                key, _, value = line.partition(" ")
                headers.setdefault(key, []).append(value)
            return headers, message.rstrip("\\n")
        ''',
    "blobs": '''
        def blobs(folder):
            """The files of a working tree as git would record them, read without it: its settings hide nothing."""
            found = {}
            for path in below(folder):
                if not path.startswith(".git/"):
                    data = content(os.path.join(folder, path))
                    mode = 0o755 if os.lstat(os.path.join(folder, path)).st_mode & 0o100 else 0o644
                    name = hashlib.sha1(b"blob %d\\0" % len(data) + data).hexdigest()
                    found[path] = f"100{mode:o} {name}"
            return found
        ''',
    "processes": '''
        def processes():
            """Process ids and their command lines, zombies apart."""
            found = {}
            for name in os.listdir("/proc"):
                if name.isdigit():
                    try:
                        with open(f"/proc/{name}/cmdline", "rb") as file:
                            line = file.read().rstrip(b"\\0").split(b"\\0")
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # it has ended
                    if line != [b""]:
                        found[int(name)] = [part.decode("utf-8", "replace") for part in line]
            return found
        ''',
    "undisturbed": '''
        def undisturbed(first):
            """Command lines of the processes that began with an id from ``first`` on, neither stopped nor ended.

            A range of twenty ids below 300 belongs to one of those that the task began with: Linux gives such ids once.
            When all are used up it begins again at 300.
            """
            found = []
            for number, line in processes().items():
                try:
                    with open(f"/proc/{number}/stat") as file:
                        state = file.read().rpartition(")")[2].split()[0]
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended
                if first <= number < first + 20 and state not in "TtXxZ":
                    found.append(line)
            return found
        ''',
    "alive": '''
        def alive(first):
            """Ids of a range, as above, in which bash goes on, stopped or not, whatever its command line says."""
            found = []
            for name in os.listdir("/proc"):
                if name.isdigit() and first <= int(name) < first + 20:
                    try:
                        if os.path.basename(os.readlink(f"/proc/{name}/exe")) == "bash":
                            found.append(int(name))
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # it has ended
            return found
        ''',
    "opened": '''
        def opened(path):
            """Ids of the processes that have a file open."""
            found = []
            for name in os.listdir("/proc"):
                if name.isdigit() and int(name) != os.getpid():
                    try:
                        links = [os.readlink(f"/proc/{name}/fd/{number}") for number in os.listdir(f"/proc/{name}/fd")]
                    except (FileNotFoundError, ProcessLookupError, PermissionError):
                        continue  # it has ended, or is none of the user's
                    if path in links:
                        found.append(int(name))
            return found
        ''',
    "listening": '''
        def listening(port):
            """The TCP sockets that listen on a port: inodes, and addresses as /proc has them."""
            found = {}
            for name in ("tcp", "tcp6"):
                if missing(f"/proc/self/net/{name}") and name == "tcp6":
                    continue  # without IPv6
                with open(f"/proc/self/net/{name}") as file:
                    for fields in map(str.split, file.readlines()[1:]):
                        address, _, number = fields[1].partition(":")
                        if fields[3] == "0A" and int(number, 16) == port:
                            found[fields[9]] = address
            return found
        ''',
    "local_only": '''
        def local_only(port):
            """Whether something listens on a port at 127.0.0.1, and nothing does at another address."""
            local = {"0100007F", "0000000000000000FFFF00000100007F"}
            return set() < set(listening(port).values()) <= local
        ''',
}
_NEEDS = {
    "lines": ("content",),
    "rows": ("content",),
    "tree": ("content", "digest"),
    "git": ("run",),
    "commit": ("git", "run"),
    "blobs": ("below", "content"),
    "undisturbed": ("processes",),
    "listening": ("missing",),
    "local_only": ("listening", "missing"),
}
_MODULES = (
    "csv",
    "fnmatch",
    "gzip",
    "hashlib",
    "http.client",
    "io",
    "json",
    "os",
    "shutil",
    "socket",
    "sqlite3",
    "stat",
    "subprocess",
    "tarfile",
    "tempfile",
    "time",
    "xml.etree.ElementTree",
    "zipfile",
)


def digest(data: bytes) -> str:
    """What a test holds instead of a content."""
    return hashlib.sha256(data).hexdigest()


class Checks:
    """Collects the tests of one module."""

    def __init__(self) -> None:
        self._tests: dict[str, str] = {}

    def test(self, name: str, body: str) -> None:
        """A test of its own; ``body`` is its code, in which ``content``, ``rows`` and the other helpers are known."""
        name = f"test_{words(name)}"
        number = 2
        unique = name
        while unique in self._tests:
            unique = f"{name}_{number}"
            number += 1
        self._tests[unique] = textwrap.dedent(body).strip("\n")

    def absent(self, path: str) -> None:
        """There is nothing at ``path``."""
        self.test(f"{_base(path)} is not there", f"assert missing({path!r})")

    def directory(self, path: str) -> None:
        """``path`` is a directory."""
        self.test(f"{_base(path)} is a directory", f"assert stat.S_ISDIR(os.lstat({path!r}).st_mode)")

    def text(self, path: str, expected: str) -> None:
        """``path`` is a file of exactly this text, in UTF-8."""
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
        """These paths are files of these bytes."""
        digests = {path: digest(data) for path, data in expected.items()}
        self.test(
            name,
            f"expected = {_literal(digests)}\n"
            "for path, value in expected.items():\n"
            "    assert digest(content(path)) == value, path",
        )

    def kept(self, expected: Mapping[str, GeneratedFile], *, modes: bool) -> None:
        """These files are as they were: content and, with ``modes``, permissions."""
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
        """A directory is as it was; ``made`` and what is below it, and names like ``allowed``, do not count."""
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
        """Below ``folder`` are exactly these files, and no directories but theirs and, where one likes, ``empty``."""
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
        """``path`` is a JSON file of this value; its layout and the order of its keys are free."""
        name = _base(path)
        self.test(
            f"{name} has the right value",
            f"expected = json.loads({_literal(json.dumps(expected, indent=1, ensure_ascii=False))})\n"
            f"assert same(json.loads({_decoded(path)}), expected)",
        )

    def rows(self, path: str, expected: Sequence[Sequence[str]]) -> None:
        """``path`` is a CSV file of these records, the header among them; quoting and line ends are free."""
        name = _base(path)
        self.test(f"{name} has the right header", f"assert rows({path!r})[0] == {tuple(expected[0])!r}")
        records = f"expected = {_literal([tuple(row) for row in expected[1:]])}\n"
        self.test(f"{name} has the right records", f"{records}assert sorted(rows({path!r})[1:]) == sorted(expected)")
        if len(expected) > 2:
            self.test(f"records of {name} are in order", f"{records}assert ordered(rows({path!r})[1:], expected)")

    def modes(self, expected: Mapping[str, int]) -> None:
        """Permission bits of files and directories."""
        for path, mode in expected.items():
            self.test(
                f"mode of {_base(path)} is {mode:04o}",
                f"mode = stat.S_IMODE(os.lstat({path!r}).st_mode)\nassert mode == {mode:#06o}, oct(mode)",
            )

    def link(self, path: str, target: str) -> None:
        """``path`` is a symbolic link that says ``target``."""
        self.test(f"{_base(path)} is a link", f"assert os.path.islink({path!r})")
        self.test(f"{_base(path)} leads to the right place", f"assert os.readlink({path!r}) == {target!r}")

    def cases(self, command: Sequence[str], cases: Iterable[tuple[Sequence[str], str, str]]) -> None:
        """A program prints the right text for arguments and standard input that the agent has not seen.

        Only digests of the right text are written down: a program that reads its own grader learns nothing.
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
        """The module."""
        tests = "\n\n\n".join(f"def {name}():\n{textwrap.indent(body, '    ')}" for name, body in self._tests.items())
        called = set(re.findall(r"\b(\w+)\(", tests))
        wanted = [name for name in _HELPERS if name in called]
        wanted += [need for name in wanted for need in _NEEDS.get(name, ()) if need not in wanted]
        helpers = [textwrap.dedent(code).strip("\n") for name, code in _HELPERS.items() if name in wanted]
        code = "\n\n\n".join([*helpers, tests])
        imports = "\n".join(
            f"import {name}" for name in _MODULES if f"{name}." in code and re.search(rf"\b{name}\.", code)
        )
        return f'"""{title}"""\n\n{imports}\n\n\n{code}\n' if imports else f'"""{title}"""\n\n\n{code}\n'


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _state(file: GeneratedFile) -> str:
    """A file as the helper ``tree`` describes it."""
    if file.directory:
        return f"directory {file.mode:04o}"
    return f"file {file.mode:04o} {digest(file.content)}" if file.link is None else f"link {file.link}"


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _decoded(path: str) -> str:
    return f'content({path!r}).decode("utf-8")'


def _literal(value: str | list[Any] | dict[str, str]) -> str:
    """A value as source, a line of it to a line of source."""
    if isinstance(value, str):
        lines = value.splitlines(keepends=True) if "\n" in value else [value]
        if len(lines) <= 1:
            return repr(value)
        return "(\n" + "".join(f"    {line!r}\n" for line in lines) + ")"
    if isinstance(value, dict):
        return "{\n" + "".join(f"    {key!r}: {item!r},\n" for key, item in value.items()) + "}"
    return "[\n" + "".join(f"    {item!r},\n" for item in value) + "]" if value else "[]"
