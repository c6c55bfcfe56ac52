"""An agent cannot turn a reward of 0 into an infrastructure failure, and a failure that it has not caused stays one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from ors_containers import CommandResult, ExaminationFailed, Sandbox, StartFailed

from ors_server import InfrastructureFailure, ToolOutput
from tests.support.sampling import sample

from .conftest import Service
from .evading import IMPORTED, IMPORTS, RUNNING, RUNS, SPOILT, THROUGH
from .parts import failure_cause, grading, plain_tests, settings
from .play import episode, own_task
from .ways import AGENTS_DATA, PLANTED

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = settings.TerminalSettings(
    disk=32 * 2**20, memory=192 * 2**20, pids=64, command_timeout=5, grading_timeout=20
)
FROZEN = pytest.mark.parametrize("kind", ["frozen", pytest.param("live", marks=pytest.mark.long)])
LIVE = pytest.mark.parametrize("kind", ["live", pytest.param("frozen", marks=pytest.mark.long)])


async def played(service: Service, command: str, tests: str, **changes: object) -> ToolOutput:
    """Return the result of ``done`` after a command."""
    async with episode(service, own_task(tests, **changes), SETTINGS) as cheated:
        await cheated.bash(command)
        return await cheated.done()


async def see_nothing_earned(service: Service, command: str, tests: str, **changes: object) -> None:
    """Check that the reward is 0, and that no call fails."""
    result = await played(service, command, tests, **changes)
    assert (result.reward, result.finished) == (0.0, True)


@FROZEN
@pytest.mark.parametrize("what", sample(SPOILT, 12))
async def test_a_state(service: Service, what: str, kind: str) -> None:
    tests, command = SPOILT[what]
    await see_nothing_earned(service, command, tests, grading=kind)


@LIVE
@pytest.mark.parametrize("what", sample(RUNNING, 6))
async def test_processes(service: Service, what: str, kind: str) -> None:
    tests, command = RUNNING[what]
    await see_nothing_earned(service, command, tests, grading=kind)


@FROZEN
@pytest.mark.parametrize("what", sample(THROUGH, 6))
async def test_a_program_of_the_tests(service: Service, what: str, kind: str) -> None:
    command = f"printf '#!/bin/bash\\n%s\\n' '{THROUGH[what]}' > program; chmod 755 program"
    await see_nothing_earned(service, command, RUNS, grading=kind)


@pytest.mark.parametrize("permitted", ["refuse", "flag"])
@pytest.mark.parametrize("what", sample(IMPORTED, 12))
async def test_a_module_that_the_tests_import(service: Service, what: str, permitted: str) -> None:
    await see_nothing_earned(service, IMPORTED[what], IMPORTS, tests_import_code=permitted)


SPECIAL = {
    "a file": "open('/home/user/answer').read()",
    "bytes of a file": "pathlib.Path('/home/user/answer').read_bytes()",
    "a descriptor": "os.read(os.open('/home/user/answer', os.O_RDONLY), 9)",
    "a copy": "shutil.copyfile('/home/user/answer', '/tmp/copy')",
    "a file that is written": "open('/home/user/answer', 'a').write('x')",
    "a program": "subprocess.run(['cat', '/home/user/answer'])",
    "a program elsewhere": "subprocess.run(['cat', 'answer'], cwd='/home/user')",
    "a shell": "subprocess.run('sort < ~user/x; cat </home/user/answer', shell=True)",
}


@pytest.mark.parametrize("what", SPECIAL)
async def test_a_special_file_ends_a_test_at_once(service: Service, what: str) -> None:
    """It does not wait for the FIFO's writer until the time for grading is over."""
    tests = f"import os, pathlib, shutil, subprocess\ndef test_a(): assert {SPECIAL[what]} == 42"
    async with episode(service, own_task(tests), SETTINGS) as cheated:
        await cheated.bash("mkfifo answer")
        begun = time.monotonic()
        assert (await cheated.done()).reward == 0.0
        assert time.monotonic() - begun < SETTINGS.grading_timeout


async def test_tests_about_fifos_and_the_systems_devices_open_them(service: Service) -> None:
    tests = (
        "import os, subprocess, threading\ndef test_fifo():\n  os.mkfifo('/tmp/own')\n"
        "  threading.Thread(target=lambda: open('/tmp/own', 'w').write('x')).start()\n"
        "  assert open('/tmp/own').read() == 'x'\n"
        "def test_devices():\n  assert len(open('/dev/urandom', 'rb').read(9)) == 9\n"
        "  assert subprocess.run(['cat', '/dev/null', '/home/user/empty'], stdin=subprocess.DEVNULL).returncode == 0\n"
        "  assert open('/home/user/empty').read() == ''\n"
    )
    assert (await played(service, "ln -s /dev/null empty", tests)).reward == 1.0


# ── code that may run in the tests' process ──

HONEST = "echo 'def answer(): return 42' > answer.py"
SATISFIABLE = IMPORTS.replace("answer() != 42", "True")


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "pytest"])
async def test_a_permitted_import_marks_the_verdict(service: Service, plain: bool) -> None:
    own_path = 'sys.path.insert(0, "/home/user")'
    tests = SATISFIABLE.replace(own_path, "") + ("" if plain else "def test_c(tmp_path): 0\n")
    assert (plain_tests.plain_tests(tests) is not None) is plain
    solved = await played(service, HONEST, tests, tests_import_code="flag")
    assert (solved.reward, (solved.metadata or {}).get("verdict_mark")) == (1.0, grading.CODE_RAN)
    wrong = await played(service, "echo 'def answer(): return 41' > answer.py", tests, tests_import_code="flag")
    assert (wrong.reward, (wrong.metadata or {}).get("verdict_mark")) == (0.0, grading.CODE_RAN)
    refused = await played(service, HONEST, SATISFIABLE)
    assert (refused.reward, "verdict_mark" in (refused.metadata or {})) == (0.0, False)


async def test_tests_that_may_import_but_do_not_are_not_marked(service: Service) -> None:
    tests = "def test_a(): assert open('/home/user/answer').read() == '42\\n'"
    for command, reward in (("echo 42 > answer", 1.0), ("echo 41 > answer", 0.0)):
        graded = await played(service, command, tests, tests_import_code="flag")
        assert (graded.reward, "verdict_mark" in (graded.metadata or {})) == (reward, False)


#: What the agent leaves, and tests that may import code, whose first ones pass.
DOUBTED = {
    "a pickle that changes a class": (AGENTS_DATA, PLANTED["a pickle that changes a class"][0]),
    "a pickle that another process reads": (AGENTS_DATA, PLANTED["a pickle that another process reads"][0]),
    "paths of a folder for packages": (AGENTS_DATA, PLANTED["paths of a folder for packages"][0]),
    "an interruption": (
        "printf 'def answer():\\n raise KeyboardInterrupt\\n' > answer.py",
        "def test_a(tmp_path):\n  import answer\n  answer.answer()\ndef test_b(): assert 0\n",
    ),
    "an end of pytest": (
        "printf 'import pytest\\ndef answer():\\n pytest.exit(\"x\", 0)\\n' > answer.py",
        "def test_a(tmp_path):\n  import answer\n  answer.answer()\ndef test_b(): assert 0\n",
    ),
}


@pytest.mark.parametrize("what", DOUBTED)
async def test_what_was_found_counts_where_code_may_be_imported(
    service: Service, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the test that must fail is the only one that fails."""

    def at_the_beginning(places: list[int]) -> int:
        return min(places)

    left, tests = DOUBTED[what]
    monkeypatch.setattr("secrets.choice", at_the_beginning)
    graded = await played(service, left, "def test_zero(): pass\n" + tests, tests_import_code="flag")
    assert graded.reward == 0.0


# ── failures that are not the agent's ──


class Flaky:
    """A sandbox whose first examinations fail."""

    def __init__(self, sandbox: Sandbox, failures: int) -> None:
        self._sandbox = sandbox
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def examine(self, *arguments: Any, **options: Any) -> CommandResult:
        self.failures -= 1
        if self.failures >= 0:
            raise ExaminationFailed("the machine has no process left")
        return await self._sandbox.examine(*arguments, **options)


TESTS = "def test_a(): assert open('/home/user/answer').read() == '42\\n'"


@pytest.mark.parametrize(("failures", "reward"), [(1, 1.0), (2, 0.0)])
async def test_an_examination_that_fails_is_tried_again(service: Service, failures: int, reward: float) -> None:
    """An agent's state that is never examined, where the start state is, earns 0."""
    async with episode(service, own_task(TESTS, name=f"flaky {failures}"), SETTINGS) as cheated:
        await cheated.bash("echo 42 > answer")
        instance: Any = cheated.instance
        instance._sandbox = Flaky(instance._sandbox, failures)
        assert (await cheated.done()).reward == reward


async def test_a_machine_that_cannot_examine_anything_is_not_the_agent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(*_: object, **__: object) -> Sandbox:
        raise StartFailed("no process is left")

    async with episode(service, own_task(TESTS, name="failing"), SETTINGS) as cheated:
        instance: Any = cheated.instance
        instance._sandbox = Flaky(instance._sandbox, 9)
        monkeypatch.setattr(failure_cause, "episode_sandbox", failing)
        with pytest.raises(InfrastructureFailure, match="no process left"):
            await cheated.done()


async def test_the_start_state_is_examined_once_a_task(service: Service) -> None:
    # What is known of a task is known for every runtime.
    tests = (
        f"import os\nif os.path.exists('/home/user/answer'): import numpy\ndef test_{service.runtime.name}(): assert 0"
    )
    before = len(service.opened)
    results = await asyncio.gather(*(played(service, "touch answer", tests, name="once") for _ in range(4)))
    assert [result.reward for result in results] == [0.0] * 4
    assert len(service.opened) - before == 5
