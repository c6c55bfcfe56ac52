"""No process of a server uses a descriptor that is closed: another thread may have opened a file under its number."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.compat.real_clients.clients import connected
from tests.support.servers import running
from tests.support.waiting import until

from .folders import SOLUTION, write_folder
from .test_clients import play

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("isolated")]


#: bash closes without looking, but has one thread. This shows that strace would notice others.
_CLOSE_AGAIN = "exec 99>&-"


@pytest.mark.parametrize("workers", [(), ("--workers", "2", "--gateways", "2")], ids=["alone", "workers"])
async def test_every_descriptor_is_closed_once_and_last(tmp_path: Path, workers: tuple[str, ...]) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (apt: strace)")
    write_folder(tmp_path / "tasks", "task")
    trace = tmp_path / "trace"
    options = "-D -f --seccomp-bpf --decode-pids=comm -e trace=close,read,write,dup,ftruncate -o"
    command = ["strace", *options.split(), trace]
    command += [sys.executable, "-m", "ors_cli", "serve", "terminal", "--tasks", tmp_path / "tasks", "--port", "0"]
    # A new store: images are built in processes that the server reads by pipes.
    variables = {"ORS_IMAGES": str(tmp_path / "images"), "ORS_DATA_DIR": str(tmp_path / "data")}
    with running([*command, *workers], tmp_path / "server", variables=variables) as server:
        async with connected("openreward-async", server.url) as client:
            environment = await client.environment("terminalenvironment")
            played = await asyncio.gather(*(play(environment, "task", SOLUTION, _CLOSE_AGAIN) for _ in range(4)))
    assert played == [[None, None, 1.0]] * 4

    end = re.compile(rf"^{server.process.pid}<[^>]*> +\+\+\+ exited", re.MULTILINE)
    await until(lambda: end.search(trace.read_text()) is not None)
    closed_again = [line for line in trace.read_text().splitlines() if "EBADF" in line]
    assert [line for line in closed_again if "<bash>" not in line] == []
    assert closed_again
