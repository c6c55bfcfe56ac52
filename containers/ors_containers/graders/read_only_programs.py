"""Programs that only read, and how each has to be called for that.

Runs in the sandbox, on the standard library alone: it is one of the packages of the toolset
(``import read_only_programs``).

A list, because no rule tells what a program does with its arguments. What it lacks costs a program its privileges, and
never gives privileges to a program of the agent (``read_only_commands``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

__all__ = [
    "EXECUTING",
    "INSPECTING",
    "LISTING",
    "LOADING",
    "PROGRAM_FILES",
    "READERS",
    "WRAPPERS",
    "named",
    "only_reads",
    "takes_commands",
]


def named(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


#: Programs that print what they read, and execute nothing unless their arguments or a configuration name it. Not tar,
#: which executes a shell to unpack, nor sdiff and diff3, which execute diff.
READERS = named("""
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
INSPECTING = frozenset(("fuser", "killall", "lsof", "netstat", "pidof", "pkill", "pstree", "ss", "top"))
#: Readers that load libraries which a configuration of the system names: for a Python the same holds of its modules.
LOADING = frozenset(("curl", "dig", "host", "nslookup", "wget"))
#: Readers that execute what an argument names.
EXECUTING = frozenset(("env", "find", "nice", "nohup", "sort", "stdbuf", "time", "timeout", "xargs"))
WRAPPERS = frozenset(("env", "nice", "nohup", "stdbuf", "timeout", "xargs"))
_GIT = named("""
    annotate blame branch cat-file check-attr check-ignore check-ref-format cherry config count-objects describe
    diff diff-files diff-index diff-tree for-each-ref fsck grep log ls-files ls-tree merge-base name-rev notes
    reflog rev-list rev-parse shortlog show show-branch show-ref stash status symbolic-ref tag var verify-pack
    version whatchanged
    """)
#: Arguments by which a reader takes a program, or a configuration, from a file.
PROGRAM_FILES = {
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
    PROGRAM_FILES[_name] = PROGRAM_FILES["awk"]
#: Readers that may also unpack: only what lists or prints.
LISTING = {
    "cpio": r"-{0,2}[a-zA-Z]*t[a-zA-Z]*|--list",
    "ar": r"-?[tp][a-zA-Z]*",
    "unzip": r"-[a-zA-Z]*[lptvzZ][a-zA-Z0-9]*",
}


def only_reads(name: str, arguments: list[str]) -> bool:
    """Return whether a program that is called like this only reads."""
    if name in INSPECTING:
        return True
    if name == "git":
        return _git_reads(arguments)
    if name not in READERS and name not in WRAPPERS:
        return False
    taking = PROGRAM_FILES.get(name)
    if taking and any(re.match(taking, argument) for argument in arguments):
        return False
    listing = LISTING.get(name)
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


def takes_commands(name: str, arguments: Sequence[str]) -> bool:
    """Return whether a program of a line reads commands from its input: an SQLite without a statement."""
    return name == "sqlite3" and not any(
        not before.startswith("-") and (re.search(r"\s|;", word) or re.match(r"\.[a-z]+$", word))
        for before, word in itertools.pairwise(arguments)
    )
