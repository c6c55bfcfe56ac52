"""Proof that a command of a test only reads: every program that it can start is on a list, used in a way that reads.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import
read_only_commands``).

A program of a test is the agent's unless this module proves otherwise. Nothing is proven of a program that the agent
can write, of a script, of an interpreter that is given a file, or of a program that is not on the list. So an entry
that is missing costs a program its privileges (``program_rights``), and never gives privileges to a program of the
agent.

A shell's command (``sh -c TEXT``) and a program that executes its arguments (``timeout``, ``xargs``) are proven word by
word. Every word that names a program must name a listed one, wherever the word stands; words that a shell computes are
not allowed where it expects a command.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ors_containers.graders import read_only_programs as listed
    from ors_containers.graders.unchanged_places import is_root, is_unchanged
else:
    try:
        import read_only_programs as listed
        from unchanged_places import is_root, is_unchanged
    except ImportError:  # in the server's own process, where its tests are
        from ors_containers.graders import read_only_programs as listed
        from ors_containers.graders.unchanged_places import is_root, is_unchanged

__all__ = ["Proof", "prove", "shell_text"]

_SHELLS = frozenset(("ash", "bash", "dash", "ksh", "sh"))
_WITHOUT_ARRAYS = frozenset(("ash", "busybox", "dash"))
#: Text by which a shell with arrays evaluates values: offsets, indices, numeric comparisons.
_EVALUATED = re.compile(r"\$\{[^}]*(\[|:[^-=?+])")
_COMPARING = frozenset(("[", "[[", "test"))
#: Keywords and builtins by which a variable gets a text of the agent.
_TAKING = frozenset(("for", "read", "select"))
_PYTHON = r"python[0-9.]*"
#: What a shell executes in its own process, or looks up in another way than by ``PATH``.
_REFUSED_WORDS = listed.named("""
    . alias bind builtin command compgen complete coproc enable eval exec export fc function hash jobs kill mapfile
    readarray set shopt source suspend trap type typeset declare unalias
    """)
_KEYWORDS = listed.named("""
    ! case do done elif else esac fi for if in select then time until while { } [[ ]]
    """)
_BUILTINS = listed.named("""
    : break cd continue exit false local pwd read return shift times true ulimit umask unset wait
    """)
_ASSIGNMENT = r"([A-Za-z_][A-Za-z0-9_]*)\+?="
_HARMLESS_VARIABLE = r"[a-z_][a-z0-9_]*|LANG|LC_[A-Z]+|TZ|[A-Z]"
#: Programs that take options after other words, too, and by one of them a program or a configuration.
_OPTIONS_ANYWHERE = frozenset(("curl", "file", "jq", "sed", "sort", "wget"))
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_MOST_WORDS = 1000


class Proof:
    """A command that only reads."""

    def __init__(self) -> None:
        #: Its programs, by the name that it calls each by.
        self.programs: dict[str, str] = {}
        #: The program that is started is a shell or executes its arguments.
        self.is_line = False
        self.is_shell = False
        #: The shell evaluates the index of an array within a value (Bash, ksh), which may be a command.
        self.has_arrays = False
        #: Programs that others of the command start, and these others.
        self.started = set[str]()
        self.starting = set[str]()
        #: One of the programs looks into other processes.
        self.inspects = False
        self.is_python = False


def prove(path: str, words: Sequence[str], folder: str, look_up: Callable[[str], str]) -> Proof | None:
    """Return a proof that the program at ``path`` with arguments ``words`` only reads; None where there is none.

    ``words`` has the program's own name first. ``look_up`` returns the path of a program by its name; empty for none.
    """
    if len(words) > _MOST_WORDS:
        return None
    name = os.path.basename(path)  # noqa: PTH119 - pathlib is one import more, here and below
    proof = Proof()
    if re.fullmatch(_PYTHON, name):
        proof.is_python = True
        return proof if not is_root() and _python_reads(words[1:]) else None
    if name in _SHELLS:
        proof.is_line = proof.is_shell = True
        proof.has_arrays = os.path.basename(os.path.realpath(path)) not in _WITHOUT_ARRAYS  # noqa: PTH119 - as above
        found = shell_text(words)
        plain = found is not None and found[0] == 1 and words[1] in ("-c", "-ec", "-euc", "-uc")
        return proof if plain and found and _line_reads(found[1], proof, folder, look_up) else None
    if name in listed.WRAPPERS:
        proof.is_line = True
        line = [words[0], *words[1:]]
        return proof if _command_reads(name, line[1:], proof, folder, look_up) else None
    return proof if _command_reads(name, list(words[1:]), proof, folder, look_up) else None


def shell_text(words: Sequence[str]) -> tuple[int, str] | None:
    """Return the number of a shell's option words up to its ``-c``, and the text after it; None without ``-c``."""
    for number, word in enumerate(words[1:], 1):
        if not word.startswith("-") or word == "--":
            return None
        if not word.startswith("--") and "c" in word:
            return (number, words[number + 1]) if number + 1 < len(words) else None
    return None


def _python_reads(arguments: Sequence[str]) -> bool:
    # Imported where a Python is started: the parser that it needs takes some milliseconds.
    if __name__ == "read_only_commands":
        module = importlib.import_module("python_commands")
    else:
        module = importlib.import_module("ors_containers.graders.python_commands")
    return module.python_reads(arguments)


def _line_reads(text: str, proof: Proof, folder: str, look_up: Callable[[str], str]) -> bool:
    if "<<" in text or "`" in text or "$'" in text or "\\" in text:
        return False
    import shlex  # as in `prove`: many tests start no shell

    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        tokens = list(lexer)
    except ValueError:
        return False
    if len(tokens) > _MOST_WORDS or any("$(" in token for token in tokens):
        return False
    if (proof.has_arrays and _evaluates(text, tokens)) or _has_open_words(text):
        return False
    commands: list[list[str]] = [[]]
    redirected = False
    for token in tokens:
        if token and set(token) <= set("<>&|;()"):
            redirected = bool(set(token) & set("<>")) and "(" not in token
            if not redirected:
                commands.append([])
        elif redirected:
            redirected = False
            commands[-1].append(f"./{token}" if "/" not in token else token)  # a file, not a program
        else:
            commands[-1].append(token)
    folders = [folder]
    for command in commands:
        while command and (command[0] in _KEYWORDS or re.match(_ASSIGNMENT, command[0])):
            assignment = re.match(_ASSIGNMENT, command[0])
            if assignment and not re.fullmatch(_HARMLESS_VARIABLE, assignment[1]):
                return False
            if command[0] in ("for", "case", "select"):
                command = command[3:] if command[0] != "case" else [":", *command[1:]]
                command = [":", *command]
                break
            command = command[1:]
        if not command:
            continue
        first, *others = command
        if first == "cd" and others:
            folders.append(os.path.join(folders[-1], os.path.expanduser(others[0])))  # noqa: PTH111, PTH118
        if not all(_command_reads(first, others, proof, place, look_up) for place in folders):
            return False
    return True


def _evaluates(text: str, tokens: Sequence[str]) -> bool:
    """Return whether a shell may evaluate a text of the agent: ``[[ $x -eq 1 ]]`` executes what an index in x says."""
    if _EVALUATED.search(text):
        return True
    if not (_TAKING & set(tokens) or "$(" in text):
        return False
    variable = any("$" in token for token in tokens)
    return (variable and bool(_COMPARING & set(tokens))) or any(
        token in ("read", "unset", "printf") and re.match(r"[\"']?\$|-v", following)
        for token, following in itertools.pairwise(tokens)
    )


def _has_open_words(text: str) -> bool:
    """Return whether a program that takes a program from an option has a word that a file's name may make an option.

    ``sed -n p *`` executes what a file called ``-fX`` says.
    """
    bare = _QUOTED.sub(lambda found: found[0][1] if found[0][0] == '"' and found[0][1] in "$*" else "x", text)
    for command in re.split(r"[;&|()\n]", bare):
        words = command.split()
        first = next((number for number, word in enumerate(words) if word in _OPTIONS_ANYWHERE), len(words))
        for word in words[first + 1 :]:
            if word == "--":
                break
            if word[0] in "*?[" or (word[0] == "$" and (re.search(r"\bread\b|\bfor\b", text) or word == "$")):
                return True
    return False


def _started_by(name: str, arguments: Sequence[str], programs: Mapping[str, str]) -> list[str]:
    """Return the names of the programs that a listed program starts, as its arguments tell."""
    named = [word for word in arguments if word in programs]
    if name not in listed.WRAPPERS:
        return named
    first = next((number for number, word in enumerate(named) if word not in listed.WRAPPERS), len(named))
    return named[: first + 1]


def _command_reads(first: str, others: list[str], proof: Proof, folder: str, look_up: Callable[[str], str]) -> bool:
    """Return whether a simple command only reads; add its programs to the proof."""
    name = os.path.basename(first)  # noqa: PTH119
    if not re.fullmatch(r"[A-Za-z0-9_.+\[:-]+", first) or first in _REFUSED_WORDS:
        return False
    if name not in _BUILTINS and not (listed.only_reads(name, others) and _takes_nothing_of_root(name)):
        return False
    executes = name in listed.EXECUTING or proof.is_line
    words = [first, *others] if proof.is_line else others if executes else []
    for word in words:
        if word in _REFUSED_WORDS and word == first:
            return False
        if not _names_reader(word, proof, folder, look_up):
            return False
    if name in listed.EXECUTING:
        started = _started_by(name, others, proof.programs)
        if name == "xargs" and any(
            word == "git" or word in (*listed.EXECUTING, *listed.PROGRAM_FILES) for word in started
        ):
            return False  # the words that it adds are the agent's, and may name a program or a configuration
        proof.started.update(started)
        proof.starting.add(name)
    if proof.is_line and listed.takes_commands(name, others):
        return False
    proof.inspects = proof.inspects or name in listed.INSPECTING
    if proof.inspects and any(program in listed.EXECUTING or program == "git" for program in (name, *proof.programs)):
        return False
    for position, word in enumerate(others):
        # A program that is an argument of another is held to its own conditions.
        following = others[position + 1 :]
        if (
            executes
            and word in ("git", *listed.LISTING, listed.LOADING, *listed.PROGRAM_FILES)
            and not listed.only_reads(word, following)
        ):
            return False
        if name in listed.EXECUTING and listed.takes_commands(word, following):
            return False
    return True


def _takes_nothing_of_root(name: str) -> bool:
    """Return whether a program takes no code from a place that only root can change."""
    return not is_root() or name not in listed.LOADING


def _names_reader(word: str, proof: Proof, folder: str, look_up: Callable[[str], str]) -> bool:
    """Return whether a word names no program but a listed one, which is added to the proof."""
    if "/" in word:
        path = os.path.join(folder, os.path.expanduser(word))  # noqa: PTH111, PTH118
        return not (os.path.isfile(path) and os.access(path, os.X_OK))  # noqa: PTH113
    found = look_up(word) if word and not word.startswith("-") else ""
    if not found:
        return True
    if word in listed.READERS or word in listed.INSPECTING or word in listed.WRAPPERS or word == "git":
        if not is_unchanged(found) or not _takes_nothing_of_root(word):
            return False
        proof.programs[word] = found
        return True
    return word in _KEYWORDS or word in _BUILTINS
