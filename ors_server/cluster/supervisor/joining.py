"""The registration of a node with all gateways of a cluster.

Every second the node looks up the addresses of all gateways, and sends each of them its workers. So a gateway that is
started again learns them, and a new address of a name is found. A worker is offered for new sessions once each gateway
that can be reached has learned of it: otherwise the second request of a session could reach a gateway that does not
know its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ors_server.cluster.gateway.members.placed_ids import SLOTS, Place
from ors_server.cluster.gateway.members.workers import Member
from ors_server.cluster.supervisor.gateway_requests import GatewayAddress, host_and_port, request
from ors_server.keys.errors import ClusterError
from ors_server.wire.version import HANDSHAKE, VERSION

__all__ = ["Joining", "first_slot"]

logger = logging.getLogger("ors_server.node")

#: Seconds between registrations, and between repeated messages about the same trouble.
_PERIOD, _REMINDER = 1.0, 30.0
#: Seconds for which another node may have this node's name: it may be this node before it was started again.
_NAME_PATIENCE = 15.0


def first_slot(name: str, count: int, attempt: int) -> int:
    """Return the first of so many slots for a node of a name: the same in each attempt of this number."""
    digest = hashlib.blake2b(f"{attempt} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % (SLOTS - count)


class Joining:
    """The gateways of a cluster, seen from one node."""

    def __init__(self, urls: Sequence[str], token: str, name: str, count: int) -> None:
        self._names = [host_and_port(url) for url in urls]
        self._token = token
        self._name = name
        self._count = count
        self._instance = secrets.token_hex(8)
        self.first = first_slot(name, count, 0)
        self._changed = asyncio.Event()
        #: The members, and the rows of ``ors-server workers``.
        self.members: Callable[[], Sequence[Member]] = list
        self.rows: Callable[[], Sequence[Mapping[str, Any]]] = list
        #: The digests of the workers' lists of tasks, by environment and split.
        self.task_lists: Callable[[], Mapping[str, Any]] = dict
        self._started = time.time()
        #: Called with slots to drain, and the seconds until their sessions are ended.
        self.on_drain: Callable[[Sequence[int], float], None] = lambda _, __: None
        #: Called with the seconds that sessions get where this node is to end.
        self.on_stop: Callable[[float], None] = lambda _: None
        #: Workers of which each gateway that answered last has learned.
        self._learned: dict[GatewayAddress, set[Place]] = {}
        self._offered = set[Place]()
        self._states: dict[GatewayAddress | None, tuple[str, float]] = {}

    @property
    def joined(self) -> bool:
        """True while a gateway takes this node's registrations."""
        return bool(self._learned)

    async def claim(self) -> None:
        """Join with slots that no other node has, and wait for a gateway until then. Raises ``ClusterError``."""
        attempt, begun = 0, time.monotonic()
        while True:
            replies = await self._register_everywhere()
            refusals = {reply["reason"]: reply["detail"] for status, reply in replies if status != 200}
            if "slots" in refusals:
                attempt += 1
                self.first = first_slot(self._name, self._count, attempt)
                continue
            for reason, detail in refusals.items():
                if reason != "name" or time.monotonic() - begun > _NAME_PATIENCE:
                    raise ClusterError(f"A gateway refuses this node: {detail}")
            if replies and not refusals:
                return
            await asyncio.sleep(_PERIOD)

    async def run(self) -> None:
        """Register once a second, and at once when the workers change."""
        while True:
            self._changed.clear()
            await self._register_everywhere()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _PERIOD)

    def change(self) -> None:
        """Register soon: the workers have changed."""
        self._changed.set()

    async def leave(self) -> None:
        """Tell the gateways that the node ends."""
        await self._register_everywhere(leaving=True)

    async def source(self) -> str:
        """Return the address of this machine from which gateways are reached. Raises ``ClusterError``."""
        while True:
            found = [address for gateway in await self._addresses() if (address := _source(gateway)) is not None]
            if found:
                return next((address for address in found if not _is_loopback(address)), found[0])
            await asyncio.sleep(_PERIOD)

    async def _register_everywhere(self, *, leaving: bool = False) -> list[tuple[int, Any]]:
        """Register with each gateway; return the status and content of each response."""
        addresses = await self._addresses()
        members = [*self.members()]
        message = {
            "name": self._name,
            "instance": self._instance,
            "version": VERSION,
            "handshake": HANDSHAKE,
            "first": self.first,
            "count": self._count,
            "members": [self._offer(member) for member in members],
            "workers": self.rows(),
            "started": self._started,
            "task_lists": self.task_lists(),
            "leaving": leaving,
        }
        replies = await asyncio.gather(*(self._register(address, message, members) for address in addresses))
        self._learned = {address: learned for address, learned in self._learned.items() if address in addresses}
        learned = list(self._learned.values())
        new = set[Place]() if not learned else learned[0].intersection(*learned[1:]) - self._offered
        if new:
            self._offered |= new
            self.change()
        return [reply for reply in replies if reply is not None]

    def _offer(self, member: Member) -> Member:
        # A new worker is not in the view yet: no session is searched there.
        return member if member.place in self._offered else member._replace(draining=True, age=0.0)

    async def _register(
        self, address: GatewayAddress, message: Mapping[str, Any], members: Sequence[Member]
    ) -> tuple[int, Any] | None:
        self._learned.pop(address, None)
        try:
            status, reply = await request(address, self._token, "POST", "/_ors/nodes", message)
        except (OSError, ValueError) as error:
            self._note(address, f"cannot be reached: {error or type(error).__name__}")
            return None
        if status != 200:
            self._note(address, str(reply["detail"]))
            return status, reply
        self._note(address, "")
        self._learned[address] = {member.place for member in members}
        for slots, deadline in reply.get("drain", ()):
            self.on_drain(slots, deadline)
        if (patience := reply.get("stop")) is not None:
            self.on_stop(patience)
        return status, reply

    async def _addresses(self) -> list[GatewayAddress]:
        found: dict[GatewayAddress, None] = {}
        loop = asyncio.get_running_loop()
        for host, port in self._names:
            try:
                for _, _, _, _, name in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    found[GatewayAddress(str(name[0]), int(name[1]))] = None
            except OSError as error:
                self._note(None, f"{host} is not known here: {error.strerror}")
        return list(found)

    def _note(self, address: GatewayAddress | None, trouble: str) -> None:
        """Log trouble with a gateway, and its end."""
        now = time.monotonic()
        before, logged = self._states.get(address, (None, 0.0))
        if before == trouble and (not trouble or now - logged < _REMINDER):
            return
        self._states[address] = (trouble, now)
        extra = {"gateway": str(address or "")}
        if trouble:
            logger.warning("not joined", extra={**extra, "reason": trouble})
        else:
            logger.info("joined", extra=extra)


def _source(gateway: GatewayAddress) -> str | None:
    family = socket.AF_INET6 if ":" in gateway.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((gateway.host, gateway.port))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
