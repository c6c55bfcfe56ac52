"""Access of tests as members of the examiners' group, to which no process of the agent belongs."""

from __future__ import annotations

import dataclasses

import pytest
from ors_containers import Limits

from .conftest import Service
from .parts import grading

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: A service that its own user may not inspect, such as `ssh-agent`.
_CLOSED = """
cat > closed.py <<'END'
import ctypes, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
time.sleep(1000)
END
printf '#!/bin/sh\\nsetsid python3 /home/user/closed.py left-behind >/dev/null 2>&1 </dev/null & sleep 0.3\\n' > program
chmod 755 program
setsid python3 closed.py of-the-agent >/dev/null 2>&1 </dev/null &
setsid sleep 1234 >/dev/null 2>&1 </dev/null &
sleep 0.3
"""
_HEAD = """
import os, pathlib, subprocess, tempfile


def said(*program):
    return subprocess.run(program, capture_output=True, text=True).stdout


def alive(name):
    return any(name in path.read_text() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"))
"""

SEES = {
    "services": """
def test_services():
    for name in ("of-the-agent", "sleep.1234"):
        assert said("pgrep", "-f", name).split()
    for shown in (said("ps", "ax"), said("sh", "-c", "ps -eo args | cat")):
        assert "of-the-agent" in shown and "sleep 1234" in shown
    assert alive("of-the-agent")
    (number,) = said("pgrep", "-f", "of-the-agent").split()
    assert os.path.isdir(f"/proc/{number}") and "python" in pathlib.Path(f"/proc/{number}/stat").read_text()
    assert subprocess.run(["pkill", "-0", "-f", "of-the-agent"]).returncode == 0
""",
    "what a program of its own has left": """
def test_one():
    subprocess.run(["/home/user/program"], check=True)
    assert said("pgrep", "-f", "left-behind").split()


def test_two():
    assert alive("of-the-agent") and not alive("left-behind")
""",
    "files of its own user and group": """
def test_files(tmp_path):
    subprocess.run(["sh", "-c", "echo > made; mkdir folder"], cwd=tmp_path, check=True)
    folder = tempfile.mkdtemp()
    pathlib.Path("/home/user/made").write_text("")
    paths = [tmp_path, tmp_path / "made", tmp_path / "folder", folder, "/home/user/made"]
    assert {(os.stat(path).st_uid, os.stat(path).st_gid) for path in paths} == {(os.getuid(), os.getgid())}
    assert said("id", "-gn") == said("stat", "-c", "%G", "/home/user/made")
    assert pathlib.Path(tempfile.gettempdir()) in tmp_path.parents
    assert subprocess.run(["groups"]).returncode == subprocess.run(["id", "-Gn"]).returncode == 0
""",
}


@pytest.mark.parametrize("root", [False, True], ids=["the user", "root"])
@pytest.mark.parametrize("what", SEES)
async def test_tests_of_a_live_examination_see_what_there_is(service: Service, what: str, root: bool) -> None:
    tools = await service.toolset()
    image = service.runtime.host_image()
    image = dataclasses.replace(image, binds=(*image.binds, tools.bind))
    if root:
        image = dataclasses.replace(image, user=0, group=0, user_name="root")
    sandbox = await service.open(image, Limits(memory=256 * 2**20, disk=64 * 2**20, pids=64))
    try:
        await sandbox.run(_CLOSED, timeout=20)
        verdict = await grading.run_tests(sandbox, tools, _HEAD + SEES[what], live=True, timeout=30)
        assert verdict.passed, verdict
        seen = await sandbox.run("ls -ld /proc/1 >/dev/null && pgrep -fc 'of-the-[a]gent'", timeout=20)
        assert seen.text.splitlines()[-1] == "1", f"what the agent sees afterwards: {seen.text}"
    finally:
        await sandbox.stop()
