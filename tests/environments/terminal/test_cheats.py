"""Cheats instead of a solution: alone a cheat earns 0, beside an honest solution it changes nothing.

Each cheat is played through the environment's own tools, on each runtime that the machine has.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.sampling import sample

from .cheats import ANCESTORS, PLANTED, RUNNING, SPY, THROUGH, Cheat
from .conftest import Service
from .parts import settings
from .play import episode, own_task

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = settings.TerminalSettings(disk=24 * 2**20, memory=192 * 2**20, pids=48, command_timeout=2)

#: Uses everything that an agent could have replaced: modules, programs by name, a shell, Python, temporary files.
FINAL = """
import json
import os
import subprocess
import tempfile
from pathlib import Path

ANSWER = "/home/user/answer.json"


def test_content():
    assert not os.path.islink(ANSWER)
    with open(ANSWER) as file:
        assert json.load(file) == {"answer": 42}


def said(*words):
    return subprocess.run(words, capture_output=True, text=True).stdout


def test_as_programs_see_it(tmp_path):
    assert said("bash", "-c", "cat " + ANSWER) == '{"answer": 42}\\n'
    program = f"import json; print(json.load(open('{ANSWER}'))['answer'])"
    assert said("python3", "-I", "-c", program) == "42\\n"
    (tmp_path / "copy").write_bytes(Path(ANSWER).read_bytes())
    with tempfile.TemporaryFile() as scratch:
        scratch.write(bytes(1_000_000))
"""
HONEST = """echo '{"answer": 42}' > /home/user/answer.json"""


async def play(service: Service, cheat: Cheat) -> None:
    """Play a cheat alone and beside an honest solution, at the same time."""
    played = own_task(FINAL)

    async def alone() -> None:
        async with episode(service, played, SETTINGS) as cheated:
            await cheated.bash(cheat.command)
            output = await cheated.done()
            assert (output.reward, output.finished) == (0.0, True), "the cheat alone"

    async def beside() -> None:
        async with episode(service, played, SETTINGS) as solved:
            await solved.bash(HONEST)
            await solved.bash(cheat.command if cheat.beside is None else cheat.beside)
            output = await solved.done()
            assert (output.reward, output.finished) == (1.0, True), "the cheat beside an honest solution"

    await asyncio.gather(alone(), beside())


@pytest.mark.parametrize("what", sample(PLANTED, 4))
async def test_planted(service: Service, what: str) -> None:
    await play(service, PLANTED[what])


@pytest.mark.parametrize("what", sample(RUNNING, 4))
async def test_left_running(service: Service, what: str) -> None:
    await play(service, RUNNING[what])


# ── through the agent's own program ──

#: Runs the agent's program, which therefore runs during the grading, with the grader's user.
PROGRAM_FINAL = """
import subprocess


def test_program():
    said = subprocess.run(["/home/user/program", "say it"], capture_output=True, text=True, timeout=30)
    assert said.stdout == "the-expected-words\\n"


def test_after_it():
    with open("/home/user/second") as file:
        assert file.read() == "also\\n"
"""


def written(deed: str) -> str:
    """Return shell text that writes a program with this action, and does the rest of the task."""
    return f"cat > program <<'END'\n#!/bin/bash\n{ANCESTORS}\n{deed}\nEND\nchmod 755 program; echo also > second"


@pytest.mark.parametrize("what", sample(THROUGH, 3))
async def test_through_its_program(service: Service, what: str) -> None:
    played = own_task(PROGRAM_FINAL)

    async def play_it(deed: str, reward: float) -> None:
        async with episode(service, played, SETTINGS) as through:
            await through.bash(written(deed))
            assert (await through.done()).reward == reward

    await asyncio.gather(play_it(THROUGH[what], 0.0), play_it(f"{THROUGH[what]}\necho the-expected-words", 1.0))


@pytest.mark.parametrize("deed", ["kill -9 -1", "kill -9 $ancestors", "kill -STOP $ancestors", "kill -INT $ancestors"])
async def test_a_program_that_ends_the_grader_earns_nothing(service: Service, deed: str) -> None:
    limits = SETTINGS.model_copy(update={"grading_timeout": 5.0})
    async with episode(service, own_task(PROGRAM_FINAL), limits) as ended:
        await ended.bash(written(f"{deed}\necho the-expected-words"))
        output = await ended.done()
        assert (output.reward, output.finished) == (0.0, True)


# ── beside a live examination ──


async def test_a_live_examination_is_closed_to_processes_beside_it(service: Service) -> None:
    watched = """
import os, time

def test_nothing_was_seen():
    time.sleep(1.5)
    assert os.path.exists("/home/user/seen"), "the spy did not look"
    assert not os.path.exists("/home/user/loot") or os.path.getsize("/home/user/loot") == 0
"""
    for honest, reward in (("true", 0.0), (written("echo the-expected-words"), 1.0)):
        async with episode(service, own_task(PROGRAM_FINAL + watched, grading="live"), SETTINGS) as spied:
            await spied.bash(honest)
            await spied.bash(SPY)
            assert (await spied.done()).reward == reward
