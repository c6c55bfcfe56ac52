"""Commands that are proven to read only, and commands that are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ors_containers.graders.python_commands import ignores_folder, pythons_ignore_folder
from ors_containers.graders.read_only_commands import prove, shell_text
from ors_containers.graders.unchanged_places import is_unchanged

HOME = "/tmp"


def proven(*words: str) -> bool:
    path = shutil.which(words[0]) or words[0]
    return prove(path, words, HOME, lambda name: shutil.which(name) or "") is not None


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system's programs be another user's, as they are in a sandbox."""

    def is_the_systems(path: str) -> bool:
        return not path.startswith("/tmp")

    monkeypatch.setattr("ors_containers.graders.read_only_commands.is_unchanged", is_the_systems)
    monkeypatch.setattr("ors_containers.graders.read_only_commands.is_root", lambda: False)


READS = (
    ["cat", "/etc/passwd"],
    ["grep", "-rn", "make", "/home"],
    ["git", "-C", "/x", "-c", "a.b=c", "log", "-p"],
    ["git", "--version"],
    ["find", "/x", "-name", "*.py", "-exec", "grep", "-l", "x", "{}", "+"],
    ["timeout", "5", "cat", "x"],
    ["python3", "-c", "import json, os; print(json.load(open('x')))"],
    ["python3", "-m", "json.tool", "x"],
    ["sh", "-c", "cat x | grep -c 'a b' > y; test -f x && echo yes"],
    ["bash", "-c", "for f in a b; do cat $f; done"],
    ["sh", "-c", "LC_ALL=C sort x | uniq -c | head -n 3"],
    ["sh", "-c", "cd /x && git log --oneline | wc -l"],
    ["unzip", "-l", "x.zip"],
    ["sqlite3", "x.db", "select 1"],
    ["awk", "{print $1}", "x"],
    ["ps", "aux"],
    ["ss", "-ltn"],
    ["sh", "-c", "sed -n 2p -- *"],
    ["sh", "-c", "for f in a b; do wc -l $f; done"],
    ["sh", "-c", "find x -type f | xargs wc -l"],
    ["sh", "-c", "echo 'select 1' > y; sqlite3 x.db 'select 1;'"],
    ["bash", "-c", "[ $HOME = /root ]"],
    ["dash", "-c", "read x < y; [ $x -eq 1 ]"],
)
EXECUTES = (
    ["bash", "x.sh"],
    ["bash"],
    ["sh", "-c", "./x"],
    ["sh", "-c", "$x"],
    ["sh", "-c", "*"],
    ["sh", "-c", "eval x"],
    ["sh", "-c", ". ./x"],
    ["sh", "-c", "source x"],
    ["sh", "-c", "cat x | sh"],
    ["sh", "-c", "cat `./x`"],
    ["sh", "-c", 'cat "$(./x)"'],
    ["sh", "-c", "PATH=/tmp cat x"],
    ["sh", "-c", "LD_PRELOAD=./x cat x"],
    ["sh", "-c", "GIT_SSH=./x git log"],
    ["sh", "-c", "cat <<x\n$(./x)\nx"],
    ["sh", "-c", "true; exec ./x"],
    ["sh", "-c", "c\\at x"],
    ["sh", "-c", "echo x | xargs sh -c"],
    ["sh", "-c", "f() { ./x; }; f"],
    ["sh", "-c", "trap ./x EXIT"],
    ["sh", "-c", "command ./x"],
    ["sh", "-c", "find . -exec python3 {} +"],
    ["sh", "-lc", "cat x"],
    ["sh", "-c", "lsof | xargs cat"],
    ["python3", "x.py"],
    ["python3", "-"],
    ["python3"],
    ["python3", "-m", "unittest"],
    ["python3", "-m", "x"],
    ["python3", "-c", "import x"],
    ["python3", "-c", "exec(open('x').read())"],
    ["python3", "-c", "__import__('x')"],
    ["python3", "-c", "import importlib; importlib.import_module('x')"],
    ["python3", "-c", "import pickle; pickle.load(open('x', 'rb'))"],
    ["python3", "-c", "import sys; sys.path.insert(0, '.'); import json"],
    ["python3", "-c", "import os.path, subprocess"],
    ["git", "clone", "x", "y"],
    ["git", "commit", "-m", "x"],
    ["git", "-C", "x", "fetch"],
    ["git", "submodule", "status"],
    ["git", "log", "--ext-diff"],
    ["git", "bisect", "run", "x"],
    ["find", "x", "-exec", "sh", "{}", ";"],
    ["xargs", "make"],
    ["env", "-S", "x"],
    ["env", "A=b", "cat"],
    ["timeout", "5", "bash", "x"],
    ["tar", "-tzf", "x.tar.gz"],
    ["tar", "tf", "x.tar"],
    ["tar", "-xf", "x.tar"],
    ["diff3", "x", "y", "z"],
    ["tar", "--to-command=x", "-xf", "x.tar"],
    ["awk", "-f", "x.awk"],
    ["sed", "-nf", "x.sed"],
    ["sqlite3", "x.db", ".read x"],
    ["jq", "-f", "x.jq", "y"],
    ["curl", "-K", "x"],
    ["make"],
    ["perl", "-ne", "print"],
    ["node", "x.js"],
    # A file's name may be an option, which names a program.
    ["sh", "-c", "sed -n 2p *"],
    ["sh", "-c", "sort x ?*"],
    ["sh", "-c", "cat x; file [ab]*"],
    ["sh", "-c", "for f in *; do sed -n 2p $f; done"],
    ["sh", "-c", 'for f in *; do sed -n 2p "$f"; done'],
    ["sh", "-c", "ls | while read f; do jq . $f; done"],
    ["sh", "-c", "ls x | xargs sed -n 2p"],
    ["sh", "-c", "ls x | xargs -I{} git log {}"],
    ["sh", "-c", "ls x | xargs env"],
    ["xargs", "find"],
    # SQLite executes commands of its input where no argument is a statement.
    ["sh", "-c", "cat x | sqlite3 x.db"],
    ["sh", "-c", "sqlite3 x.db < y"],
    ["timeout", "5", "sqlite3", "x.db"],
    ["timeout", "5", "sqlite3", "-readonly", "x.db"],
    # A shell with arrays evaluates a number, in which the index of an array may be a command.
    ["bash", "-c", "read x < y; [[ $x -eq 1 ]]"],
    ["bash", "-c", "[[ $(cat x) -eq 1 ]]"],
    ["bash", "-c", "for f in *; do test $f -gt 3; done"],
    ["bash", "-c", "read x < y; echo ${z[x]}"],
    ["bash", "-c", "read x < y; echo ${z:x}"],
    ["bash", "-c", "for f in *; do unset $f; done"],
    ["bash", "-c", "for f in *; do printf -v $f x; done"],
    ["bash", "-c", "for f in *; do read $f; done"],
)


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_command_that_reads_is_proven(words: list[str]) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is missing")
    assert proven(*words)


@pytest.mark.parametrize("words", EXECUTES, ids=lambda words: " ".join(words).replace("\n", " "))
def test_a_command_that_may_execute_something_is_not(words: list[str]) -> None:
    assert not proven(*words)


@pytest.mark.parametrize(
    "words", [["python3", "-c", "import json"], ["curl", "http://x"], ["sh", "-c", "curl http://x | cat"]], ids=" ".join
)
def test_what_takes_code_from_roots_places_does_not_only_read_for_root(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is missing")
    assert proven(*words)
    monkeypatch.setattr("ors_containers.graders.read_only_commands.is_root", lambda: True)
    assert not proven(*words)
    assert proven("cat", "x")


def test_a_link_to_a_program_of_the_system_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_foreign(path: str) -> bool:
        return not path.startswith(str(tmp_path))

    monkeypatch.setattr("ors_containers.graders.unchanged_places._is_foreign", is_foreign)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    (tmp_path / "cat").symlink_to("/bin/cat")
    (tmp_path / "folder").symlink_to("/bin")
    assert is_unchanged("/bin/cat")
    assert not is_unchanged(str(tmp_path / "cat"))
    assert not is_unchanged(str(tmp_path / "folder" / "cat"))
    assert not is_unchanged("/nowhere/../" + str(tmp_path / "cat"))


@pytest.mark.parametrize(
    ("text", "ignores"),
    [("import json", True), ("import json, subprocess", True), ("import app", False), ("x = __import__('app')", False)],
)
def test_a_python_imports_from_its_folder_only_what_is_not_the_librarys(text: str, ignores: bool) -> None:
    assert ignores_folder(["-c", text]) == ignores
    assert ignores_folder(["-B", f"-c{text}"]) == ignores
    assert pythons_ignore_folder(["timeout", "5", "python3", "-c", text], None) == ignores


def test_pythons_of_a_shell_are_found() -> None:
    def ignore(text: str) -> bool:
        words = ["sh", "-c", text]
        found = shell_text(words)
        assert found == (1, text)
        return pythons_ignore_folder(words, text)

    assert ignore("cd x && python3 -m json.tool y | cat")
    assert not ignore("python3 -m json.tool y; python3 app.py")
    assert not ignore("cat x")
