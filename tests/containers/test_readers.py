"""Commands that are proven to read only, and commands that are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ors_containers.graders.closed_places import is_closed
from ors_containers.graders.python_commands import ignores_folder, pythons_ignore_folder
from ors_containers.graders.readers import prove, shell_text

HOME = "/tmp"


def proven(*words: str) -> bool:
    path = shutil.which(words[0]) or words[0]
    return prove(path, words, HOME, lambda name: shutil.which(name) or "") is not None


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system's programs be another user's, as they are in a sandbox."""

    def is_the_systems(path: str) -> bool:
        return not path.startswith("/tmp")

    monkeypatch.setattr("ors_containers.graders.readers.is_closed", is_the_systems)


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
)


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_a_command_that_reads_is_proven(words: list[str]) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is missing")
    assert proven(*words)


@pytest.mark.parametrize("words", EXECUTES, ids=lambda words: " ".join(words).replace("\n", " "))
def test_a_command_that_may_execute_something_is_not(words: list[str]) -> None:
    assert not proven(*words)


def test_a_link_to_a_program_of_the_system_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_foreign(path: str) -> bool:
        return not path.startswith(str(tmp_path))

    monkeypatch.setattr("ors_containers.graders.closed_places._is_foreign", is_foreign)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    (tmp_path / "cat").symlink_to("/bin/cat")
    (tmp_path / "folder").symlink_to("/bin")
    assert is_closed("/bin/cat")
    assert not is_closed(str(tmp_path / "cat"))
    assert not is_closed(str(tmp_path / "folder" / "cat"))
    assert not is_closed("/nowhere/../" + str(tmp_path / "cat"))


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
