"""A server of the sandbox service that is killed under 50 sandboxes leaves no process, and its clients get 410."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.support.events import Reply, parse_events
from tests.support.processes import processes
from tests.support.servers import executable, running

pytestmark = pytest.mark.long

_SANDBOXES = 50
_BODY = {"environment": "owner/Name", "image": "host", "machine_size": "0.5:0.5"}


def test_a_killed_server_leaves_nothing(tmp_path: Path) -> None:
    variables = {"ORS_SANDBOX_SERVICE": "yes", "ORS_DATA_DIR": str(tmp_path / "data")}
    command = [executable(), "serve", "echo", "--port", "0"]
    mark = f"ors-mark-{os.getpid()}"
    with running(command, tmp_path / "log", variables=variables) as server:
        sids = asyncio.run(_open_all(server.url, mark))
        deadline = time.monotonic() + 60
        while len(_marked(mark)) != _SANDBOXES:  # a shell does not wait for what it starts in the background
            assert time.monotonic() < deadline
            time.sleep(0.1)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    deadline = time.monotonic() + 20
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _marked(mark) == []
    with running(command, tmp_path / "again", variables=variables) as server:
        body = {"cmd": "true", "task_id": "0" * 32}
        response = httpx.post(f"{server.url}/run", json=body, headers={"X-Session-ID": sids[0]}, trust_env=False)
        assert response.status_code == 410


async def _open_all(url: str, mark: str) -> list[str]:
    """Create the sandboxes, each with a background process, and return their ids."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:

        async def open_one() -> str:
            reply = Reply(parse_events((await client.post("/create_sandbox", json=_BODY)).content))
            body = {"cmd": f"exec -a {mark} sleep 1000 > /dev/null & echo started"}
            await client.post("/run", json=body, headers={"X-Session-ID": reply.task_id})
            return reply.result["sid"]

        return await asyncio.gather(*(open_one() for _ in range(_SANDBOXES)))


def _marked(mark: str) -> list[int]:
    """Return the processes of this machine whose first argument is ``mark``."""
    return processes(lambda arguments: arguments.startswith(mark.encode()))
