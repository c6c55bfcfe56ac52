"""Proof that a command of a test only reads: every program that it can start is on a list, used in a way that reads.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset (``import readers``).

A program of a test is the agent's unless this module proves otherwise. Nothing is proven of a program that the agent
can write, of a script, of an interpreter that is given a file, or of a program that is not on the list. So an entry
that is missing costs a program its privileges (``admission``), and never gives privileges to a program of the agent.

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
    from ors_containers.graders.closed_places import is_closed
else:
    try:
        from closed_places import is_closed
    except ImportError:  # in the server's own process, where its tests are
        from ors_containers.graders.closed_places import is_closed

__all__ = ["Proof", "prove", "shell_text"]


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Programs that print what they read, and execute nothing unless their arguments or a configuration name it. Not tar,
#: which executes a shell to unpack, nor sdiff and diff3, which execute diff.
_READERS = _named("""
    [ ar arch awk b2sum base32 base64 basename bzcat bzip2 cal cat cksum cmp column comm cpio cut curl cut date df
    diff dig dirname du echo expand expr factor false fgrep file find fmt fold free gawk getent grep groups
    gunzip gzip head hexdump host hostid hostname iconv id join jq last ldconfig ln locale logname look ls lsattr
    lsblk lz4 mawk md5sum infocmp less mkdir more nl nm nproc nslookup numfmt objdump od paste pathchk pgrep pinky
    pr printenv printf ps ptx pwd readelf readlink realpath rev sed seq sha1sum sha224sum sha256sum sha384sum
    sha512sum shuf size sleep sort split sqlite3 stat strings sum tac tail test touch tput tr tree true tsort
    tty uname unexpand uniq unxz unzip uptime users vmstat w wc wget who whoami xmllint xxd xz xzcat yes zipinfo
    zstd zstdcat
    """)
#: Programs that look into other processes or signal them, which a domain of Landlock would forbid; they execute none.
_INSPECTING = frozenset(("fuser", "killall", "lsof", "netstat", "pidof", "pkill", "pstree", "ss", "top"))
#: Readers that execute what an argument names.
_EXECUTING = frozenset(("env", "find", "nice", "nohup", "sort", "stdbuf", "time", "timeout", "xargs"))
_WRAPPERS = frozenset(("env", "nice", "nohup", "stdbuf", "timeout", "xargs"))
_SHELLS = frozenset(("ash", "bash", "dash", "ksh", "sh"))
_WITHOUT_ARRAYS = frozenset(("ash", "busybox", "dash"))
#: Text by which a shell with arrays evaluates values: offsets, indices, numeric comparisons.
_EVALUATED = re.compile(r"\$\{[^}]*(\[|:[^-=?+])")
_COMPARING = frozenset(("[", "[[", "test"))
#: Keywords and builtins by which a variable gets a text of the agent.
_TAKING = frozenset(("for", "read", "select"))
_PYTHON = r"python[0-9.]*"
_GIT = _named("""
    annotate blame branch cat-file check-attr check-ignore check-ref-format cherry config count-objects describe
    diff diff-files diff-index diff-tree for-each-ref fsck grep log ls-files ls-tree merge-base name-rev notes
    reflog rev-list rev-parse shortlog show show-branch show-ref stash status symbolic-ref tag var verify-pack
    version whatchanged
    """)
#: Arguments by which a reader takes a program, or a configuration, from a file.
_PROGRAM_FILES = {
    "awk": r"-[fEil]|--(file|exec|include|load)",
    "sed": r"-[nErsuz]*f|--file",
    "jq": r"-[a-zA-Z]*[fL]|--from-file",
    "curl": r"-K|--config",
    "wget": r"--config|--use-askpass",
    "sqlite3": r"-init|\.(read|load|shell|system|import|excel|edit|once)|.*\.(read|load|shell|system)\b",
    "file": r"-[a-zA-Z]*m|--magic",
    "find": r"-files0-from",
    "env": r"-S|--split|.*=",
}
for _name in ("gawk", "mawk"):
    _PROGRAM_FILES[_name] = _PROGRAM_FILES["awk"]
#: Readers that may also unpack: only what lists or prints.
_LISTING = {
    "cpio": r"-{0,2}[a-zA-Z]*t[a-zA-Z]*|--list",
    "ar": r"-?[tp][a-zA-Z]*",
    "unzip": r"-[a-zA-Z]*[lptvzZ][a-zA-Z0-9]*",
}
#: What a shell executes in its own process, or looks up in another way than by ``PATH``.
_REFUSED_WORDS = _named("""
    . alias bind builtin command compgen complete coproc enable eval exec export fc function hash jobs kill mapfile
    readarray set shopt source suspend trap type typeset declare unalias
    """)
_KEYWORDS = _named("""
    ! case do done elif else esac fi for if in select then time until while { } [[ ]]
    """)
_BUILTINS = _named("""
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
        return proof if _python_reads(words[1:]) else None
    if name in _SHELLS:
        proof.is_line = proof.is_shell = True
        proof.has_arrays = os.path.basename(os.path.realpath(path)) not in _WITHOUT_ARRAYS  # noqa: PTH119 - as above
        found = shell_text(words)
        plain = found is not None and found[0] == 1 and words[1] in ("-c", "-ec", "-euc", "-uc")
        return proof if plain and found and _line_reads(found[1], proof, folder, look_up) else None
    if name in _WRAPPERS:
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
    if __name__ == "readers":
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


def _takes_commands(name: str, arguments: Sequence[str]) -> bool:
    """Return whether a program of a line reads commands from its input: an SQLite without a statement."""
    return name == "sqlite3" and not any(
        not before.startswith("-") and (re.search(r"\s|;", word) or re.match(r"\.[a-z]+$", word))
        for before, word in itertools.pairwise(arguments)
    )


def _started_by(name: str, arguments: Sequence[str], programs: Mapping[str, str]) -> list[str]:
    """Return the names of the programs that a listed program starts, as its arguments tell."""
    named = [word for word in arguments if word in programs]
    if name not in _WRAPPERS:
        return named
    first = next((number for number, word in enumerate(named) if word not in _WRAPPERS), len(named))
    return named[: first + 1]


def _command_reads(first: str, others: list[str], proof: Proof, folder: str, look_up: Callable[[str], str]) -> bool:
    """Return whether a simple command only reads; add its programs to the proof."""
    name = os.path.basename(first)  # noqa: PTH119
    if not re.fullmatch(r"[A-Za-z0-9_.+\[:-]+", first) or first in _REFUSED_WORDS:
        return False
    if not _reads(name, others):
        return False
    executes = name in _EXECUTING or proof.is_line
    words = [first, *others] if proof.is_line else others if executes else []
    for word in words:
        if word in _REFUSED_WORDS and word == first:
            return False
        if not _names_reader(word, proof, folder, look_up):
            return False
    if name in _EXECUTING:
        started = _started_by(name, others, proof.programs)
        if name == "xargs" and any(word == "git" or word in (*_EXECUTING, *_PROGRAM_FILES) for word in started):
            return False  # the words that it adds are the agent's, and may name a program or a configuration
        proof.started.update(started)
        proof.starting.add(name)
    if proof.is_line and _takes_commands(name, others):
        return False
    proof.inspects = proof.inspects or name in _INSPECTING
    if proof.inspects and any(program in _EXECUTING or program == "git" for program in (name, *proof.programs)):
        return False
    for position, word in enumerate(others):
        # A program that is an argument of another is held to its own conditions.
        following = others[position + 1 :]
        if executes and word in ("git", *_LISTING, *_PROGRAM_FILES) and not _reads(word, following):
            return False
        if name in _EXECUTING and _takes_commands(word, following):
            return False
    return True


def _names_reader(word: str, proof: Proof, folder: str, look_up: Callable[[str], str]) -> bool:
    """Return whether a word names no program but a listed one, which is added to the proof."""
    if "/" in word:
        path = os.path.join(folder, os.path.expanduser(word))  # noqa: PTH111, PTH118
        return not (os.path.isfile(path) and os.access(path, os.X_OK))  # noqa: PTH113
    found = look_up(word) if word and not word.startswith("-") else ""
    if not found:
        return True
    if word in _READERS or word in _INSPECTING or word in _WRAPPERS or word == "git":
        if not is_closed(found):
            return False
        proof.programs[word] = found
        return True
    return word in _KEYWORDS or word in _BUILTINS


def _reads(name: str, arguments: list[str]) -> bool:
    """Return whether a program that is called like this only reads."""
    if name in _BUILTINS or name in _INSPECTING:
        return True
    if name == "git":
        return _git_reads(arguments)
    if name not in _READERS and name not in _WRAPPERS:
        return False
    taking = _PROGRAM_FILES.get(name)
    if taking and any(re.match(taking, argument) for argument in arguments):
        return False
    listing = _LISTING.get(name)
    return not listing or bool(arguments and any(re.fullmatch(listing, argument) for argument in arguments[:2]))


def _git_reads(arguments: list[str]) -> bool:
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if arguments[position] in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else 1
    if position >= len(arguments):
        return True  # `git --version`
    command, others = arguments[position], arguments[position + 1 :]
    if command in ("stash", "notes", "reflog"):
        return bool(others) and others[0] in ("list", "show")
    return command in _GIT and not any(
        word.startswith(("--ext-diff", "--textconv", "--upload-pack")) for word in others
    )
