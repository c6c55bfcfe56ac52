"""The arrangements that are compared: one worker, several behind a gateway or a proxy, and bare uvicorn."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ors_benchmarks.harness.candidates import packages
from ors_benchmarks.harness.client import Client
from ors_benchmarks.harness.http11 import Address
from ors_benchmarks.harness.processes import HOST, free_port
from ors_benchmarks.scale import proxies
from ors_benchmarks.scale.servers import Cores, Servers
from ors_benchmarks.server.floor import FLOOR, FloorClient
from ors_server.cluster.gateway.members.placed_ids import KEY_VARIABLE
from ors_server.cluster.gateway.members.workers import Member
from ors_server.cluster.supervisor.children import GATEWAY_MODULE, announcement_line, gateway_command
from ors_server.cluster.supervisor.control import ask
from ors_server.worker import VARIABLE, Identity

__all__ = ["CANDIDATES", "GATEWAY", "GATEWAY_TCP", "Candidate", "versions"]

TARGET = "ors_benchmarks.scale.environment:LoadEnvironment"


@dataclass(frozen=True)
class Candidate:
    """An arrangement of servers."""

    name: str
    #: For the table and ``--help``.
    title: str
    #: Start it, with so many workers.
    start: Callable[[Path, Cores, int], Servers]
    client: type[Client] = Client
    #: The program in front of the workers, if it is not this server's.
    program: str | None = None

    @property
    def here(self) -> bool:
        """True where its program is installed."""
        return self.program is None or shutil.which(self.program) is not None


def _serve(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ors_cli", "serve", TARGET, *arguments]


def _floor(folder: Path, cores: Cores, workers: int) -> Servers:
    address = Address(HOST, free_port())
    servers = Servers(address, folder, cores)
    return servers.having(
        workers=[servers.start("floor", FLOOR.command(sys.executable, str(address.port)), ready=address)]
    )


def _direct(folder: Path, cores: Cores, workers: int) -> Servers:
    address = Address(HOST, free_port())
    servers = Servers(address, folder, cores)
    return servers.having(workers=[servers.start("direct", _serve("--port", str(address.port)), ready=address)])


def _gateway(folder: Path, cores: Cores, workers: int) -> Servers:
    address = Address(HOST, free_port())
    servers = Servers(address, folder, cores, slots=lambda: ask(address.port, {"command": "workers"})["workers"])
    command = _serve("--port", str(address.port), "--workers", str(workers), "--gateways", "1")
    supervisor = servers.start("gateway", command, ready=address)
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    front = [int(pid) for pid in children if GATEWAY_MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return servers.having(front=front, workers=[row["pid"] for row in servers.slots()])


def _gateway_tcp(folder: Path, cores: Cores, workers: int) -> Servers:
    """Start a gateway whose workers listen on TCP; a supervisor's listen on Unix sockets only."""
    listening = socket.create_server((HOST, 0), backlog=4096)
    address = Address(HOST, listening.getsockname()[1])
    servers = Servers(address, folder, cores)
    own = folder / f"gateway-tcp-{address.port}"
    own.mkdir()
    members: list[Member] = []
    pids: list[int] = []
    for slot in range(workers):
        # A worker ends when the reading end is closed: it takes this process for its supervisor.
        reading, writing = os.pipe()
        servers.keep_open(reading)
        identity = Identity(slot, incarnation=1, restarted=False, folder=own, descriptor=writing)
        place = Address(HOST, free_port())
        listen = f"tcp:{place.host}:{place.port}"
        variables = {VARIABLE: json.dumps(identity._asdict(), default=str)}
        pids.append(servers.start(f"gateway-tcp-{slot}", _serve("--listen", listen), variables, (writing,)))
        os.close(writing)
        servers.wait_until_ready(f"gateway-tcp-{slot}", place)
        members.append(Member(slot, 1, listen))
    reading, writing = os.pipe()
    servers.keep_open(writing)
    os.write(writing, announcement_line(members))
    descriptors = (listening.fileno(), reading)
    command = gateway_command(*descriptors, 0, own)
    front = servers.start("gateway-tcp", command, {KEY_VARIABLE: secrets.token_hex(32)}, descriptors)
    os.close(reading)
    listening.close()
    servers.wait_until_ready("gateway-tcp", address)
    return servers.having(front=[front], workers=pids)


def _behind(proxy: Callable[[Path, Address, Sequence[Address]], list[str]]) -> Callable[[Path, Cores, int], Servers]:
    def start(folder: Path, cores: Cores, workers: int) -> Servers:
        address = Address(HOST, free_port())
        servers = Servers(address, folder, cores)
        name = proxy.__name__
        behind = [Address(HOST, free_port()) for _ in range(workers)]
        pids = [
            servers.start(f"{name}-{number}", _serve("--listen", f"tcp:{host}:{port}"))
            for number, (host, port) in enumerate(behind)
        ]
        for number, place in enumerate(behind):
            servers.wait_until_ready(f"{name}-{number}", place)
        own = folder / f"{name}-{address.port}"
        own.mkdir()
        front = servers.start(name, proxy(own, address, behind), ready=address)
        return servers.having(front=[front], workers=pids)

    return start


GATEWAY = Candidate("gateway", "gateway", _gateway)
GATEWAY_TCP = Candidate("gateway-tcp", "gateway, TCP", _gateway_tcp)
CANDIDATES: Sequence[Candidate] = (
    GATEWAY,
    GATEWAY_TCP,
    Candidate("nginx", "nginx", _behind(proxies.nginx), program="nginx"),
    Candidate("haproxy", "HAProxy", _behind(proxies.haproxy), program="haproxy"),
    Candidate("direct", "one worker", _direct),
    Candidate("floor", "bare uvicorn", _floor, client=FloorClient),
)


def versions(candidate: Candidate) -> dict[str, str]:
    """Return the versions of a candidate's programs and packages."""
    if candidate.program is None:
        return packages(sys.executable)
    done = subprocess.run([candidate.program, "-v"], capture_output=True, text=True, check=True)
    return {candidate.program: (done.stdout + done.stderr).splitlines()[0]}
