"""A preparation that is killed: the next one goes on where it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from .folders import tasks_command
from .harbor_folders import write_harbor_folder

#: The script of the tests connects to the test, which answers it or lets it wait.
TESTS = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port} && read -r line <&3
grep -qx 42 /app/answer.txt && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
"""


def stages(output: str) -> list[str]:
    """Return the stages that a command reported, in their order."""
    return [line.split(": ")[1].split(",")[0] for line in output.splitlines() if line.startswith("0/1 waits: ")]


@pytest.mark.long
def test_a_killed_preparation_goes_on_where_it_was(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        files = {
            "environment/Dockerfile": "FROM host\nWORKDIR /app\n",
            "tests/test.sh": TESTS.format(port=server.getsockname()[1]),
        }
        folder = write_harbor_folder(tmp_path / "tasks", "waits", files)
        command, environment = tasks_command(tmp_path / "images", "prepare", folder)
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0
        ) as killed:
            with server.accept()[0]:
                os.killpg(killed.pid, signal.SIGKILL)
            assert killed.stderr is not None
            assert stages(killed.stderr.read()) == ["image holds"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as second:
            with server.accept()[0] as asked:
                asked.sendall(b"go on\n")
            _, said = second.communicate()
        assert second.returncode == 0, said
        assert stages(said) == [f"{stage} holds" for stage in ("fetch", "seal", "nothing", "oracle", "cheat")]
        third = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert stages(third.stderr) == []
    assert not list((tmp_path / "images" / "tmp").iterdir())
