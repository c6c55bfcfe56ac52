"""Orders of the launcher for the driver, and of the driver for a node's actor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["REFUSED", "DriverOrder", "NodeFailed", "NodeOrder"]

#: Exit status of a driver that would fail again.
REFUSED = 3


class DriverOrder(NamedTuple):
    """The nodes that a driver places."""

    #: Address of Ray.
    address: str
    #: Name of the cluster: the same after a restart with the same key and gateways.
    cluster: str
    key: str
    #: Addresses of the gateways.
    join: Sequence[str]
    #: Arguments of ``ors-server`` on each node, less those that differ from node to node.
    arguments: Sequence[str]
    variables: Mapping[str, str]
    #: Working directory, where a machine has it.
    folder: str
    #: Labels that a node must have.
    labels: Mapping[str, str]
    #: Resources of Ray that each node takes.
    cpus: float
    memory: int | None


class NodeOrder(NamedTuple):
    """The node that an actor starts."""

    key: str
    arguments: Sequence[str]
    variables: Mapping[str, str]
    folder: str


class NodeFailed(RuntimeError):
    """No node can be started; the text has the cause and the remedy."""
