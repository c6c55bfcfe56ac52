"""The places of workers in a server, and the addresses by which gateways elsewhere reach them."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ors_server.cluster.gateway.members.placed_ids import INCARNATIONS
from ors_server.cluster.gateway.members.workers import Life, Worker
from ors_server.cluster.supervisor.children import WorkerChild
from ors_server.cluster.supervisor.pools import Pool
from ors_server.cluster.supervisor.restart_pauses import RestartBudget

__all__ = ["Network", "Slot"]

#: The folders of an absolute path.
_PATH = re.compile(r"(?<![^\s('\"`])/(?:[^\s/'\"`]+/)+")


class Network(NamedTuple):
    """The addresses of workers that gateways on other machines reach."""

    #: Address that they bind to.
    bind: str
    #: Name or address by which gateways reach them.
    advertised: str
    #: Port of the first; the others have those after it. 0 for free ports.
    first_port: int
    #: Digest of the token that they want from gateways, and the header with that token.
    verifier: str
    greeting: bytes


class Slot:
    """One worker's place in the server, over all its incarnations."""

    def __init__(self, number: int, pool: Pool, *, of_sandboxes: bool = False) -> None:
        self.number = number
        self.pool = pool
        #: Whether its worker has the sandboxes, and no environments.
        self.of_sandboxes = of_sandboxes
        self.incarnation = secrets.randbelow(INCARNATIONS)
        self.restarts = 0
        self.draining = False
        #: Why no worker will be started here again; None while one will.
        self.given_up: str | None = pool.failure or None
        self.child: WorkerChild | None = None
        self.worker: Worker | None = None
        #: When it first had a worker, and had one again after a drain, by ``time.monotonic``.
        self.since: float | None = None
        self.environments: Sequence[Sequence[str]] = [pool.names] if pool.failure else ()
        self.unavailable: Mapping[str, str] = {}
        self.watching: asyncio.Task[None] | None = None
        self.calls = 0
        self.budget = RestartBudget()

    def folder_in(self, folder: Path) -> Path:
        """Return the folder of its workers' sockets, in that of the server."""
        return folder / str(self.number)

    @property
    def label(self) -> dict[str, Any]:
        """The slot in a line of the log."""
        return {"slot": self.number, "environment": self.pool.name} if self.pool.name else {"slot": self.number}

    @property
    def why_out(self) -> str:
        """The reason why no worker will serve here again, without paths, for clients; empty where one will."""
        reason, name = _PATH.sub("", self.given_up or ""), self.pool.name or "The worker"
        return reason if not reason or reason.startswith(name) else f"{name}: {reason}"

    @property
    def state(self) -> str:
        """The state of the slot in a word, for people."""
        if self.given_up is not None:
            return "out"
        if self.worker is None:
            return "starting"
        if self.draining:
            return "draining"
        return "restarting" if self.worker.life is Life.DEAD else self.worker.life.value
