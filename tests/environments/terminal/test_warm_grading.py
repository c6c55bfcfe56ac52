"""Attacks that would earn more one way than the other: by a Python that is executed, and by a copy of a warm one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from ors_containers import Runtime, Sandbox

from .conftest import Service
from .parts import grading

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a server that is an ordinary user starts no warm Python"),
]

IS_WARM = "import sys\ndef test_a():\n    assert '-c' in sys.orig_argv\n"
#: A program of the agent, which the test starts itself, ends the next one, for which the test does not wait but looks.
POLLED = """
import subprocess, time
def test_a():
    subprocess.Popen(["bash", "/tmp/agent.sh"])
    time.sleep(0.2)
    search = subprocess.Popen(["sleep", "2"])
    while search.poll() is None:
        time.sleep(0.02)
    assert search.returncode != 0
"""
KILLER = b"while :; do for i in 1 2 3 4 5 6 7 8 9; do builtin kill -9 $(($$ + i)); done; done 2>/dev/null\n"
#: The agent started no such service, but the grader is a Python.
SEARCHED = """
import subprocess
def test_a():
    assert subprocess.run(["pgrep", "-f", "python3|trusted"]).returncode == 0
"""


async def grade(service: Service, sandbox: Sandbox, text: str, *, live: bool = False) -> grading.Verdict:
    return await grading.run_tests(sandbox, await service.toolset(), text, live=live, timeout=60)


@pytest.fixture(params=["executed", "warm"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    def none(*_: Any) -> None:
        return None

    if request.param == "executed":
        monkeypatch.setattr(grading, "WarmProgram", none)
    return request.param


async def test_neither_way_pays(service: Service, runtime: Runtime, way: str) -> None:
    async with runtime.sandbox(service.image(await service.toolset())) as sandbox:
        await sandbox.write_file("/tmp/agent.sh", KILLER)
        async with asyncio.timeout(30):
            while (await grade(service, sandbox, IS_WARM)).passed != (way == "warm"):
                pass  # the first examination starts it
        assert (await grade(service, sandbox, POLLED)).how == "killed"
        assert (await grade(service, sandbox, SEARCHED, live=True)).how == "failed"
