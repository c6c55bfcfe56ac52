"""Actors that start nodes, without Ray: a node ends with its actor, and without a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ors_server.cluster.ray.driver import fits
from ors_server.cluster.ray.orders import DriverOrder, NodeOrder
from tests.server.cluster.conftest import KEY, LOST, WIRE, Cluster, client, open_session, ping, pinged, rows, until

ACTOR = """
import json, sys
from ors_server.cluster.ray.node_actor import NodeActor
from ors_server.cluster.ray.orders import NodeOrder
actor = NodeActor(NodeOrder(**json.loads(sys.stdin.readline())))
print(actor.process(), flush=True)
if sys.stdin.readline() == "stop\\n":
    actor.stop(20)
    print(actor.wait(), flush=True)
    sys.stdin.readline()
"""


class RunningActor:
    """An actor in a process of its own, as it is in Ray."""

    def __init__(self, order: NodeOrder) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ACTOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.node = int(self.ask(json.dumps(order._asdict())))

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def acting(order: NodeOrder) -> Generator[RunningActor]:
    actor = RunningActor(order)
    try:
        yield actor
    finally:
        actor.kill()
        until(lambda: not lives(actor.node))


def order(url: str, folder: Path, *arguments: str) -> NodeOrder:
    command = ["node", WIRE, "--join", url, "--name", "a", *arguments]
    return NodeOrder(KEY, command, {"ORS_SHUTDOWN_TIMEOUT": "600"}, str(folder))


def lives(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.long
def test_a_node_ends_with_its_actor_and_its_sessions_with_it(cluster: Cluster, tmp_path: Path) -> None:
    """A machine's next actor starts another node: the sessions of this one do not delay its end."""
    gateway = cluster.gateway()
    with acting(order(gateway.url, tmp_path)) as actor, client(gateway.url) as connection:
        until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
        sid = open_session(connection)
        assert ping(connection, sid) == 200
        actor.kill()
        until(lambda: not lives(actor.node))
        with acting(order(gateway.url, tmp_path)):
            until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
            lost = pinged(connection, sid)
            assert (lost.status_code, lost.json()) == (410, LOST)


@pytest.mark.long
def test_a_node_that_is_stopped_ends_and_its_actor_knows_its_status(cluster: Cluster, tmp_path: Path) -> None:
    gateway = cluster.gateway()
    with acting(order(gateway.url, tmp_path)) as actor:
        until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
        assert actor.ask("stop") == "0\n"
        assert rows(gateway.url) == []


def test_arguments_and_variables_of_a_node_do_not_show_the_key(cluster: Cluster, tmp_path: Path) -> None:
    gateway = cluster.gateway()
    with acting(order(gateway.url, tmp_path)) as actor:
        for file in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{actor.node}/{file}").read_bytes()


@pytest.mark.long
def test_a_node_without_a_gateway_ends(cluster: Cluster, tmp_path: Path) -> None:
    gateway = cluster.gateway()
    with acting(order(gateway.url, tmp_path, "--orphan-ttl", "1")) as actor:
        until(lambda: [row["state"] for row in rows(gateway.url)] == ["serving"])
        gateway.process.kill()
        until(lambda: not lives(actor.node))


def test_a_standard_input_that_is_not_a_pipe_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ors_cli", "node", WIRE, "--join", "http://127.0.0.1:9", "--end-with-stdin"],
        env={**os.environ, "ORS_CLUSTER_KEY": KEY},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "--end-with-stdin needs a pipe" in done.stderr


def test_nothing_that_a_worker_imports_imports_ray(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise SystemExit('imported')")
    modules = (
        "ors_cli.serving.serve, ors_server.server",
        "ors_server.cluster.supervisor.node, ors_server.cluster.ray.node_actor",
    )
    command = [sys.executable, "-c", f"import {', '.join(modules)}"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("change", "fitting"),
    [
        ({}, True),
        ({"Resources": {"CPU": 2.0, "memory": 4 * 2**30}}, True),
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
