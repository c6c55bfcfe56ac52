"""Processes and files of a test are gone when the next test begins; those that several tests share are kept."""

from __future__ import annotations

import pytest

from .conftest import Service
from .test_grading import grade

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ALIVE = """
import os, pathlib, subprocess, tempfile, time


def alive(name):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            found.append((path / "cmdline").read_bytes().decode().split("\\0")[:2])
        except OSError:
            pass
    return any(name in words for words in found)
"""

#: Programs of the agent, and their leftovers; each is `left` to `alive`, or has recently written to `beats`.
LEAVES = {
    "a daemon": "(setsid sleep 1000 &) > /dev/null 2>&1",
    "one that ignores": "(trap '' TERM INT HUP; setsid sleep 1000 &) > /dev/null 2>&1",
    "one that is stopped": "(setsid sleep 1000 & kill -STOP $!) > /dev/null 2>&1",
    "many": "for n in 1 2 3 4 5 6 7 8; do (setsid sleep 1000 &); done > /dev/null 2>&1",
    "a first thread that ended": """
setsid python3 -c '
import ctypes, threading, time
def beat():
    while True:
        open("/home/user/beats", "a").write("x"); time.sleep(0.002)
threading.Thread(target=beat).start()
ctypes.CDLL(None).pthread_exit(None)
' > /dev/null 2>&1 &
sleep 0.3""",
    "one that moves on": """
setsid perl -e 'while (1) { fork and exit; open(F, ">>/home/user/beats"); print F "x"; close F }' > /dev/null 2>&1 &
sleep 0.2""",
    "a fork bomb": """
(setsid sh -c 'bomb() { bomb | bomb & echo x >> /home/user/beats; }; bomb' &) > /dev/null 2>&1
sleep 0.2""",
    "one that wakes the others": """
(setsid sh -c 'trap "" TERM; while :; do kill -CONT -1; echo x >> /home/user/beats; done' &) > /dev/null 2>&1
sleep 0.1""",
}


@pytest.mark.parametrize("plain", [True, pytest.param(False, marks=pytest.mark.long)], ids=["plain", "pytest"])
@pytest.mark.parametrize("what", LEAVES)
async def test_processes_of_a_test_end_before_the_next(service: Service, what: str, plain: bool) -> None:
    tests = f"""{_ALIVE}
def test_one({"" if plain else "tmp_path"}):
    subprocess.run(["sh", "/home/user/program"], check=True)


def test_two():
    assert not alive("sleep")
    beats = pathlib.Path("/home/user/beats")
    before = beats.stat().st_size if beats.exists() else 0
    time.sleep(0.2)
    assert before == (beats.stat().st_size if beats.exists() else 0)
"""
    verdict = await grade(service, tests, f"cat > program <<'END'\n{LEAVES[what]}\nEND")
    assert verdict.passed, verdict


SHARED = {
    "of the module": """
SERVER = subprocess.Popen(["sleep", "1000"])
FOLDER = tempfile.mkdtemp()


def test_one(): subprocess.run(["true"])
def test_two(): subprocess.run(["true"]); assert alive("1000") and os.path.isdir(FOLDER)
""",
    "of the module, made by a test": """
server = None
made = {}


def test_one():
    global server
    server = subprocess.Popen(["sleep", "1000"])
    made["folder"] = tempfile.mkdtemp()


def test_two(): subprocess.run(["true"]); assert alive("1000") and os.path.isdir(made["folder"])
""",
    "a fixture of the module": """
import pytest


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    # It leaves its parent: known by what it has, not by where it comes from.
    subprocess.run(["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 &"])
    while not alive("1000"):  # between fork and exec it still has the shell's arguments
        time.sleep(0.001)
    folder = tmp_path_factory.mktemp("shared")
    (folder / "file").write_text("x")
    yield folder


def test_one(shared): subprocess.run(["true"])
def test_two(shared, tmp_path): subprocess.run(["true"]); assert alive("1000") and (shared / "file").read_text() == "x"
def test_three(shared): assert alive("1000") and (shared / "file").exists()
""",
    "of a class of unittest": """
import unittest


class TestIt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen(["sleep", "1000"])

    def test_one(self): subprocess.run(["true"])
    def test_two(self): subprocess.run(["true"]); assert alive("1000")
""",
    "a copy of the tests' process": """
def serve():
    process = os.fork()
    if process == 0:
        time.sleep(1000)
    return process


COPY = serve()


def test_one(): subprocess.run(["true"])
def test_two(): os.kill(COPY, 0); assert open(f"/proc/{COPY}/stat").read().split()[2] != "Z"
""",
}


@pytest.mark.parametrize("what", SHARED)
async def test_programs_that_tests_share_go_on(service: Service, what: str) -> None:
    verdict = await grade(service, _ALIVE + SHARED[what])
    assert verdict.passed, verdict


async def test_services_outlive_the_tests_of_a_live_examination(service: Service) -> None:
    tests = f"""{_ALIVE}
def test_one(): subprocess.run(["sh", "-c", "(setsid sleep 1000 &) > /dev/null 2>&1"])
def test_two(): assert alive("2000") and not alive("1000")
"""
    verdict = await grade(service, tests, "setsid sleep 2000 &", live=True)
    assert verdict.passed, verdict


async def test_temporary_files_of_a_test_are_gone_in_the_next(service: Service) -> None:
    for plain in (True, False):
        tests = f"""{_ALIVE}
import stat


def all_there_is():
    found = pathlib.Path("/.examination").rglob("*")
    return [path for path in found if path.suffix not in (".py", ".pyc")]


BEFORE = all_there_is()


def test_one({"" if plain else "tmp_path"}):
    folder = tempfile.mkdtemp()
    pathlib.Path(folder, "deep").mkdir()
    pathlib.Path(folder, "deep", "expected").write_text("42")
    os.chmod(folder + "/deep", 0)
    os.chmod(folder, 0)
    os.symlink("/home/user", "/.examination/link")
    {"" if plain else '(tmp_path / "expected").write_text("42")'}
    assert len(all_there_is()) > len(BEFORE)


def test_two():
    assert all_there_is() == BEFORE
    assert os.path.isdir("/home/user")
"""
        verdict = await grade(service, tests)
        assert verdict.passed, verdict
