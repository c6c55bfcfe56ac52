"""Tries to turn a reward 0 into an infrastructure failure: what an agent does to its sandbox is not the machine's.

Each try leaves the task unsolved. Beside each, a process outside of the sandbox keeps half of the machine busy.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

from .conftest import Service
from .parts import settings
from .play import episode, own_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: The file is read as sound tests read one.
TESTS = """
from pathlib import Path

def test_answer():
    assert Path("/home/user/answer.txt").read_text() == "42"
"""

_WAKERS = r"""
import os, threading, time
def wake():
    while True:
        time.sleep(0.5 - time.time() % 0.5)
        end = time.thread_time() + 0.001
        while time.thread_time() < end: pass
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for _ in range(200): threading.Thread(target=wake).start()
"""
_LOCKS = r"""
import fcntl, time
file = open("/home/user/locked", "w+")
file.truncate(100000)
for number in range(20000): fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * number)
time.sleep(1000)
"""
_MEMORY = 'python3 -c "x = bytearray(4 << 30)"'
_DEEP = r"""
import os
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
"""


def _python(text: str) -> str:
    return f"cat > /tmp/try.py <<'END'\n{text}\nEND\npython3 /tmp/try.py"


TRIES = {
    "200 busy processes": "for i in $(seq 200); do (while :; do :; done) & done",
    "200 busy processes in front": "for i in $(seq 200); do (while :; do :; done) & done; wait",
    "a fork bomb": ":() { : | : & }; :",
    "processes that end": "(while :; do (exec /bin/true) & done) &",
    "all on one processor": "for i in $(seq 60); do taskset -c 0 sh -c 'while :; do :; done' & done",
    "low priority": "for i in $(seq 9); do nice -n 19 chrt -i 0 sh -c 'while :; do :; done' & done; wait",
    "threads that wake together": _python(_WAKERS) + " &",
    "threads that wake together in front": _python(_WAKERS),
    "memory": f"{_MEMORY}; for i in 1 2 3 4; do {_MEMORY} & done",
    "files instead of memory": "cat /dev/zero > zero; cat /dev/zero > /dev/shm/zero",
    "inodes": "mkdir many; cd many; seq 100000 | xargs touch",
    "process ids": "for i in $(seq 400); do sleep 1000 & done",
    "locks": _python(_LOCKS) + " &",
    "a flood of output": "yes & yes & cat /dev/zero &",
    "a pipe without a writer": "mkfifo answer.txt",
    "a pipe with a writer that sleeps": "mkfifo answer.txt; sleep 1000 > answer.txt &",
    "a file without an end": "ln -s /dev/zero answer.txt",
    "a terminal": "ln -s /dev/tty answer.txt",
    "a loop of links": "ln -s answer.txt answer.txt",
    "a large file": "truncate -s 400M answer.txt",
    "a file that cannot be read": "echo 42 > answer.txt; chmod 0 answer.txt",
    "a folder instead of a file": "mkdir answer.txt",
    "a home that cannot be searched": "chmod 0 /home/user",
    "a home that is gone": "cd /; rm -rf /home/user; ln -s /proc/self /home/user",
    "a deep folder": _python(_DEEP),
    "a shell that is replaced": "exec sleep 1000",
    "a shell that is killed": "kill -9 $$",
    "a killer of shells": "setsid sh -c 'while :; do pkill -9 bash; done' &",
    "everything stopped": "setsid python3 -c 'import os\nwhile True: os.kill(-1, 19)' &",
    "signals that are ignored": "trap '' INT TERM HUP; while :; do sleep 1000; done",
}
#: Those that run without ``-m long``.
SAMPLE = ("200 busy processes", "threads that wake together", "a pipe without a writer", "a killer of shells")


@pytest.fixture(autouse=True, scope="module")
def _busy_machine() -> Generator[None]:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    burner = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)
    with contextlib.ExitStack() as ending:
        ending.callback(burner.wait)
        ending.callback(burner.kill)
        yield


def _tries() -> Generator[Any]:
    for name, command in TRIES.items():
        for live in (False, True):
            marks = () if name in SAMPLE and live else pytest.mark.long
            yield pytest.param(command, live, id=f"{name}, {'live' if live else 'frozen'}", marks=marks)


@pytest.mark.parametrize(("command", "live"), list(_tries()))
async def test_no_try_is_an_infrastructure_failure(service: Service, command: str, live: bool) -> None:
    played = own_task(TESTS, grading="live" if live else "frozen")
    limits = settings.TerminalSettings(command_timeout=1.5, grading_timeout=8, cpu=0.5)
    async with episode(service, played, limits) as agent:
        await agent.bash(command)
        output = await agent.done()
    assert output.finished
    assert output.reward == 0.0


async def test_a_solved_episode_beside_is_paid(service: Service) -> None:
    """The tests above fail for their tries alone."""
    async with episode(service, own_task(TESTS), settings.TerminalSettings(command_timeout=1.5)) as agent:
        await agent.bash("printf 42 > answer.txt")
        assert (await agent.done()).reward == 1.0
