"""The service of an event loop: started at first use, shared, closed with the server."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ors_containers import Sandbox, SandboxStopped, UnknownRuntime
from ors_containers.scheduling.capacity import Capacity, CapacityReader
from ors_containers.scheduling.reservations import reservations_of_node

from ors_server import Environment, Server, Settings, ToolOutput, tool
from ors_server.sandboxes import SandboxService, close_sandbox_service, hold_sandbox_service, sandbox_service
from tests.server.sandbox_service.fake import GIB, FakeMachine
from tests.support.environments import Echo, Text, said
from tests.support.http_client import Client
from tests.support.servers import running
from tests.support.waiting import until


class Shell(Echo):
    """A tool that runs a command in a sandbox of the host image."""

    sandbox: Sandbox

    async def setup(self) -> None:
        sandboxes = await sandbox_service()
        self.sandbox = await sandboxes.open(sandboxes.runtime.host_image())

    async def teardown(self) -> None:
        await self.sandbox.stop()

    @tool
    async def bash(self, params: Text) -> ToolOutput:
        return said((await self.sandbox.run(params.text, timeout=10)).text)


async def test_concurrent_requests_share_one_service(service: SandboxService) -> None:
    found = await asyncio.gather(*(sandbox_service() for _ in range(5)))
    assert all(other is service for other in found)
    assert service.runtime.describe().runtime == "bubblewrap"


async def test_an_unknown_runtime_is_reported_and_can_be_corrected() -> None:
    user = _User()
    hold_sandbox_service(user, Settings(sandbox_runtime="nothing"))
    with pytest.raises(UnknownRuntime):
        await sandbox_service()
    await close_sandbox_service(user)
    hold_sandbox_service(user, Settings())
    assert (await sandbox_service()).settings.sandbox_runtime == "bubblewrap"
    await close_sandbox_service(user)


class _User:
    pass


async def test_the_last_server_closes_it(service: SandboxService) -> None:
    await close_sandbox_service()
    one, other = _User(), _User()
    hold_sandbox_service(one, Settings(sandbox_warm=0))
    hold_sandbox_service(other, Settings(sandbox_warm=5))
    shared = await sandbox_service()
    assert shared.settings.sandbox_warm == 0
    sandbox = await shared.open(shared.runtime.host_image())
    await close_sandbox_service(one)
    assert (await sandbox.run("echo on", timeout=10)).text == "on\n"
    await close_sandbox_service(other)
    with pytest.raises(SandboxStopped):
        await sandbox.run("echo on", timeout=10)
    assert await sandbox_service() is not shared


@pytest.mark.usefixtures("service")
async def test_episodes_of_an_environment() -> None:
    await close_sandbox_service()
    server = Server([Shell], settings=Settings(sandbox_warm=1))
    client = Client(server.app)
    sids = [await client.open() for _ in range(4)]
    for sid in sids:
        assert (await client.get("/prompt", sid)).status_code == 200
    for sid in sids:
        await client.call(sid, "bash", {"text": f"echo {sid} > file; cd /tmp"})
    for sid in sids:
        assert (await client.call(sid, "bash", {"text": "pwd; cat ~/file"})).text == f"/tmp\n{sid}\n"
    service = await sandbox_service()
    assert service.settings.sandbox_warm == 1
    assert service.pool.counts.cold + service.pool.counts.warm == 4
    for sid in sids[:2]:
        await client.post("/delete", sid=sid)
    await client.close()
    await server.sessions.close()  # ends the others, then their sandboxes
    with pytest.raises(Exception, match="not started"):
        service.runtime.describe()


@pytest.mark.usefixtures("service")
async def test_a_sandbox_that_dies_loses_its_session_and_no_other() -> None:
    instances: list[Shell] = []

    class Watched(Shell):
        async def setup(self) -> None:
            await super().setup()
            instances.append(self)

    server = Server([Watched])
    client = Client(server.app)
    first = await client.open()
    await client.get("/prompt", first)  # set up before the second, so that its instance is the first
    second = await client.open()
    await client.get("/prompt", second)
    await _kill(instances[0].sandbox)
    reply = await client.call(first, "bash", {"text": "echo on"})
    assert reply.error.startswith("InfrastructureError: Sandbox ")
    assert (await client.get("/prompt", first)).status_code == 410
    assert (await client.call(second, "bash", {"text": "echo on"})).text == "on\n"
    await client.close()
    await server.sessions.close()


async def _kill(sandbox: Any) -> None:
    """Kill process 1 from outside, as the machine's out-of-memory killer would."""
    import signal

    signal.pidfd_send_signal(sandbox._container.process_1, signal.SIGKILL)
    await asyncio.wait([sandbox._container.monitor])


def test_a_real_server_leaves_nothing_behind(tmp_path: Any) -> None:
    """Started, used and stopped with SIGTERM: no process of a sandbox remains."""
    program = tmp_path / "serve.py"
    program.write_text(_SERVER)
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    if "skip:" in result.stdout:
        pytest.skip(result.stdout)
    assert result.returncode == 0, result.stderr
    assert "served hello" in result.stdout
    assert "left []" in result.stdout


_SERVER = """
import os, threading, time, urllib.request, json, signal
from pathlib import Path
from ors_server import Server
from ors_server.sandboxes import sandbox_service
from tests.server.sandbox_service.test_service import Shell
from tests.support.events import parse_events
import asyncio
from ors_server.sandboxes import sandboxes_unavailable

reason = asyncio.run(sandboxes_unavailable())
if reason:
    print("skip:", reason)
    raise SystemExit

def children():
    mine = str(os.getpid())
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == mine and fields[0] != "Z":
            found.append(stat.parent.name)
    return found

def play(url):
    def request(path, body=None, sid=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({"X-Session-ID": sid} if sid else {})}
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers)) as response:
            return response.read()
    request("/create", {"split": "train", "index": 0}, "s")
    request("/prompt", None, "s")
    reply = parse_events(request("/call", {"name": "bash", "input": {"text": "echo hello"}}, "s"))
    print("served", json.loads(reply[-1].data)["output"]["blocks"][0]["text"])
    assert children()
    os.kill(os.getpid(), signal.SIGINT)

server = Server([Shell])
server.settings = server.settings.model_copy(update={"port": 0})
server.serve(on_ready=lambda url: threading.Thread(target=play, args=(url,)).start())
print("left", children())
"""


def test_importing_the_server_imports_no_sandboxes() -> None:
    code = "import sys, ors_server; from ors_server import Server; Server; print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    # The name in the metadata, file locks of the folder of results, the pipe to the supervisor, and the limit on open
    # files: they import the standard library only.
    helpers = {"distribution", "lazy_names", "linux"}
    helpers |= {"linux.file_locks", "linux.subprocesses", "linux.limits", "linux.limits.file_limit"}
    imported = {name for name in modules if name.startswith("ors_containers")}
    assert imported == {"ors_containers", *(f"ors_containers.{name}" for name in helpers)}


def test_it_needs_an_event_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        sandbox_service().send(None)
    assert Environment.unavailable() == ""


@pytest.mark.usefixtures("service")
async def test_without_room_real_sessions_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    await close_sandbox_service()
    machine = FakeMachine()
    machine.memory = 0

    def read(_: CapacityReader) -> Capacity:
        return machine.read()

    monkeypatch.setattr(CapacityReader, "read", read)
    server = Server([Shell], settings=Settings(sandbox_queue=1, setup_wait=0.05))
    client = Client(server.app, agent="openreward-sdk/0.1.167")
    sids = [await client.open() for _ in range(3)]  # one waits in the queue, two outside of it
    hosted = server.environments[0]
    await until(lambda: hosted.waiting_for_room == 2)
    refused = await client.create("one too many")
    assert (refused.status_code, refused.headers["x-backend-state"]) == (503, "starting")
    for sid in sids:
        response = await client.get("/prompt", sid)
        assert (response.status_code, response.headers["x-backend-state"]) == (503, "starting")
    machine.memory = 64 * GIB
    for sid in sids:
        for _ in range(200):
            if (await client.get("/prompt", sid)).status_code == 200:
                break
        assert (await client.call(sid, "bash", {"text": "echo in"})).text == "in\n"
    assert hosted.waiting_for_room == 0
    await client.open(sid="one too many")
    await client.close()
    await server.sessions.close()


@pytest.mark.usefixtures("service")
async def test_servers_with_one_table_share_their_reservations(tmp_path: Path) -> None:
    await close_sandbox_service()
    path = tmp_path / "table"
    user = _User()
    hold_sandbox_service(user, Settings(node_table=path, sandbox_warm=0))
    service = await sandbox_service()
    sandbox = await service.open(service.runtime.host_image())
    assert reservations_of_node(path).totals().pids == 16
    looking = f"""
from pathlib import Path
from ors_containers.scheduling.reservations import Reservations
print(Reservations(Path({str(path)!r})).totals().pids)"""
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", looking, stdout=asyncio.subprocess.PIPE)
    assert (await other.communicate())[0] == b"16\n"
    await sandbox.stop()
    await close_sandbox_service(user)


def test_the_command_line_lists_what_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(_TWO)
    command = [sys.executable, "-m", "ors_cli", "serve", "--port", "0"]
    with running([*command, "two.py"], tmp_path, cwd=tmp_path) as server:
        server.logged("Not served here")
    said = server.log.read_text()
    assert "Not served here: nowhere. It needs a moon: go to one" in said
    assert "environment unavailable" in said
    alone = subprocess.run(
        [*command, "two.py:Nowhere"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert alone.returncode == 2
    assert "No environment can be served on this machine." in alone.stderr
    assert "nowhere: It needs a moon: go to one." in alone.stderr


_TWO = """
from ors_server import Environment, TextBlock, ToolOutput, tool

class Here(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return [TextBlock(text="hello")]
    @tool
    def step(self) -> ToolOutput: return ToolOutput(blocks=[])

class Nowhere(Here):
    @classmethod
    def unavailable(cls): return "It needs a moon: go to one"
    @classmethod
    def list_splits(cls): raise OSError("no moon")
"""
