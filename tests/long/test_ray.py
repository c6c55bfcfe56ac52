"""``serve --engine ray`` on a real Ray with several raylets on the loopback device: joins, deaths, and the end.

The times are printed (``pytest -rP``); docs/performance.md has those of one run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server.keys.cluster_key import CLUSTER_HEADER, ClusterKey
from tests.support.paths import ROOT
from tests.support.processes import children, is_alive, processes
from tests.support.servers import Running, free_port, running

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed (`make test-all` installs it)"
    ),
]

#: Ray's own times are shortened: a raylet counts as dead after 1.5 s, a head as away after 10 s (60 s by default).
RAY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all addresses are loopback
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
}
#: Seconds of the lease: a worker that does not report for so long has lost its sessions.
LEASE = 10.0


@dataclass
class Ray:
    """A cluster of Ray in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    head: dict[str, list[int]]

    def command(self, text: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextlib.contextmanager
def ray_cluster(folder: Path, port: int = 0) -> Generator[Ray]:
    # Ray's sockets are below its folder of temporary files, and their paths must be short.
    variables = {name: value for name, value in os.environ.items() if name != "TMPDIR"} | RAY
    with (folder / "ray.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.long.ray_cluster", str(port or free_port())],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            yield Ray(process, started["address"], started["processes"])
        finally:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


@dataclass(frozen=True)
class Served:
    """A server on Ray."""

    running: Running

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.running.url, timeout=30, trust_env=False)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each worker of each node, as a gateway knows them."""
        token = ClusterKey(KEY.encode()).node_token
        url = f"{self.running.url}/_ors/nodes"
        return httpx.get(url, headers={CLUSTER_HEADER.decode(): token}, trust_env=False).json()["workers"]

    def wait_for(self, nodes: int, seconds: float = 180.0) -> float:
        """Wait until so many nodes serve; return the seconds."""
        begun = time.monotonic()
        while sum(row["state"] == "serving" for row in self.rows()) != nodes:
            assert time.monotonic() - begun < seconds, self.running.log.read_text()
            time.sleep(0.05)
        return time.monotonic() - begun

    def open(self, client: httpx.Client, node: str) -> str:
        """Open sessions until one is on a node; return its id."""
        (slot,) = (row["slot"] for row in self.rows() if row["node"] == node)
        while True:
            sid = client.post("/create_session").json()["sid"]
            if int(sid.replace("-", "")[:5], 16) == slot:
                created = client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})
                assert created.status_code == 200, created.text
                return str(sid)

    def ping(self, client: httpx.Client, sid: str) -> int:
        """Return the status, 0 where the connection broke with the worker."""
        with contextlib.suppress(httpx.TransportError):
            return client.post("/ping", headers={"X-Session-ID": sid}).status_code
        return 0


KEY = "a key of the tests, long enough"


@contextlib.contextmanager
def served_on(ray: Ray, folder: Path, *options: str, **variables: str) -> Generator[Served]:
    port = free_port()
    command = [sys.executable, "-m", "ors_cli", "serve", "echo", "--engine", "ray", "--port", str(port), *options]
    command += ["--address", ray.address]
    surroundings = {**RAY, "ORS_CLUSTER_KEY": KEY, "ORS_DATA_DIR": str(folder / "data"), **variables}
    with running(command, folder, variables=surroundings, new_session=True) as server:
        yield Served(server)
    assert server.process.returncode == 0, server.log.read_text()


def processes_with(*words: str) -> list[int]:
    """Return the processes whose arguments have all of these words."""
    return processes(lambda arguments: all(word.encode() in arguments.replace(b"\0", b" ") for word in words))


def wait(condition: Callable[[], object], seconds: float) -> float:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, f"not within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - begun


def name_of(node: dict[str, Any]) -> str:
    return f"ray-{node['node'][:12]}"


def node_process(server: Served, node: dict[str, Any]) -> int:
    (process,) = processes_with("ors_cli node", f"--join {server.running.url}", name_of(node))
    return process


def test_nodes_join_and_leave(tmp_path: Path) -> None:
    with ray_cluster(tmp_path) as ray, ray_or_nothing(tmp_path):
        first = ray.command("add kind=sandboxes")
        ray.command("add")  # without the label: no node of ours
        with served_on(ray, tmp_path, "--node-label", "kind=sandboxes", ORS_SHUTDOWN_TIMEOUT="4") as server:
            server.wait_for(1)
            second = ray.command("add kind=sandboxes")
            seconds = server.wait_for(2)
            print(f"new node serving after {seconds:.1f} s")
            assert seconds < 120  # the budget is 10 s, on a machine that has nothing else to do

            # Neither a node nor its worker imports Ray; no argument or variable shows the key.
            node = node_process(server, first)
            for process in (node, *children(node)):
                assert "_raylet" not in Path(f"/proc/{process}/maps").read_text()
                for file in ("cmdline", "environ"):
                    assert KEY.encode() not in Path(f"/proc/{process}/{file}").read_bytes()

            with server.client() as client:
                # Ray starts a killed actor again, and with it another node; the sessions of the old one end typed.
                sid, other = server.open(client, name_of(first)), server.open(client, name_of(second))
                os.kill(next(iter(actors_of(first))), signal.SIGKILL)
                seconds = wait(lambda: server.ping(client, sid) == 410, 60)
                print(f"killed actor: 410 after {seconds:.1f} s")
                wait(lambda: not is_alive(node), 60)
                seconds = server.wait_for(2)
                print(f"killed actor: another node served {seconds:.1f} s later")
                assert server.ping(client, other) == 200

                # A node that ends by itself gets a successor after a pause.
                os.kill(node_process(server, first), signal.SIGKILL)
                server.wait_for(1)
                seconds = server.wait_for(2)
                print(f"killed node: another one served {seconds:.1f} s later")
                assert "node ended" in server.running.log.read_text()

                # A machine that leaves Ray gets no new sessions: Ray kills its node, and the workers end with theirs.
                ray.command("remove 2")
                seconds = server.wait_for(1)
                print(f"machine left Ray: no new sessions there after {seconds:.1f} s")
                assert server.ping(client, other) == 200
                client.post("/delete", headers={"X-Session-ID": other})
            assert server.running.process.poll() is None
            url = server.running.url
        assert processes_with("ors_", url) == []
        assert processes_with("ray::NodeActor") == []


def test_machines_that_die(tmp_path: Path) -> None:
    with ray_cluster(tmp_path) as ray, ray_or_nothing(tmp_path):
        nodes = [ray.command("add") for _ in range(3)]
        with served_on(ray, tmp_path) as server, server.client() as client:
            server.wait_for(3)
            sessions = [server.open(client, name_of(node)) for node in nodes]
            trees = [[node_process(server, node)] for node in nodes]
            for tree in trees:
                tree += children(tree[0])

            # Its raylet alone: its actor ends, and the node with it.
            os.kill(nodes[0]["processes"]["raylet"][0], signal.SIGKILL)
            seconds = wait(lambda: server.ping(client, sessions[0]) == 410, 60)
            print(f"raylet killed: 410 after {seconds:.1f} s")
            wait(lambda: not any(is_alive(process) for process in trees[0]), 60)
            assert [server.ping(client, sid) for sid in sessions[1:]] == [200] * 2

            # All of its processes.
            for process in trees[1]:
                os.kill(process, signal.SIGKILL)
            os.kill(nodes[1]["processes"]["raylet"][0], signal.SIGKILL)
            seconds = wait(lambda: server.ping(client, sessions[1]) == 410, 5)
            print(f"machine killed: 410 after {seconds * 1000:.0f} ms")

            # A cable that is cut, or a machine that hangs: silence.
            for process in trees[2]:
                os.kill(process, signal.SIGSTOP)
            try:
                begun = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):
                    while server.ping(client, sessions[2]) != 410:
                        time.sleep(0.02)
                seconds = time.monotonic() - begun
            finally:
                for process in trees[2]:
                    os.kill(process, signal.SIGCONT)
            print(f"machine stopped: 410 after {seconds:.1f} s")
            assert seconds < LEASE + 1


def test_the_head_dies_and_comes_back(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(ray_or_nothing(tmp_path))
        ray = stack.enter_context(ray_cluster(tmp_path))
        first = ray.command("add")
        server = stack.enter_context(served_on(ray, tmp_path, ORS_SHUTDOWN_TIMEOUT="4"))
        client = stack.enter_context(server.client())
        server.wait_for(1)
        sid = server.open(client, name_of(first))
        node = node_process(server, first)

        os.kill(ray.head["gcs_server"][0], signal.SIGKILL)
        raylet = first["processes"]["raylet"][0]
        # While Ray waits for its head, and after it gave up: the gateway answers, and sessions go on or end typed.
        requests, begun, statuses = 0, time.monotonic(), [200]
        while is_alive(raylet) or is_alive(node):
            statuses.append(server.ping(client, sid))
            created = client.post("/create_session").status_code
            assert created in (200, 503), created
            requests += 2
            assert time.monotonic() - begun < 120
            time.sleep(0.05)
        print(f"head killed: {requests} requests; the node ended after {time.monotonic() - begun:.0f} s")
        assert statuses[: statuses.count(200)] == [200] * statuses.count(200), "a session that had ended answered again"
        wait(lambda: not processes_with("ray::NodeActor"), 30)

        # A new head at the old address: the driver finds it, and places a node again.
        ray.process.kill()
        again = stack.enter_context(ray_cluster(tmp_path, int(ray.address.rpartition(":")[2])))
        second = again.command("add")
        seconds = server.wait_for(1)
        print(f"head back: a node serves after {seconds:.1f} s")
        assert server.ping(client, sid) == 410
        assert server.ping(client, server.open(client, name_of(second))) == 200
        assert server.running.stop() == 0
        wait(lambda: not processes_with("ors_", server.running.url), 30)


def actors_of(node: dict[str, Any]) -> set[int]:
    """Return the processes of the actors on a raylet."""
    raylet = node["processes"]["raylet"][0]
    return {process for process in children(raylet) if process in processes_with("ray::NodeActor")}


@contextlib.contextmanager
def ray_or_nothing(folder: Path) -> Generator[None]:
    """Show Ray's and the server's logs where a test fails."""
    try:
        yield
    except BaseException:
        for name in ("ray.log", "log"):
            if (folder / name).exists():
                print(f"--- {name}\n{(folder / name).read_text(errors='replace')[-8000:]}")
        raise
