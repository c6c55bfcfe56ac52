"""The decision with which rights a program of the tests runs, made where every such program is started.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import
program_rights``). ``ProgramRights.admit`` takes the arguments of ``_posixsubprocess.fork_exec``, to which every library
call comes that starts a program (``process_isolation``), and returns them changed. There are two kinds:

- A *reader* is proven to execute no code of the agent (``read_only_commands.prove``). It keeps the examiners' group,
  and so sees every process and the examination's folder. Where its program can be copied it executes the copy, and it
  can execute no other program (``sealed_programs``). Its home and, unless the test names one, its working folder are
  empty folders of the examination; variables that lead to a place of the agent are removed, and ``git`` gets its
  settings.
- Every other program is *the agent's*: the scripts of a task, interpreters and build tools with files of the agent, and
  every program that is not on the list. It leaves the examiners' group. It has the agent's home and reaches in the
  examination's folder only paths that the test names to it, because it can neither list the folder nor guess a name.

In both cases the program has half of the capabilities of ``process_isolation``, by which no other process can inspect
it.

Invariant: a program of the agent is never in the examiners' group, and never a descendant of a program that is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ors_containers.graders import read_only_commands, read_only_git, reader_variables, unchanged_places
    from ors_containers.graders.sealed_programs import SealedPrograms
else:
    import read_only_commands
    import read_only_git
    import reader_variables
    import unchanged_places
    from sealed_programs import SealedPrograms

__all__ = ["Places", "ProgramRights"]

#: Positions in the arguments of ``fork_exec``.
_ARGUMENTS, _EXECUTABLES, _FOLDER, _ENVIRONMENT, _INPUT, _GROUPS, _BEFORE = 0, 1, 4, 5, 6, 18, 21
_START_FILES = re.compile(
    r"\.(bash_?(rc|profile|login|logout|aliases)|profile|[zk]sh(rc|env)|zprofile|zlogin|inputrc)\b"
)
_SQLITE = r"((?:^|[;&|(\n])\s*)sqlite3\b"
_VERSION = r"python(\d+)\.(\d+)"
_SAFE_SINCE = (3, 11)
_PLAIN = r"[A-Za-z0-9/._-]+"
_TILDE = r"(?:(?<=[\s=:<>|;&(])|^)~(?=[/\s;|&)]|$)|\$HOME\b|\$\{HOME\}"


class Places(NamedTuple):
    """Places of the tests' process as it began."""

    room: SealedPrograms
    home: str
    #: Working folder, and folder for temporary files.
    start: str
    temporary: str


class ProgramRights:
    """The decision on each program, with the places that it needs."""

    def __init__(
        self,
        places: Places,
        text: str,
        variables: Callable[[str, Mapping[str, str]], dict[str, str]],
        *,
        can_leave: bool,
    ) -> None:
        """``variables``: settings for a program (git, or any other).

        ``can_leave``: this process may take the examiners' group from a child.
        """
        self._room = places.room
        self._text = text
        self._variables = variables
        self._can_leave = can_leave
        self._home, self._start, self._temporary = places.home, places.start, places.temporary

    def admit(self, arguments: Sequence[Any]) -> tuple[list[Any], Callable[[], None]]:
        """Return the arguments with which the program is started, and a function to call afterwards."""
        changed = list(arguments)
        words = [os.fsdecode(word) for word in changed[_ARGUMENTS]]
        given = changed[_ENVIRONMENT]
        environment = dict(os.environ)
        if given is not None:
            pairs = (os.fsdecode(item).partition("=") for item in given)
            environment = {name: value for name, _, value in pairs}
        folder = self._start_folder(changed[_FOLDER])
        path = next((p for p in map(os.fsdecode, changed[_EXECUTABLES]) if _is_executable(p, folder)), "")
        proof = None
        if path and words and unchanged_places.is_unchanged(os.path.join(folder, path)):  # noqa: PTH118
            proof = read_only_commands.prove(path, words, folder, lambda name: _look_up(name, environment))
        if proof is not None and (
            (proof.is_python and reader_variables.lead_python(environment))
            or not self._reads_input(path, words, changed[_INPUT])
        ):
            proof = None
        if proof is not None and (self._uses_removed(words, environment) or not read_only_git.is_kept_alone(proof)):
            proof = None
        place = self._place(path, proof) if proof is not None else None
        if proof is None or place is None:
            self._make_agents(changed, path, words, environment)
            return changed, _nothing
        return changed, self._make_reader(changed, path, words, environment, proof, place, folder)

    def _start_folder(self, named: Any) -> str:
        current = _current()
        return current if named is None else os.path.join(current, os.fsdecode(named))  # noqa: PTH118

    def _reads_input(self, path: str, words: Sequence[str], descriptor: int) -> bool:
        """Return whether a program's standard input is not a file with commands for it."""
        takes = os.path.basename(path) in ("sqlite3", "xargs")  # noqa: PTH119
        try:
            return not (takes and os.path.isfile(f"/proc/self/fd/{descriptor if descriptor != -1 else 0}"))  # noqa: PTH113
        except OSError:
            return False

    # ── the agent's ──

    def _make_agents(self, changed: list[Any], path: str, words: list[str], environment: dict[str, str]) -> None:
        if self._can_leave and changed[_GROUPS] is None:
            changed[_GROUPS] = []
        if environment.get("TMPDIR") == self._temporary:
            environment.pop("TMPDIR")
        if "git" in self._text:
            environment.update(self._variables("", environment))
        if _is_login(words) and re.search(_START_FILES, self._text) is None:
            # Where the tests are not about them, the agent's start-up files do not run before the tests' own command.
            words = self._without_home(words, environment)
        if any("python" in word for word in words) and _pythons_ignore_folder(words):
            environment.update(PYTHONSAFEPATH="1", PYTHONNOUSERSITE="1")
        changed[_ARGUMENTS] = [os.fsencode(word) for word in _safe(path, words)]
        changed[_ENVIRONMENT] = [os.fsencode(f"{name}={value}") for name, value in environment.items()]

    # ── a reader ──

    def _make_reader(
        self,
        changed: list[Any],
        path: str,
        words: list[str],
        environment: dict[str, str],
        proof: read_only_commands.Proof,
        place: tuple[str, int],
        folder: str,
    ) -> Callable[[], None]:
        has_git = "git" in (os.path.basename(path), *proof.programs)  # noqa: PTH119
        asks_home = has_git and any(re.search(r"\bconfig\b", word) for word in words[1:])
        environment = {
            name: value
            for name, value in environment.items()
            if reader_variables.may_have(name, value, self._temporary)
        }
        if has_git:
            environment.update(self._variables("", environment))
            if not asks_home:
                environment.update(self._variables("git", environment))
        if not asks_home:
            words = self._without_home(words, environment)
            environment["XDG_CONFIG_HOME"] = self._room.home
        if os.path.basename(path) == "sqlite3":  # noqa: PTH119
            words = [words[0], "-init", os.devnull, *words[1:]]  # older ones know no XDG_CONFIG_HOME
        elif "sqlite3" in proof.programs and (found := read_only_commands.shell_text(words)) is not None:
            number, text = found
            words = [*words[: number + 1], re.sub(_SQLITE, r"\1sqlite3 -init /dev/null", text), *words[number + 2 :]]
        if changed[_FOLDER] is None and folder == self._start and not _is_relative(words, folder, proof):
            changed[_FOLDER] = os.fsencode(self._room.empty)
        executed, ruleset = place
        if (proof.programs or has_git) and not proof.inspects:
            environment["PATH"] = self._room.programs
            if has_git:
                found = read_only_commands.shell_text(words) if proof.is_shell else None
                words, environment["PATH"] = read_only_git.keep_alone(words, found, proof, self._room, self._text)
                environment["GIT_EXEC_PATH"] = self._room.alone  # git executes itself
        changed[_EXECUTABLES] = [os.fsencode(executed)]
        changed[_ARGUMENTS] = [os.fsencode(word) for word in _safe(path, words)]
        changed[_ENVIRONMENT] = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
        if ruleset == -1:
            return _nothing
        before = changed[_BEFORE]

        def enter() -> None:
            if before is not None:
                before()
            self._room.enter(ruleset)

        changed[_BEFORE] = enter
        return lambda: os.close(ruleset)

    def _place(self, path: str, proof: read_only_commands.Proof) -> tuple[str, int] | None:
        """Return the program to execute and the domain in which it is; None if that would permit more than reading."""
        if proof.inspects:
            return path, -1
        if proof.is_python:
            return path, self._room.domain([path, *filter(None, [self._room.loader(path)])])
        name = os.path.basename(path)  # noqa: PTH119
        copies = {found: self._room.copy(where, found) for found, where in {**proof.programs, name: path}.items()}
        return (copies[name], self._room.domain(copies.values())) if all(copies.values()) else None

    def _uses_removed(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Return whether a shell's text uses a variable that a reader may not have."""
        found = read_only_commands.shell_text(words)
        used = set(re.findall(r"\$\{?(\w+)", found[1])) if found is not None else set[str]()
        return any(
            name in environment and not reader_variables.may_have(name, environment[name], self._temporary)
            for name in used
        )

    def _without_home(self, words: list[str], environment: dict[str, str]) -> list[str]:
        """Give a program an empty home; a shell's text names the agent's by its path instead."""
        home = environment.get("HOME", self._home)
        found = read_only_commands.shell_text(words)
        if found is not None:
            number, text = found
            if re.search(_TILDE, text) and not re.fullmatch(_PLAIN, home):
                return words
            words = [*words[: number + 1], re.sub(_TILDE, home, text), *words[number + 2 :]]
        environment["HOME"] = self._room.home
        return words


def _nothing() -> None:
    pass


def _current() -> str:
    try:
        return os.getcwd()  # noqa: PTH109
    except OSError:
        return "/"


def _is_executable(path: str, folder: str) -> bool:
    path = os.path.join(folder, path)  # noqa: PTH118
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def _look_up(name: str, environment: Mapping[str, str]) -> str:
    if not name or "/" in name or "\0" in name:
        return ""
    folders = environment.get("PATH", os.defpath).split(":")
    return next((path for folder in folders if _is_executable(path := f"{folder or '.'}/{name}", "/")), "")


def _is_login(words: Sequence[str]) -> bool:
    name = os.path.basename(words[0]) if words else ""  # noqa: PTH119
    if not re.fullmatch(r"-?(ba|da|a|k|z)?sh", name):
        return False
    options = [word for word in words[1:] if word.startswith("-")]
    return name.startswith("-") or any(
        word == "--login" or (not word.startswith("--") and ("l" in word or "i" in word)) for word in options
    )


def _is_relative(words: Sequence[str], folder: str, proof: read_only_commands.Proof) -> bool:
    """Return whether a word may be the path of a file in the folder in which the test runs."""
    if proof.is_line:
        found = read_only_commands.shell_text(words)
        words = re.split(r"[\s'\"`;|&<>(){}=]+", found[1]) if found else words
        if found and re.search(r"[*?]|\b(ls|find|pwd|du|tree|stat)\b", found[1]):
            return True
    elif os.path.basename(words[0]) in ("du", "find", "git", "grep", "ls", "tree"):  # noqa: PTH119
        return True
    named = (word for word in words[1:] if word and not word.startswith(("/", "-")))
    return any(os.path.lexists(f"{folder}/{word}") for word in named)


def _pythons_ignore_folder(words: list[str]) -> bool:
    found = read_only_commands.shell_text(words)
    return _python_commands().pythons_ignore_folder(words, None if found is None else found[1])


def _python_commands() -> Any:
    """Return the module, whose import takes some milliseconds."""
    if TYPE_CHECKING:
        from ors_containers.graders import python_commands
    else:
        import python_commands
    return python_commands


def _safe(path: str, words: list[str]) -> list[str]:
    """Return a command in which a Python imports nothing from its working folder, where it need not."""
    if not re.fullmatch(r"python[0-9.]*", os.path.basename(path)) or not _python_commands().ignores_folder(words[1:]):  # noqa: PTH119
        return words
    real = os.path.realpath(path)
    version = re.search(_VERSION, os.path.basename(real))  # noqa: PTH119
    known = real.startswith("/.grader/") or (version and (int(version[1]), int(version[2])) >= _SAFE_SINCE)
    return [words[0], *(("-P", "-s") if known else ("-I",)), *words[1:]]
