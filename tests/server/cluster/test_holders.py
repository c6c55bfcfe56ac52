"""Holders of nodes, without Ray: a node outlives its holder, the next one finds it, and a node without one ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ors_server.cluster.ray.driver import fits
from ors_server.cluster.ray.orders import DriverOrder, HolderFailed, NodeOrder, refuse_subreaper
from tests.server.cluster.conftest import KEY, WIRE, Cluster, client, open_session, ping, rows, until

HOLDER = """
import json, sys
from ors_server.cluster.ray.holder import Holder
from ors_server.cluster.ray.orders import NodeOrder
holder = Holder(NodeOrder(**json.loads(sys.stdin.readline())))
print(json.dumps(holder.state()), flush=True)
if sys.stdin.readline() == "stop\\n":
    print(json.dumps(holder.stop(20)), flush=True)
"""


class RunningHolder:
    """A holder in a process of its own, as an actor of Ray is."""

    def __init__(self, order: NodeOrder, folder: Path) -> None:
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER],
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._write(json.dumps(order._asdict()))
        self.state: dict[str, Any] = json.loads(self._read())

    def stop(self) -> bool:
        """Stop the node; return whether it has ended."""
        self._write("stop")
        return json.loads(self._read())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()  # for its end, not for that of its output: the node has inherited it
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def holding(order: NodeOrder, folder: Path) -> Generator[RunningHolder]:
    holder = RunningHolder(order, folder)
    try:
        yield holder
    finally:
        if holder.process.poll() is None:
            if lives(holder.state["pid"]):
                holder.stop()
            holder.kill()


@pytest.fixture
def folder() -> Generator[Path]:
    # Short: the path of a Unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ors-h-", dir="/tmp") as name:
        yield Path(name)


def order(url: str, folder: Path, node: str = "a", **variables: str) -> NodeOrder:
    arguments = ["node", WIRE, "--join", url, "--name", node]
    return NodeOrder("test", node, KEY, arguments, {"ORS_SHUTDOWN_TIMEOUT": "1", **variables}, str(folder))


def lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.long
def test_a_node_outlives_its_holder_and_the_next_one_finds_it(cluster: Cluster, folder: Path) -> None:
    gateway = cluster.gateway()
    with holding(order(gateway.url, folder), folder) as first:
        until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
        with client(gateway.url) as connection:
            sid = open_session(connection)
            first.kill()
            assert ping(connection, sid) == 200
            with holding(order(gateway.url, folder), folder) as second:
                assert second.state == {"pid": first.state["pid"], "adopted": True, "failure": ""}
                assert ping(connection, sid) == 200
                assert second.stop()
    assert rows(gateway.url) == []


def test_arguments_and_variables_of_a_held_node_do_not_show_the_key(cluster: Cluster, folder: Path) -> None:
    gateway = cluster.gateway()
    with holding(order(gateway.url, folder), folder) as holder:
        for file in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{holder.state['pid']}/{file}").read_bytes()


@pytest.mark.long
def test_a_node_without_a_holder_ends(cluster: Cluster, folder: Path) -> None:
    gateway = cluster.gateway()
    with holding(order(gateway.url, folder, ORS_ORPHAN_TTL="1"), folder) as holder:
        until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
        holder.kill()
        until(lambda: not lives(holder.state["pid"]))
        assert rows(gateway.url) == []


@pytest.mark.long
def test_a_node_without_a_gateway_ends(cluster: Cluster, folder: Path) -> None:
    gateway = cluster.gateway()
    with holding(order(gateway.url, folder, ORS_ORPHAN_TTL="1"), folder) as holder:
        until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
        gateway.process.kill()
        until(lambda: not lives(holder.state["pid"]))


def test_nothing_that_a_worker_imports_imports_ray(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise SystemExit('imported')")
    names = ("cli.application", "server", "cluster.supervisor.node", "cluster.ray.holder")
    modules = ", ".join(f"ors_server.{name}" for name in names)
    command = [sys.executable, "-c", f"import {modules}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False, timeout=60)
    assert done.returncode == 0


def test_a_raylet_that_kills_detached_processes_is_refused() -> None:
    name = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"
    refuse_subreaper({name: "0"})
    with pytest.raises(HolderFailed, match="Start Ray without it"):
        refuse_subreaper({name: "true"})


@pytest.mark.parametrize(
    ("change", "fitting"),
    [
        ({}, True),
        ({"Alive": False}, False),
        ({"Labels": {"kind": "gpu"}}, False),
        ({"Labels": None}, False),
        ({"Resources": {"CPU": 1.0, "memory": 8e9}}, False),
        ({"Resources": {"CPU": 4.0, "memory": 1e9}}, False),
        ({"Resources": None}, False),
    ],
)
def test_machines_that_fit(change: dict[str, Any], fitting: bool) -> None:
    wanted = DriverOrder("auto", "", "", [], [], {}, "", {"kind": "sandboxes"}, 2.0, 4 * 2**30)
    node = {"Alive": True, "Labels": {"kind": "sandboxes", "zone": "a"}, "Resources": {"CPU": 4.0, "memory": 8e9}}
    assert fits({**node, **change}, wanted) is fitting
