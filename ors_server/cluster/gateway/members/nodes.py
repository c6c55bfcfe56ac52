"""The nodes of a cluster, as one gateway knows them.

A node registers with every gateway once a second (``POST /_ors/nodes``). A node that no longer registers gets no new
sessions; its workers keep theirs for as long as they report, and the node is forgotten when none of them lives. Slots
of two nodes never overlap here, and neither do their names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ors_server.cluster.gateway.members.drains import Drains
from ors_server.cluster.gateway.members.node_lists import Lists, differences
from ors_server.cluster.gateway.members.registration import Registration
from ors_server.cluster.gateway.members.workers import SILENT_AFTER, Member, Workers
from ors_server.errors import OrsError
from ors_server.wire.version import HANDSHAKE, VERSION

__all__ = ["Nodes", "NotJoined", "SlotsTaken"]

logger = logging.getLogger("ors_server.gateway")


class NotJoined(OrsError):
    """A node that cannot be registered."""

    status = 409

    def __init__(self, cause: str, remedy: str, reason: str = "") -> None:
        super().__init__(cause, remedy)
        #: ``version``, ``name`` or ``slots``, for programs.
        self.reason = reason


class SlotsTaken(NotJoined):
    """The slots of a node are another node's; it takes others."""

    def __init__(self, name: str, slots: range) -> None:
        super().__init__(
            f"The slots {slots.start} to {slots.stop - 1} belong to node {name}",
            "Start the node again: it takes other slots.",
            "slots",
        )


class _Node:
    def __init__(self, name: str, instance: str, slots: range) -> None:
        self.name = name
        self.instance = instance
        self.slots = slots
        self.members: list[Member] = []
        #: What ``ors-server workers`` shows.
        self.rows: Sequence[Mapping[str, Any]] = ()
        #: When it started, by its own clock, and the digests of its lists of tasks.
        self.started = 0.0
        self.task_lists: Lists = {}
        self.differs = False
        #: Seconds that its sessions get once it is to end; None while it is not.
        self.stop_within: float | None = None
        #: Seconds without a registration, counted while this process runs.
        self.silence = 0.0

    @property
    def silent(self) -> bool:
        return self.silence > SILENT_AFTER

    def current_members(self) -> list[Member]:
        if self.silent or self.differs or self.stop_within is not None:
            return [member._replace(draining=True) for member in self.members]
        return self.members


class Nodes:
    """The registered nodes; ``workers`` says which of their workers live."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._by_instance: dict[str, _Node] = {}
        self._drains = Drains()

    def members(self) -> list[Member]:
        """Return the workers of all nodes."""
        return [member for node in self._by_instance.values() for member in node.current_members()]

    def register(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Take a node's registration; return what it is to do.

        Raises ``NotJoined``, and ``KeyError``, ``AttributeError`` or ``ValueError`` for what is not a registration.
        """
        if message.get("handshake") != HANDSHAKE:
            raise NotJoined(
                f"Node {message['name']} has ors-server {message['version']} with private protocol "
                f"{message.get('handshake', 0)}, and this gateway {VERSION} with {HANDSHAKE}",
                "Install the same version on all machines of the cluster.",
                "version",
            )
        # Checked before any of it is kept: the gateway reads it again and again.
        given = Registration.model_validate(message)
        name, instance, slots, members = given.name, given.instance, given.slots, given.members
        if given.leaving:
            if self._by_instance.pop(instance, None) is not None:
                logger.info("node left", extra={"node": name})
                self._compare_lists()
            return {}
        self._check(name, instance, slots)
        node = self._by_instance.get(instance)
        if node is None or node.slots != slots:
            node = self._by_instance[instance] = _Node(name, instance, slots)
            logger.info("node joined", extra={"node": name, "slots": f"{slots.start}-{slots.stop - 1}"})
            if given.version != VERSION:
                versions = {"version": given.version, "of_gateway": VERSION}
                logger.warning("a node has another version", extra={"node": name, **versions})
        node.silence = 0.0
        node.members, node.rows = members, given.workers
        node.started, node.task_lists = given.started, given.task_lists
        self._compare_lists()
        return {"drain": self._drains.take(instance, members, given.workers), "stop": node.stop_within}

    def _check(self, name: str, instance: str, slots: range) -> None:
        """Refuse a name or slots that another node has. Raises ``NotJoined``."""
        self.forget_lost()
        for other in self._by_instance.values():
            if other.instance == instance:
                continue
            if other.name == name and not other.silent:
                raise NotJoined(
                    f"Another node named {name} is part of the cluster",
                    "Give each node a name of its own with --name; without it the name is that of the machine.",
                    "name",
                )
            if other.slots.start < slots.stop and slots.start < other.slots.stop:
                raise SlotsTaken(other.name, other.slots)

    def pass_time(self, seconds: float) -> None:
        """Count seconds without registrations."""
        for node in self._by_instance.values():
            was_silent = node.silent
            node.silence += seconds
            if node.silent and not was_silent:
                logger.warning("a node no longer registers; it gets no new sessions", extra={"node": node.name})
        self.forget_lost()
        self._drains.pass_time(seconds, self._registers)

    def _registers(self, instance: str) -> bool:
        node = self._by_instance.get(instance)
        return node is not None and not node.silent

    def forget_lost(self) -> None:
        """Forget nodes that do not register and of which no worker lives."""
        for node in list(self._by_instance.values()):
            if node.silent and not any(self._workers.at(member.place) for member in node.members):
                del self._by_instance[node.instance]
                logger.error("node lost", extra={"node": node.name})
                self._compare_lists()

    def _compare_lists(self) -> None:
        nodes = self._by_instance
        found = differences((node.started, instance, node.task_lists) for instance, node in nodes.items())
        for instance, node in nodes.items():
            differs = found.get(instance)
            if differs is not None and not node.differs:
                logger.error(
                    "a node has another list of tasks than an older node; it gets no new sessions until that has left",
                    extra={"node": node.name, **differs._asdict()},
                )
            node.differs = differs is not None

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each worker, for ``ors-server workers``."""
        rows: list[dict[str, Any]] = []
        for node in sorted(self._by_instance.values(), key=lambda node: node.name):
            state = {"state": "silent"} if node.silent else {"state": "other tasks"} if node.differs else {}
            rows += [{"node": node.name, **row, **state} for row in node.rows]
        return rows

    def stop(self, names: Sequence[str], deadline: float) -> None:
        """End the nodes of these names, all at once; their sessions get ``deadline`` seconds. Raises ``NotJoined``."""
        unknown = set(names) - {node.name for node in self._by_instance.values()}
        if unknown:
            raise NotJoined(f"There is no node {min(unknown)}", "`ors-server workers` lists them.")
        for node in self._by_instance.values():
            if node.name in names:
                logger.info("node is to end", extra={"node": node.name, "deadline": deadline})
                node.stop_within = deadline

    def drain(self, names: Sequence[str], deadline: float) -> None:
        """Drain the slots of these numbers, or all slots of nodes of these names, one node after the other.

        Raises ``NotJoined``.
        """
        chosen: list[tuple[_Node, list[int]]] = []
        for name in names:
            nodes = [node for node in self._by_instance.values() if node.name == name]
            if nodes:
                chosen += [(node, list(node.slots)) for node in nodes]
                continue
            slot = int(name) if name.isdecimal() else -1
            nodes = [node for node in self._by_instance.values() if slot in node.slots]
            if not nodes:
                raise NotJoined(f"There is no slot and no node {name}", "`ors-server workers` lists them.")
            chosen += [(node, [slot]) for node in nodes]
        for node, slots in chosen:
            self._drains.add(node.instance, slots, deadline)
