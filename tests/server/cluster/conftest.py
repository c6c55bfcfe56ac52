"""A cluster on the loopback device: gateways and nodes in processes of their own."""

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server.cluster.supervisor.gateway_requests import ask_gateway
from ors_server.keys.cluster_key import ClusterKey
from tests.support.cut_connections import answered
from tests.support.paths import ROOT
from tests.support.servers import Running, free_port, running

WIRE = f"{ROOT / 'tests' / 'server' / 'protocol' / 'live_server.py'}:Wire"
KEY = "a key of the tests, long enough"
LOST = {"detail": "Session lost: InfrastructureError: the worker that held it ended. Start a new session"}


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


class Cluster:
    """The processes of one cluster, which end with the test."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._numbers = itertools.count()

    def start(self, *arguments: str | Path, key: str = KEY, **variables: str) -> Running:
        """Start a command of ``ors-server`` and wait until it prints an address."""
        command = [sys.executable, "-m", "ors_cli", *map(str, arguments)]
        own = self._folder / f"process-{next(self._numbers)}"
        given = {"ORS_CLUSTER_KEY": key, "ORS_DATA_DIR": str(own / "data"), **variables}
        return self._stack.enter_context(running(command, own, variables=given))

    def gateway(self, port: int = 0) -> Running:
        return self.start("gateway", "--port", str(port))

    def node(
        self, name: str, *gateways: str, workers: int = 1, targets: tuple[str, ...] = (WIRE,), **variables: str
    ) -> Running:
        """Start a node and wait until its workers get sessions."""
        join = ",".join(gateways)
        arguments = ["node", "--join", join, "--name", name, *targets, "--workers", str(workers)]
        node = self.start(*arguments, **{"ORS_SHUTDOWN_TIMEOUT": "2", **variables})
        node.logged("node serves")
        for gateway in gateways:
            until(lambda gateway=gateway: serving(gateway, name) == workers)
        return node


def rows(gateway: str) -> list[dict[str, Any]]:
    """Return the rows of ``ors-server workers --gateway``."""
    return ask_gateway(gateway, ClusterKey(KEY.encode()).node_token, "GET", "/_ors/nodes")["workers"]


def serving(gateway: str, node: str) -> int:
    """Count the workers of a node that get sessions."""
    return sum((row["node"], row["state"]) == (node, "serving") for row in rows(gateway))


def client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=30, trust_env=False)


def create(client: httpx.Client, sid: str) -> httpx.Response:
    return client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})


def open_session(client: httpx.Client) -> str:
    """Open a session that the gateway places; a new worker may not have reported yet."""

    def sid() -> str | None:
        response = client.post("/create_session")
        return response.json()["sid"] if response.status_code == 200 else None

    until(sid)
    found = sid()
    assert found is not None
    assert create(client, found).status_code == 200
    return found


def ping(client: httpx.Client, sid: str) -> int:
    """Return the status of a ping."""
    return pinged(client, sid).status_code


def pinged(client: httpx.Client, sid: str) -> httpx.Response:
    """Return the response to a ping, also where it was first on its way to a worker that has just died."""
    return answered(lambda: client.post("/ping", headers={"X-Session-ID": sid}))


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Cluster(tmp_path, stack)


__all__ = [
    "KEY",
    "LOST",
    "WIRE",
    "Cluster",
    "client",
    "create",
    "free_port",
    "open_session",
    "ping",
    "pinged",
    "rows",
    "until",
]
