"""Capabilities of a grader's programs: each has half of the grader's, and no program has all of another's."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ors_containers import EXAMINATION, Runtime, RuntimeUnavailable
from ors_containers.graders.portable_python import Toolset, python_toolset
from ors_containers.linux.syscalls import GROUPS, SHIELD

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNTIMES = ("bubblewrap", pytest.param("apptainer", marks=pytest.mark.long))

#: Starts programs in every way there is, also from two threads, and prints the capabilities of each.
PROGRAM = """
import sys
sys.path.insert(0, "/.grader/packages")
import process_isolation
process_isolation.up()
import json, multiprocessing, os, pty, subprocess, threading

SHOW = ["/bin/sh", "-c", "echo $(grep -h Cap /proc/self/status | tr -d '\\\\n\\\\t ')-$(od -An -v -td8 /proc/self/auxv"
        " | tr -s ' ' | grep '^ 23 ' | cut -d ' ' -f 3)"]
os.environ["SHOW"] = SHOW[2]
said = []


def run():
    said.append(subprocess.run(SHOW, capture_output=True, text=True, env={}).stdout)


for _ in range(3):
    run()
thread = threading.Thread(target=run)
thread.start()
thread.join()
reading, writing = os.pipe()
os.set_inheritable(writing, True)
os.waitpid(os.posix_spawn(SHOW[0], SHOW, {}, file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)]), 0)
said.append(os.read(reading, 4096).decode())
child = os.fork()
if child == 0:
    os.dup2(writing, 1)
    os.execv(SHOW[0], SHOW)
os.waitpid(child, 0)
said.append(os.read(reading, 4096).decode())
os.dup2(1, 9)
os.dup2(writing, 1)
os.system('exec /bin/sh -c "$SHOW"')
os.dup2(9, 1)
said.append(os.read(reading, 4096).decode())
# A copy of this process and the process itself have programs beside each other.
child = os.fork()
if child == 0:
    os.write(writing, subprocess.run(SHOW, capture_output=True).stdout)
    os._exit(0)
os.waitpid(child, 0)
said.append(os.read(reading, 4096).decode())
run()
print(json.dumps([said, open("/proc/self/status").read()]))
"""


@pytest.fixture(scope="module")
def toolset() -> Iterator[Toolset]:
    with tempfile.TemporaryDirectory(prefix="ors-toolset-") as directory:
        Path(directory).chmod(0o755)
        try:
            yield asyncio.run(python_toolset(Path(directory)))
        except RuntimeUnavailable as error:
            pytest.skip(str(error))


async def examined(runtime: Runtime, toolset: Toolset, program: str, **changes: Any) -> Any:
    image = runtime.host_image()
    image = dataclasses.replace(image, binds=(*image.binds, toolset.bind), **changes)
    async with runtime.sandbox(image) as sandbox:
        result = await sandbox.examine(
            [*toolset.command, "-I", "-S", "-B", f"{EXAMINATION}/program.py"],
            files={"program.py": program.encode()},
            timeout=30,
        )
        assert result.exit_status == 0, result
        return json.loads(result.output)


@pytest.mark.parametrize("user", [1000, 0])
async def test_no_program_has_what_another_has(runtime: Runtime, toolset: Toolset, user: int) -> None:
    said, own = await examined(runtime, toolset, PROGRAM, **({} if user else {"user": 0, "group": 0}))
    every = sum(1 << number for number in SHIELD)
    assert f"CapPrm:\t{every | 1 << GROUPS:016x}" in own
    halves: list[int] = []
    for line in said:
        capabilities, _, secure = line.strip().partition("-")
        fields = dict(part.split(":") for part in capabilities.replace("Cap", " Cap").split())
        permitted = int(fields["CapPrm"], 16)
        assert permitted == int(fields["CapEff"], 16) == int(fields["CapAmb"], 16), line
        assert int(fields["CapBnd"], 16) == 0
        assert secure == "0", "the loader would ignore variables"
        assert permitted & ~every == 0
        assert permitted.bit_count() == len(SHIELD) // 2
        halves.append(permitted)
    assert len(halves) == 9
    assert all(one & other not in (one, other) for one, other in itertools.combinations(halves, 2))


async def test_the_number_of_programs_is_limited(runtime: Runtime, toolset: Toolset) -> None:
    program = """
import sys
sys.path.insert(0, "/.grader/packages")
import json, os, process_isolation
up = process_isolation.up()
os.lseek(up._numbers, -2, os.SEEK_END)
first = os.system("true")
try:
    os.system("true")
except process_isolation.TooManyPrograms as error:
    print(json.dumps([first, up.exhausted, str(error)]))
"""
    assert await examined(runtime, toolset, program) == [0, True, "more than 3432 programs were started"]
