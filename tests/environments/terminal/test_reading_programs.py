"""Programs of tests that are given a place of the agent, from the tests' text and from a run."""

from __future__ import annotations

import pytest

from .conftest import Service
from .parts import grading, reading_programs
from .test_grading import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

TESTS = """
import os
import subprocess as sp
from pathlib import Path
from subprocess import check_output

HOME = Path("/home/user")
REPO = HOME / "repo"

def git(*words):
    return sp.run(["git", "-C", str(REPO), *words], capture_output=True).stdout

def run(command):
    return os.popen(command).read()

def lines():
    return run("sort ~/answer")

def test_git():
    git("log")

def test_shell():
    lines()
    sp.run(f"cat {HOME}/answer | wc -l", shell=True)

def test_folder():
    check_output(["make", "all"], cwd="/home/user/app")

class TestB:
    def test_own(self):
        sp.run(["/home/user/app/run.sh", "x"])

def test_none():
    sp.run(["true", "/etc/passwd"])
    open("/home/user/answer")
"""
ROWS = {
    ("test_git", "git", ("/home/user/repo",), False),
    ("test_shell", "cat", ("/home/user/answer",), False),
    ("test_shell", "sort", ("~/answer",), False),
    ("test_folder", "make", ("/home/user/app",), False),
    ("test_own", "/home/user/app/run.sh", (), True),
}


async def test_the_text_names_programs_and_places() -> None:
    found = {
        (row.test, row.program, row.places, row.agents)
        for row in reading_programs.reading_programs(TESTS, "/home/user")
    }
    assert found == ROWS
    assert reading_programs.reading_programs("def (", "/home/user") == []


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "pytest"])
async def test_a_run_names_them_too(service: Service, plain: bool) -> None:
    tests = (
        "import subprocess\nsubprocess.run(['true', '/home/user/early'])\n" if not plain else "import subprocess\n"
    ) + (
        "def place(): return '/home/' + ''.join(['us', 'er', '/answer'])\n"
        "def test_a(): assert subprocess.run(['grep', '-c', '4', place()]).returncode == 0\n"
        "def test_b(): assert subprocess.run('cat < answer', shell=True, cwd='/home/user').returncode == 0\n"
        "def test_c(): subprocess.run(['cat', '/etc/passwd'])\n"
    )
    sandbox = await opened(service)
    try:
        await sandbox.run("echo 42 > /home/user/answer; touch /home/user/early", timeout=10)
        verdict = await grading.run_tests(sandbox, await service.toolset(), tests, live=False, timeout=60, record=True)
    finally:
        await sandbox.stop()
    assert verdict.passed, verdict
    static = reading_programs.reading_programs(tests, "/home/user")
    rows = reading_programs.merged(static, verdict.programs, "/home/user")
    found = {(row.test, row.program.rpartition("/")[2], row.places) for row in rows if row.seen}
    expected = {("test_a", "grep", ("/home/user/answer",)), ("test_b", "sh", ("/home/user", "answer"))}
    assert found == expected | (set() if plain else {("", "true", ("/home/user/early",))})
    assert all(row.seen for row in rows)
