"""A server with two workers behind two gateways, in processes of its own."""

import contextlib
import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ors_server.cluster.supervisor.control import ask
from tests.support.cut_connections import answered
from tests.support.events import Reply, parse_events
from tests.support.paths import ROOT
from tests.support.processes import children, command_line
from tests.support.servers import Running, running_workers

WIRE = ROOT / "tests" / "server" / "protocol" / "live_server.py"


@dataclass(frozen=True)
class Several:
    """A server with several workers."""

    running: Running

    @property
    def url(self) -> str:
        return self.running.url

    def workers(self) -> list[dict[str, Any]]:
        """Return the rows of ``ors-server workers``."""
        return ask(self.running.port, {"command": "workers"})["workers"]

    def gateways(self) -> list[int]:
        """Return the process ids of the gateways."""
        found = children(self.running.process.pid)
        return [each for each in found if b"ors_server.cluster.gateway.process" in command_line(each)]

    def client(self) -> httpx.Client:
        """Return a client that opens a connection for each request, so that both gateways are used."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, limits=limits)

    def open(self, client: httpx.Client) -> str:
        """Open a session that a gateway places; return its id."""
        sid = client.post("/create_session").json()["sid"]
        created = client.post("/create", json={"split": "train", "index": 0}, headers={"X-Session-ID": sid})
        assert created.status_code == 200, created.text
        return str(sid)


def call(client: httpx.Client, sid: str, tool: str = "step", **input: Any) -> httpx.Response:
    """Return the response to a call without a key."""
    return client.post("/call", content=json.dumps({"name": tool, "input": input}), headers={"X-Session-ID": sid})


def ping(client: httpx.Client, sid: str) -> httpx.Response:
    """Return the response to a ping, also where it was first on its way to a worker that has just died."""
    return answered(lambda: client.post("/ping", headers={"X-Session-ID": sid}))


def reply(response: httpx.Response) -> Reply:
    """Return the events of a response."""
    assert response.status_code == 200, response.text
    return Reply(parse_events(response.content))


Start = Callable[..., contextlib.AbstractContextManager[Several]]


@contextlib.contextmanager
def start_several(folder: Path, *targets: str | Path, **options: Any) -> Generator[Several]:
    """Run a server with several workers (``running_workers``) while the block runs."""
    with running_workers(folder, *targets, **options) as server:
        yield Several(server)


@pytest.fixture(scope="package")
def several(tmp_path_factory: pytest.TempPathFactory) -> Generator[Several]:
    """One server for all tests that leave it as it is, except for sessions."""
    with start_several(tmp_path_factory.mktemp("several"), f"{WIRE}:Wire") as server:
        yield server
